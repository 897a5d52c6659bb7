#define _GNU_SOURCE 1 /* memmem */

#include "jinja_str.h"

const struct jj_str jj_empty = {.bytes = ""};

/* ---- buffers ---- */

static bool buf_reserve(struct jj_rt *rt, struct jj_buf *b, size_t n)
{
    if (b->cap - b->n >= n)
        return !rt->failed;
    if (n > JJ_MAX_BYTES - b->n) {
        jj_fail(rt, ERR_LIMIT, "writes more than %zu MiB of text", JJ_MAX_BYTES >> 20);
        return false;
    }
    size_t cap = b->cap * 2 > b->n + n ? b->cap * 2 : b->n + n;
    cap = cap < 32 ? 32 : cap;
    char *bytes = jj_alloc(rt, cap, 1);
    unsigned char *marks = jj_alloc(rt, cap, 1);
    if (!bytes || !marks)
        return false;
    if (b->n) {
        memcpy(bytes, b->bytes, b->n);
        memcpy(marks, b->marks, b->n);
    }
    *b = (struct jj_buf){.bytes = bytes, .marks = marks, .n = b->n, .cap = cap};
    return true;
}

void jj_buf_add(struct jj_rt *rt, struct jj_buf *b, const char *bytes, size_t n, unsigned char mark)
{
    if (!n || !buf_reserve(rt, b, n))
        return;
    memcpy(b->bytes + b->n, bytes, n);
    memset(b->marks + b->n, mark, n);
    b->n += n;
}

void jj_buf_adds(struct jj_rt *rt, struct jj_buf *b, const char *s)
{
    jj_buf_add(rt, b, s, strlen(s), 0);
}

void jj_buf_fill(struct jj_rt *rt, struct jj_buf *b, char c, size_t n, unsigned char mark)
{
    if (!n || !buf_reserve(rt, b, n))
        return;
    memset(b->bytes + b->n, c, n);
    memset(b->marks + b->n, mark, n);
    b->n += n;
}

void jj_buf_add_slice(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s, size_t from,
                      size_t n)
{
    size_t at = b->n;
    jj_buf_add(rt, b, s->bytes + from, n, s->mark);
    if (s->marks && b->n == at + n && n)
        memcpy(b->marks + at, s->marks + from, n);
}

void jj_buf_add_str(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s)
{
    jj_buf_add_slice(rt, b, s, 0, s->n);
}

void jj_buf_add_char(struct jj_rt *rt, struct jj_buf *b, int32_t code, unsigned char mark)
{
    char text[4];
    jj_buf_add(rt, b, text, jj_char_put(code, text), mark);
}

const struct jj_str *jj_buf_str(struct jj_rt *rt, const struct jj_buf *b)
{
    struct jj_str *s = b->n ? jj_alloc(rt, 1, sizeof *s) : NULL;
    if (!s)
        return &jj_empty;
    *s = (struct jj_str){.bytes = b->bytes, .marks = b->marks, .n = b->n, .mark = b->marks[0]};
    s->chars = jj_str_count_chars(b->bytes, b->n);
    if (!memchr(b->marks, !s->mark, b->n))
        s->marks = NULL;
    return s;
}

/* ---- strings ---- */

const struct jj_str *jj_str_share(struct jj_rt *rt, const char *bytes, size_t n, unsigned char mark)
{
    struct jj_str *s = n ? jj_alloc(rt, 1, sizeof *s) : NULL;
    if (!s)
        return &jj_empty;
    *s = (struct jj_str){
        .bytes = bytes, .n = n, .mark = mark, .chars = jj_str_count_chars(bytes, n)};
    return s;
}

const struct jj_str *jj_str_new(struct jj_rt *rt, const char *bytes, size_t n, unsigned char mark)
{
    char *copy = n ? jj_alloc(rt, n, 1) : NULL;
    if (!copy)
        return &jj_empty;
    memcpy(copy, bytes, n);
    return jj_str_share(rt, copy, n, mark);
}

const struct jj_str *jj_str_slice(struct jj_rt *rt, const struct jj_str *s, size_t from, size_t n)
{
    if (n == s->n)
        return s;
    struct jj_str *part = n ? jj_alloc(rt, 1, sizeof *part) : NULL;
    if (!part || !jj_step_bytes(rt, n))
        return &jj_empty;
    *part = (struct jj_str){.bytes = s->bytes + from, .n = n, .mark = s->mark, .markup = s->markup};
    part->marks = s->marks ? s->marks + from : NULL;
    part->chars = s->chars == s->n ? n : jj_str_count_chars(part->bytes, n);
    return part;
}

