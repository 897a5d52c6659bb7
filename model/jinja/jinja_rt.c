#include "jinja_rt.h"

#include <stdarg.h>
#include <stdio.h>

struct jj_value jj_fail(struct jj_rt *rt, int code, const char *format, ...)
{
    struct jj_value absent = {0};
    if (rt->failed)
        return absent;
    char text[800];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rt->failed = true;
    rt->code = code;
    err_set(rt->err, code, "chat template, line %d: %s", rt->line, text);
    return absent;
}

void *jj_alloc(struct jj_rt *rt, size_t count, size_t bytes)
{
    size_t total;
    if (rt->failed)
        return NULL;
    if (!mem_mul(count, bytes, &total) || total > JJ_MAX_MEMORY ||
        rt->arena.total_bytes + total > JJ_MAX_MEMORY) {
        jj_fail(rt, ERR_LIMIT, "needs more than %zu MiB of memory", JJ_MAX_MEMORY >> 20);
        return NULL;
    }
    void *p = mem_arena_alloc(&rt->arena, total);
    if (!p)
        jj_fail(rt, ERR_NOMEM, "out of memory for %zu bytes", total);
    return p;
}

bool jj_step(struct jj_rt *rt, size_t n)
{
    rt->steps += n;
    if (rt->steps > JJ_MAX_STEPS)
        jj_fail(rt, ERR_LIMIT, "runs for more than %u steps", JJ_MAX_STEPS);
    return !rt->failed;
}

bool jj_step_bytes(struct jj_rt *rt, size_t bytes)
{
    return jj_step(rt, 1 + bytes / 64);
}

bool jj_enter(struct jj_rt *rt)
{
    if (!jj_step(rt, 1))
        return false;
    if (rt->depth >= JJ_MAX_DEPTH) {
        jj_fail(rt, ERR_LIMIT, "is nested more than %d levels deep", JJ_MAX_DEPTH);
        return false;
    }
    rt->depth++;
    return true;
}

void jj_leave(struct jj_rt *rt)
{
    rt->depth--;
}
