#ifndef MODEL_UTF8_H
#define MODEL_UTF8_H

#include <stddef.h>

/* Bytes of the well-formed UTF-8 character (Unicode, table 3-7) at s[0, n), n > 0; else 0. */
static inline size_t utf8_length(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80)
        return 1;
    if (u[0] < 0xC2 || u[0] > 0xF4)
        return 0;
    size_t length = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    if (n < length)
        return 0;
    unsigned low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    unsigned high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    if (u[1] < low || u[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((u[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

/* The bytes at the front of s that are well-formed. */
static inline size_t utf8_valid(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t length = utf8_length(s + at, n - at);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

#endif
