#define _GNU_SOURCE 1 /* memmem */

#include "jinja_str.h"

#include <utf8proc.h>

/* What Python's string methods do, byte marks kept. */

/* ---- strip ---- */

static bool char_in(const struct jj_str *chars, const char *c, size_t n, int32_t code)
{
    return chars ? memmem(chars->bytes, chars->n, c, n) != NULL : jj_char_is_space(code);
}

static size_t char_before(const char *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80);
    return at;
}

const struct jj_str *jj_str_strip(struct jj_rt *rt, const struct jj_str *s,
                                  const struct jj_str *chars, int sides)
{
    size_t from = 0, to = s->n;
    int32_t code;
    while ((sides & JJ_LEFT) && from < to && jj_step(rt, 1)) {
        size_t len = jj_char_at(s->bytes, s->n, from, &code);
        if (!char_in(chars, s->bytes + from, len, code))
            break;
        from += len;
    }
    while ((sides & JJ_RIGHT) && from < to && jj_step(rt, 1)) {
        size_t at = char_before(s->bytes, to);
        size_t len = jj_char_at(s->bytes, to, at, &code);
        if (!char_in(chars, s->bytes + at, len, code))
            break;
        to = at;
    }
    return jj_str_slice(rt, s, from, to - from);
}

/* ---- split ---- */

static void add_part(struct jj_rt *rt, struct jj_seq *parts, const struct jj_str *s, size_t from,
                     size_t to)
{
    jj_seq_add(rt, parts, jj_string(jj_str_slice(rt, s, from, to - from)));
}

static size_t skip_space(const struct jj_str *s, size_t at, bool space)
{
    int32_t code;
    while (at < s->n) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        if (jj_char_is_space(code) != space)
            break;
        at += len;
    }
    return at;
}

static struct jj_seq *split_space(struct jj_rt *rt, const struct jj_str *s, int64_t max)
{
    struct jj_seq *parts = jj_seq_new(rt, JJ_LIST);
    size_t at = skip_space(s, 0, true);
    jj_step_bytes(rt, s->n);
    while (at < s->n && !rt->failed) {
        /* The last part of a limited split keeps the white space behind it. */
        bool rest = max >= 0 && (int64_t)parts->n >= max;
        size_t end = rest ? s->n : skip_space(s, at, false);
        add_part(rt, parts, s, at, end);
        at = skip_space(s, end, true);
    }
    return parts;
}

static bool sep_ok(struct jj_rt *rt, const struct jj_str *sep)
{
    if (!sep->n)
        jj_fail(rt, ERR_ARG, "empty separator");
    return sep->n > 0;
}

struct jj_seq *jj_str_split(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *sep,
                            int64_t max)
{
    if (!sep)
        return split_space(rt, s, max);
    struct jj_seq *parts = jj_seq_new(rt, JJ_LIST);
    if (!sep_ok(rt, sep))
        return parts;
    size_t from = 0;
    int64_t at;
    while ((max < 0 || (int64_t)parts->n < max) &&
           (at = jj_str_find(rt, s, sep, from, s->n)) >= 0) {
        add_part(rt, parts, s, from, (size_t)at);
        from = (size_t)at + sep->n;
    }
    add_part(rt, parts, s, from, s->n);
    return parts;
}

static void seq_reverse(struct jj_seq *s)
{
    for (size_t i = 0; i < s->n / 2; i++) {
        struct jj_value v = s->items[i];
        s->items[i] = s->items[s->n - 1 - i];
        s->items[s->n - 1 - i] = v;
    }
}

static void rsplit_space(struct jj_rt *rt, const struct jj_str *s, int64_t max,
                         struct jj_seq *parts)
{
    size_t end = jj_str_strip(rt, s, NULL, JJ_RIGHT)->n;
    while (end > 0 && !rt->failed) {
        size_t at = end;
        int32_t code = 0;
        while (at > 0 && jj_step(rt, 1)) {
            size_t before = char_before(s->bytes, at);
            jj_char_at(s->bytes, end, before, &code);
            if (jj_char_is_space(code))
                break;
            at = before;
        }
        if (max >= 0 && (int64_t)parts->n >= max)
            at = 0;
        add_part(rt, parts, s, at, end);
        end = jj_str_strip(rt, jj_str_slice(rt, s, 0, at), NULL, JJ_RIGHT)->n;
    }
}

struct jj_seq *jj_str_rsplit(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *sep,
                             int64_t max)
{
    struct jj_seq *parts = jj_seq_new(rt, JJ_LIST);
    if (!sep) {
        rsplit_space(rt, s, max, parts);
    } else if (sep_ok(rt, sep)) {
        size_t to = s->n;
        int64_t at;
        while ((max < 0 || (int64_t)parts->n < max) &&
               (at = jj_str_rfind(rt, s, sep, 0, to)) >= 0) {
            add_part(rt, parts, s, (size_t)at + sep->n, to);
            to = (size_t)at;
        }
        add_part(rt, parts, s, 0, to);
    }
    seq_reverse(parts);
    return parts;
}

static bool is_line_end(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct jj_seq *jj_str_lines(struct jj_rt *rt, const struct jj_str *s, bool keep_ends)
{
    struct jj_seq *lines = jj_seq_new(rt, JJ_LIST);
    size_t from = 0;
    int32_t code;
    jj_step_bytes(rt, s->n);
    for (size_t at = 0; at < s->n && !rt->failed;) {
        size_t end = at;
        at += jj_char_at(s->bytes, s->n, at, &code);
        if (!is_line_end(code))
            continue;
        if (code == '\r' && at < s->n && s->bytes[at] == '\n')
            at++;
        add_part(rt, lines, s, from, keep_ends ? at : end);
        from = at;
    }
    if (from < s->n)
        add_part(rt, lines, s, from, s->n);
    return lines;
}

struct jj_seq *jj_str_chars(struct jj_rt *rt, const struct jj_str *s)
{
    struct jj_seq *chars = jj_seq_new(rt, JJ_LIST);
    int32_t code;
    for (size_t at = 0; at < s->n && !rt->failed;) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        add_part(rt, chars, s, at, at + len);
        at += len;
    }
    return chars;
}