/* The buffer of s when s ends where the buffer's bytes end, else a new one that begins with s. */
static struct jj_buf *concat_buf(struct jj_rt *rt, const struct jj_str *s, size_t more)
{
    if (s->buf && s->bytes + s->n == s->buf->bytes + s->buf->n && s->buf->cap - s->buf->n >= more)
        return s->buf;
    struct jj_buf *b = jj_alloc(rt, 1, sizeof *b);
    /* Room for what comes next: a text that grows by pieces costs in all what it is long. */
    if (b && buf_reserve(rt, b, s->n + more <= 256 ? s->n + more : (s->n + more) * 2))
        jj_buf_add_str(rt, b, s);
    return b;
}

const struct jj_str *jj_str_concat(struct jj_rt *rt, const struct jj_str *a, const struct jj_str *b)
{
    if (!a->n || !b->n)
        return a->n ? a : b;
    if (a->n + b->n > JJ_MAX_BYTES / 2) {
        jj_fail(rt, ERR_LIMIT, "joins more than %zu MiB of text", JJ_MAX_BYTES >> 21);
        return &jj_empty;
    }
    struct jj_buf *buf = concat_buf(rt, a, b->n);
    struct jj_str *s = jj_alloc(rt, 1, sizeof *s);
    if (rt->failed)
        return &jj_empty;
    jj_buf_add_str(rt, buf, b);
    size_t n = a->n + b->n;
    *s = (struct jj_str){.bytes = buf->bytes + buf->n - n,
                         .marks = buf->marks + buf->n - n,
                         .n = n,
                         .chars = a->chars + b->chars,
                         .buf = buf};
    return rt->failed ? &jj_empty : s;
}

const struct jj_str *jj_str_repeat(struct jj_rt *rt, const struct jj_str *s, int64_t times)
{
    struct jj_buf b = {0};
    if (times <= 0 || !s->n)
        return &jj_empty;
    if ((uint64_t)times > JJ_MAX_BYTES / s->n)
        jj_fail(rt, ERR_LIMIT, "writes more than %zu MiB of text", JJ_MAX_BYTES >> 20);
    for (int64_t i = 0; i < times && jj_step(rt, 1); i++)
        jj_buf_add_str(rt, &b, s);
    return jj_buf_str(rt, &b);
}

bool jj_str_equal(const struct jj_str *a, const struct jj_str *b)
{
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

bool jj_str_is(const struct jj_str *a, const char *b)
{
    return a->n == strlen(b) && memcmp(a->bytes, b, a->n) == 0;
}

int jj_str_compare(const struct jj_str *a, const struct jj_str *b)
{
    int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    if (order)
        return order < 0 ? -1 : 1;
    return (a->n > b->n) - (a->n < b->n);
}

int64_t jj_str_find(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *what,
                    size_t from, size_t to)
{
    if (from > to || to - from < what->n || !jj_step(rt, 1))
        return -1;
    if (!what->n)
        return (int64_t)from;
    const char *at = memmem(s->bytes + from, to - from, what->bytes, what->n);
    size_t seen = at ? (size_t)(at - s->bytes) - from : to - from;
    return jj_step_bytes(rt, seen) && at ? (int64_t)(at - s->bytes) : -1;
}

int64_t jj_str_rfind(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *what,
                     size_t from, size_t to)
{
    if (from > to || to - from < what->n)
        return -1;
    for (size_t at = to - what->n;; at--) {
        if (memcmp(s->bytes + at, what->bytes, what->n) == 0)
            return (int64_t)at;
        if (at == from || (at % 64 == 0 && !jj_step(rt, 1)))
            return -1;
    }
}

bool jj_str_has_prefix(const struct jj_str *s, const struct jj_str *prefix)
{
    return s->n >= prefix->n && memcmp(s->bytes, prefix->bytes, prefix->n) == 0;
}

bool jj_str_has_suffix(const struct jj_str *s, const struct jj_str *suffix)
{
    return s->n >= suffix->n && memcmp(s->bytes + s->n - suffix->n, suffix->bytes, suffix->n) == 0;
}

size_t jj_str_offset(const struct jj_str *s, size_t chars)
{
    if (s->chars == s->n || chars >= s->chars)
        return chars >= s->chars ? s->n : chars;
    size_t at = 0;
    for (;;) {
        if (((unsigned char)s->bytes[at] & 0xc0) != 0x80 && chars-- == 0)
            return at;
        at++;
    }
}

unsigned char jj_str_mark(const struct jj_str *s, size_t at)
{
    return s->marks ? s->marks[at] : s->mark;
}

unsigned char jj_str_any_mark(const struct jj_str *s)
{
    return s->marks ? memchr(s->marks, 1, s->n) != NULL : s->mark;
}
