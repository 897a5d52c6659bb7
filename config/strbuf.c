#include "strbuf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *strbuf_reserve(struct strbuf *b, size_t n)
{
    if (b->failed)
        return NULL;
    if (b->cap - b->len > n && b->data)
        return b->data + b->len;
    if (n > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return NULL;
    }
    size_t cap = b->cap * 2;
    if (cap < b->len + n + 1)
        cap = b->len + n + 1;
    if (cap < 64)
        cap = 64;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return NULL;
    }
    b->data = data;
    b->cap = cap;
    return data + b->len;
}

void strbuf_add(struct strbuf *b, const char *bytes, size_t n)
{
    char *to = strbuf_reserve(b, n);
    if (!to)
        return;
    if (n)
        memcpy(to, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void strbuf_adds(struct strbuf *b, const char *s)
{
    strbuf_add(b, s, strlen(s));
}

void strbuf_addc(struct strbuf *b, char c)
{
    strbuf_add(b, &c, 1);
}

void strbuf_addf(struct strbuf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *to = n >= 0 ? strbuf_reserve(b, (size_t)n) : NULL;
    if (to) {
        vsnprintf(to, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void strbuf_consume(struct strbuf *b, size_t n)
{
    if (n >= b->len) {
        strbuf_clear(b);
        return;
    }
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

void strbuf_clear(struct strbuf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = '\0';
}

void strbuf_finish(struct strbuf *b)
{
    free(b->data);
    *b = (struct strbuf){0};
}

char *strbuf_take(struct strbuf *b)
{
    strbuf_add(b, "", 0);
    if (b->failed) {
        strbuf_finish(b);
        return NULL;
    }
    char *data = b->data;
    *b = (struct strbuf){0};
    return data;
}