/* ---- replace ---- */

/* Python puts `to` before each character and at the end when `from` is empty. */
static void replace_empty(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s,
                          const struct jj_str *to, int64_t count)
{
    int32_t code;
    for (size_t at = 0; at <= s->n && !rt->failed;) {
        if (count != 0) {
            jj_buf_add_str(rt, b, to);
            count--;
        }
        if (at == s->n || !jj_step(rt, 1))
            return;
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        jj_buf_add_slice(rt, b, s, at, len);
        at += len;
    }
}

const struct jj_str *jj_str_replace(struct jj_rt *rt, const struct jj_str *s,
                                    const struct jj_str *from, const struct jj_str *to,
                                    int64_t count)
{
    struct jj_buf b = {0};
    size_t at = 0;
    int64_t found;
    if (count < 0)
        count = INT64_MAX;
    if (!from->n) {
        replace_empty(rt, &b, s, to, count);
        return jj_buf_str(rt, &b);
    }
    if (jj_str_find(rt, s, from, 0, s->n) < 0)
        return s;
    while (count-- > 0 && (found = jj_str_find(rt, s, from, at, s->n)) >= 0) {
        jj_buf_add_slice(rt, &b, s, at, (size_t)found - at);
        jj_buf_add_str(rt, &b, to);
        at = (size_t)found + from->n;
    }
    jj_buf_add_slice(rt, &b, s, at, s->n - at);
    return jj_buf_str(rt, &b);
}

static const char *const html[128] = {
    ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};

const struct jj_str *jj_str_escape(struct jj_rt *rt, const struct jj_str *s)
{
    struct jj_buf b = {0};
    jj_step_bytes(rt, s->n);
    for (size_t i = 0; i < s->n && !rt->failed; i++) {
        unsigned char c = (unsigned char)s->bytes[i];
        if (c < 128 && html[c])
            jj_buf_add(rt, &b, html[c], strlen(html[c]), jj_str_mark(s, i));
        else
            jj_buf_add_slice(rt, &b, s, i, 1);
    }
    struct jj_str *copy = jj_alloc(rt, 1, sizeof *copy);
    if (!copy)
        return &jj_empty;
    *copy = *jj_buf_str(rt, &b);
    copy->markup = true;
    return copy;
}

/* ---- case ---- */

static bool is_cased(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* Characters whose upper case is more than one character. */
static const struct {
    int32_t code;
    const char *upper, *title;
} long_upper[] = {
    {0xdf, "SS", "Ss"},     {0x149, "\u02bcN", "\u02bcN"}, {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},   {0xfb02, "FL", "Fl"},          {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"}, {0xfb05, "ST", "St"},          {0xfb06, "ST", "St"},
};

static void add_upper(struct jj_rt *rt, struct jj_buf *b, int32_t code, unsigned char mark,
                      bool title)
{
    for (size_t i = 0; code > 127 && i < sizeof long_upper / sizeof *long_upper; i++) {
        if (code == long_upper[i].code) {
            const char *text = title ? long_upper[i].title : long_upper[i].upper;
            jj_buf_add(rt, b, text, strlen(text), mark);
            return;
        }
    }
    jj_buf_add_char(rt, b, title ? utf8proc_totitle(code) : utf8proc_toupper(code), mark);
}

static bool wants_upper(int32_t code, bool first, bool after_cased, enum jj_case mode)
{
    switch (mode) {
    case JJ_UPPER:
        return true;
    case JJ_CAPITALIZE:
        return first;
    case JJ_TITLE:
        return !after_cased;
    case JJ_SWAP:
        return utf8proc_category(code) == UTF8PROC_CATEGORY_LL;
    default:
        return false;
    }
}

/* Within ASCII a case is a bit, and the length stays. */
static void case_ascii(char *bytes, size_t n, enum jj_case mode)
{
    bool after_cased = false;
    for (size_t i = 0; i < n; i++) {
        char letter = (char)(bytes[i] | 0x20);
        bool cased = letter >= 'a' && letter <= 'z';
        if (cased)
            bytes[i] = wants_upper(bytes[i], i == 0, after_cased, mode) ? letter ^ 0x20 : letter;
        after_cased = cased;
    }
}

static void case_unicode(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s,
                         enum jj_case mode)
{
    bool after_cased = false;
    int32_t code;
    for (size_t at = 0; at < s->n && !rt->failed;) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        unsigned char mark = jj_str_mark(s, at);
        if (wants_upper(code, at == 0, after_cased, mode))
            add_upper(rt, b, code, mark, mode == JJ_CAPITALIZE || mode == JJ_TITLE);
        else
            jj_buf_add_char(rt, b, utf8proc_tolower(code), mark);
        after_cased = is_cased(code);
        at += len;
    }
}

const struct jj_str *jj_str_case(struct jj_rt *rt, const struct jj_str *s, enum jj_case mode)
{
    struct jj_buf b = {0};
    jj_step_bytes(rt, s->n);
    if (s->chars == s->n) {
        jj_buf_add_str(rt, &b, s);
        case_ascii(b.bytes, b.n, mode);
    } else {
        case_unicode(rt, &b, s, mode);
    }
    return jj_buf_str(rt, &b);
}
