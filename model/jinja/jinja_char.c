#include "jinja_str.h"

#include <utf8proc.h>

size_t jj_char_at(const char *s, size_t n, size_t at, int32_t *code)
{
    unsigned char c = (unsigned char)s[at];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s + at,
                                            (utf8proc_ssize_t)(n - at), code);
    if (len > 0)
        return (size_t)len;
    *code = 0xfffd;
    return 1;
}

size_t jj_char_put(int32_t code, char out[4])
{
    return (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)out);
}

/* Python's str.isspace. */
bool jj_char_is_space(int32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool jj_char_is_printable(int32_t c)
{
    if (c < 0x80)
        return c >= 32 && c < 127;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
        return false;
    default:
        return true;
    }
}

bool jj_utf8_valid(const char *s, size_t n)
{
    int32_t code;
    for (size_t at = 0; at < n;) {
        size_t len = jj_char_at(s, n, at, &code);
        if (len == 1 && (unsigned char)s[at] >= 0x80)
            return false;
        at += len;
    }
    return true;
}

size_t jj_str_count_chars(const char *bytes, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return chars;
}
