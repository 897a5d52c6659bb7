#include "jinja_eval.h"

#include <time.h>

/* Global functions. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static bool range_bounds(struct jj_rt *rt, const struct jj_call *c, int64_t *from, int64_t *to,
                         int64_t *step)
{
    bool one = !jj_given(c->a[1]);
    if (c->a[0].type == JJ_NONE || c->a[1].type == JJ_NONE)
        jj_fail(rt, ERR_ARG, "range() needs integers");
    *from = one ? 0 : jj_int_or(rt, c->a[0], 0);
    *to = jj_int_or(rt, one ? c->a[0] : c->a[1], 0);
    *step = jj_int_or(rt, c->a[2], 1);
    if (*step == 0)
        jj_fail(rt, ERR_ARG, "range() arg 3 must not be zero");
    return !rt->failed;
}

static struct jj_value fn_range(ARGS)
{
    int64_t from, to, step;
    struct jj_seq *s = jj_seq_new(rt, JJ_RANGE);
    (void)v;
    if (!range_bounds(rt, c, &from, &to, &step))
        return jj_sequence(s);
    while (step > 0 ? from < to : from > to) {
        if (s->n == JJ_MAX_RANGE)
            return jj_fail(rt, ERR_LIMIT, "a range of more than %d numbers", JJ_MAX_RANGE);
        jj_seq_add(rt, s, jj_int(from));
        if (rt->failed || __builtin_add_overflow(from, step, &from))
            break;
    }
    return jj_sequence(s);
}

static struct jj_value fn_dict(ARGS)
{
    (void)v;
    return jj_mapping(jj_dict_from_args(rt, c->args));
}

static struct jj_value fn_namespace(ARGS)
{
    (void)v;
    return (struct jj_value){.type = JJ_NAMESPACE, .dict = jj_dict_from_args(rt, c->args)};
}

/* The message is the template's own, and all of the sentence. */
static struct jj_value fn_raise_exception(ARGS)
{
    const struct jj_str *message = jj_to_str(rt, c->a[0]);
    (void)v;
    if (rt->failed)
        return (struct jj_value){0};
    rt->failed = true;
    rt->code = ERR_ARG;
    err_set(rt->err, ERR_ARG, "%.*s", (int)(message->n < 1000 ? message->n : 1000), message->bytes);
    return (struct jj_value){0};
}

static struct jj_value fn_strftime_now(ARGS)
{
    const struct jj_str *format = jj_arg_str(rt, c->a[0]);
    char text[512], spec[128];
    struct tm tm;
    time_t now = (time_t)rt->now;
    (void)v;
    if (!format->n || rt->failed)
        return jj_string(&jj_empty);
    if (format->n >= sizeof spec || memchr(format->bytes, 0, format->n) || !gmtime_r(&now, &tm))
        return jj_fail(rt, ERR_ARG, "strftime_now: the format cannot be used");
    memcpy(spec, format->bytes, format->n);
    spec[format->n] = '\0';
    size_t n = strftime(text, sizeof text, spec, &tm);
    if (!jj_utf8_valid(text, n))
        return jj_fail(rt, ERR_ARG, "strftime_now: the format cannot be used");
    return jj_string(jj_str_new(rt, text, n, jj_str_any_mark(format)));
}

/* ---- cycler and joiner: their state is a dict that the bound functions share ---- */

static struct jj_value text_key(const struct jj_str *name)
{
    return jj_string(name);
}

static const struct jj_str key_items = {.bytes = " items", .n = 6, .chars = 6};
static const struct jj_str key_place = {.bytes = " place", .n = 6, .chars = 6};
static const struct jj_str key_current = {.bytes = "current", .n = 7, .chars = 7};
static const struct jj_str key_next = {.bytes = "next", .n = 4, .chars = 4};
static const struct jj_str key_reset = {.bytes = "reset", .n = 5, .chars = 5};

static void cycler_move(struct jj_rt *rt, struct jj_dict *state, int64_t by)
{
    const struct jj_value *items = jj_dict_find(rt, state, text_key(&key_items));
    const struct jj_value *place = jj_dict_find(rt, state, text_key(&key_place));
    if (!items || !place || !jj_is_seq(*items, JJ_TUPLE) || place->type != JJ_INT)
        return;
    size_t at = by ? (size_t)(place->integer + by) % items->seq->n : 0;
    struct jj_value current = items->seq->items[at];
    jj_dict_set(rt, state, text_key(&key_place), jj_int((int64_t)at));
    jj_dict_set(rt, state, text_key(&key_current), current);
}

static struct jj_value cycler_next(ARGS)
{
    const struct jj_value *current = jj_dict_find(rt, v.dict, text_key(&key_current));
    struct jj_value item = current ? *current : jj_none();
    (void)c;
    cycler_move(rt, v.dict, 1);
    return item;
}

static struct jj_value cycler_reset(ARGS)
{
    (void)c;
    cycler_move(rt, v.dict, 0);
    return jj_none();
}

static const struct jj_builtin row_cycler_next = {"next", "", 0, cycler_next};
static const struct jj_builtin row_cycler_reset = {"reset", "", 0, cycler_reset};

static struct jj_value fn_cycler(ARGS)
{
    struct jj_dict *state = jj_dict_new(rt);
    struct jj_value self = {.type = JJ_NAMESPACE, .dict = state};
    struct jj_seq *items = jj_seq_new(rt, JJ_TUPLE);
    (void)v;
    if (!c->args->n)
        return jj_fail(rt, ERR_ARG, "at least one item has to be provided");
    for (int i = 0; i < c->args->n && !rt->failed; i++)
        jj_seq_add(rt, items, c->args->items[i]);
    jj_dict_set(rt, state, text_key(&key_items), jj_sequence(items));
    jj_dict_set(rt, state, text_key(&key_place), jj_int(0));
    jj_dict_set(rt, state, text_key(&key_next), jj_bound(rt, &row_cycler_next, self));
    jj_dict_set(rt, state, text_key(&key_reset), jj_bound(rt, &row_cycler_reset, self));
    cycler_move(rt, state, 0);
    return self;
}

static struct jj_value joiner_call(ARGS)
{
    bool used = v.seq->n > 1;
    (void)c;
    if (!used)
        jj_seq_add(rt, v.seq, jj_none());
    return used ? v.seq->items[0] : jj_string(&jj_empty);
}

static const struct jj_builtin row_joiner = {"joiner", "", 0, joiner_call};

static struct jj_value fn_joiner(ARGS)
{
    static const struct jj_str comma = {.bytes = ", ", .n = 2, .chars = 2};
    struct jj_seq *state = jj_seq_new(rt, JJ_LIST);
    (void)v;
    jj_seq_add(rt, state, jj_given(c->a[0]) ? c->a[0] : jj_string(&comma));
    return jj_bound(rt, &row_joiner, jj_sequence(state));
}

const struct jj_builtin jj_functions_table[] = {
    {"range", "start,stop,step", 1, fn_range},
    {"dict", NULL, 0, fn_dict},
    {"namespace", NULL, 0, fn_namespace},
    {"raise_exception", "message", 1, fn_raise_exception},
    {"strftime_now", "format", 1, fn_strftime_now},
    {"cycler", NULL, 0, fn_cycler},
    {"joiner", "sep", 0, fn_joiner},
    {0},
};
