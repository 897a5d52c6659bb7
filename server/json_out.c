#include "json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool continues(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* Bytes that a lead byte announces; 0 when it can lead none. */
static size_t announced(unsigned char c)
{
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef)
        return 3;
    return c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

/* Overlong forms, surrogates and values beyond U+10FFFF show in the second byte (RFC 3629). */
static bool second_fits(unsigned char lead, unsigned char c)
{
    switch (lead) {
    case 0xe0:
        return c >= 0xa0 && c <= 0xbf;
    case 0xed:
        return c >= 0x80 && c <= 0x9f;
    case 0xf0:
        return c >= 0x90 && c <= 0xbf;
    case 0xf4:
        return c >= 0x80 && c <= 0x8f;
    default:
        return continues(c);
    }
}

size_t utf8_char(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t want = n ? announced(u[0]) : 0;
    if (want == 0 || want > n)
        return 0;
    if (want > 1 && !second_fits(u[0], u[1]))
        return 0;
    for (size_t i = 2; i < want; i++)
        if (!continues(u[i]))
            return 0;
    return want;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_char(s + i, n - i);
        if (len == 0)
            return false;
    }
    return true;
}

size_t utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !continues((unsigned char)s[i]);
    return count;
}

size_t utf8_whole(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if (continues(c))
            continue;
        bool open = announced(c) > back &&
                    (back < 2 || second_fits(c, (unsigned char)s[n - back + 1]));
        return open ? n - back : n;
    }
    return n;
}

/* How each ASCII byte is written: 0 as it is, 'u' as \u00XX, else after a backslash. */
static const char escapes[128] = {
    [0] = 'u',  [1] = 'u',    [2] = 'u',    [3] = 'u',    [4] = 'u',   [5] = 'u',     [6] = 'u',
    [7] = 'u',  ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', [11] = 'u',  ['\f'] = 'f',  ['\r'] = 'r',
    [14] = 'u', [15] = 'u',   [16] = 'u',   [17] = 'u',   [18] = 'u',  [19] = 'u',    [20] = 'u',
    [21] = 'u', [22] = 'u',   [23] = 'u',   [24] = 'u',   [25] = 'u',  [26] = 'u',    [27] = 'u',
    [28] = 'u', [29] = 'u',   [30] = 'u',   [31] = 'u',   ['"'] = '"', ['\\'] = '\\', [127] = 'u',
};

static void escape_ascii(struct strbuf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    char e = escapes[c];
    if (e == 'u') {
        const char out[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        strbuf_add(b, out, sizeof out);
    } else {
        const char out[2] = {'\\', e};
        strbuf_add(b, out, sizeof out);
    }
}

static const char *separator_escape(const char *s, size_t n)
{
    if (n == 2 && memcmp(s, "\xc2\x85", 2) == 0)
        return "\\u0085";
    if (n == 3 && memcmp(s, "\xe2\x80\xa8", 3) == 0)
        return "\\u2028";
    if (n == 3 && memcmp(s, "\xe2\x80\xa9", 3) == 0)
        return "\\u2029";
    return NULL;
}

void json_out_escaped(struct strbuf *b, const char *s, size_t n)
{
    size_t plain = 0; /* bytes before i that go out as they are */
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        size_t len = c < 0x80 ? 1 : utf8_char(s + i, n - i);
        const char *as = len > 1 ? separator_escape(s + i, len) : NULL;
        if (len == 0)
            as = "\xef\xbf\xbd";
        if (as || (len == 1 && escapes[c])) {
            strbuf_add(b, s + i - plain, plain);
            plain = 0;
            if (as)
                strbuf_adds(b, as);
            else
                escape_ascii(b, c);
        } else {
            plain += len;
        }
        i += len ? len : 1;
    }
    strbuf_add(b, s + n - plain, plain);
}

void json_out_string(struct strbuf *b, const char *s, size_t n)
{
    strbuf_addc(b, '"');
    if (n)
        json_out_escaped(b, s, n);
    strbuf_addc(b, '"');
}

void json_out_text(struct strbuf *b, const char *s)
{
    if (s)
        json_out_string(b, s, strlen(s));
    else
        strbuf_adds(b, "null");
}

/* Writes the digits of v right-aligned before `end`; returns where they begin. */
static char *digits(uint64_t v, char *end)
{
    do
        *--end = (char)('0' + v % 10);
    while (v /= 10);
    return end;
}

void json_out_int(struct strbuf *b, int64_t v)
{
    char buf[24], *end = buf + sizeof buf;
    uint64_t size = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char *p = digits(size, end);
    if (v < 0)
        *--p = '-';
    strbuf_add(b, p, (size_t)(end - p));
}

/* Nine digits of x in [1e-5, 1e9) in plain notation; a double keeps them exactly enough that the
 * nearest float is found again. */
static void add_nine_digits(struct strbuf *b, double x)
{
    int shift = 8; /* decimals */
    double scale = 1e8;
    for (; x >= 10 && shift > 0; x /= 10)
        shift--;
    for (; x < 1; x *= 10)
        shift++;
    uint64_t m = (uint64_t)llrint(x * scale);
    while (shift > 0 && m % 10 == 0) {
        m /= 10;
        shift--;
    }
    char buf[32], *end = buf + sizeof buf;
    char *p = digits(m, end);
    while (end - p <= shift)
        *--p = '0';
    size_t whole = (size_t)(end - p) - (size_t)shift;
    strbuf_add(b, p, whole);
    if (shift) {
        strbuf_addc(b, '.');
        strbuf_add(b, p + whole, (size_t)shift);
    }
}

void json_out_float(struct strbuf *b, float v)
{
    if (!isfinite(v)) {
        strbuf_adds(b, "null");
        return;
    }
    double x = fabs((double)v);
    if (x == 0) {
        strbuf_adds(b, "0");
    } else if (x >= 1e-5 && x < 1e8) {
        if (v < 0)
            strbuf_addc(b, '-');
        add_nine_digits(b, x);
    } else {
        strbuf_addf(b, "%.9g", (double)v);
    }
}

void json_out_double(struct strbuf *b, double v)
{
    if (!isfinite(v)) {
        strbuf_adds(b, "null");
        return;
    }
    char text[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, v);
        if (strtod(text, NULL) == v)
            break;
    }
    strbuf_adds(b, text);
}

void json_out_bool(struct strbuf *b, bool v)
{
    strbuf_adds(b, v ? "true" : "false");
}
