#include "jinja_eval.h"

/* Methods of lists (and tuples), dicts and loops. Those that change a value work on the render's
 * own copy: the caller's JSON stays as it is. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static bool can_change(struct jj_rt *rt, struct jj_value v)
{
    if (v.seq->kind != JJ_LIST)
        jj_fail(rt, ERR_ARG, "'%s' object cannot be changed", jj_type_name(v));
    return !rt->failed;
}

static struct jj_value list_append(ARGS)
{
    if (can_change(rt, v))
        jj_seq_add(rt, v.seq, c->a[0]);
    return jj_none();
}

static struct jj_value list_extend(ARGS)
{
    const struct jj_seq *more = jj_iterate(rt, c->a[0]);
    size_t n = more->n; /* it may be the same list */
    for (size_t i = 0; can_change(rt, v) && i < n; i++)
        jj_seq_add(rt, v.seq, more->items[i]);
    return jj_none();
}

static struct jj_value list_insert(ARGS)
{
    int64_t at = jj_int_or(rt, c->a[0], 0), n = (int64_t)v.seq->n;
    if (!can_change(rt, v) || !jj_step(rt, v.seq->n))
        return jj_none();
    at = at < 0 ? (at + n < 0 ? 0 : at + n) : at > n ? n : at;
    jj_seq_add(rt, v.seq, jj_none());
    if (rt->failed)
        return jj_none();
    memmove(v.seq->items + at + 1, v.seq->items + at, (size_t)(n - at) * sizeof *v.seq->items);
    v.seq->items[at] = c->a[1];
    return jj_none();
}

static struct jj_value remove_at(struct jj_rt *rt, struct jj_seq *s, size_t at)
{
    struct jj_value item = s->items[at];
    if (!jj_step(rt, s->n - at))
        return item;
    memmove(s->items + at, s->items + at + 1, (s->n - at - 1) * sizeof *s->items);
    s->n--;
    return item;
}

static struct jj_value list_pop(ARGS)
{
    int64_t n = (int64_t)v.seq->n, at = jj_int_or(rt, c->a[0], -1);
    at = at < 0 ? at + n : at;
    if (!can_change(rt, v))
        return (struct jj_value){0};
    if (at < 0 || at >= n)
        return jj_fail(rt, ERR_ARG, n ? "pop index out of range" : "pop from empty list");
    return remove_at(rt, v.seq, (size_t)at);
}

static int64_t place_of(struct jj_rt *rt, const struct jj_seq *s, struct jj_value v)
{
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++)
        if (jj_equal(rt, s->items[i], v))
            return (int64_t)i;
    jj_fail(rt, ERR_ARG, "the value is not in the list");
    return -1;
}

static struct jj_value list_remove(ARGS)
{
    int64_t at = can_change(rt, v) ? place_of(rt, v.seq, c->a[0]) : -1;
    if (at >= 0)
        remove_at(rt, v.seq, (size_t)at);
    return jj_none();
}

static struct jj_value list_index(ARGS)
{
    return jj_int(place_of(rt, v.seq, c->a[0]));
}

static struct jj_value list_count(ARGS)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.seq->n && jj_step(rt, 1); i++)
        n += jj_equal(rt, v.seq->items[i], c->a[0]);
    return jj_int(n);
}

static struct jj_value list_reverse(ARGS)
{
    (void)c;
    if (!can_change(rt, v) || !jj_step(rt, v.seq->n))
        return jj_none();
    for (size_t i = 0; i < v.seq->n / 2; i++) {
        struct jj_value swap = v.seq->items[i];
        v.seq->items[i] = v.seq->items[v.seq->n - 1 - i];
        v.seq->items[v.seq->n - 1 - i] = swap;
    }
    return jj_none();
}

static struct jj_value list_sort(ARGS)
{
    if (can_change(rt, v))
        jj_sort(rt, v.seq, NULL, jj_arg_true(c->a[0], false));
    return jj_none();
}

static struct jj_value list_clear(ARGS)
{
    (void)c;
    if (can_change(rt, v))
        v.seq->n = 0;
    return jj_none();
}

static struct jj_value list_copy(ARGS)
{
    struct jj_seq *copy = jj_seq_new(rt, JJ_LIST);
    (void)c;
    for (size_t i = 0; i < v.seq->n && !rt->failed; i++)
        jj_seq_add(rt, copy, v.seq->items[i]);
    return jj_sequence(copy);
}

const struct jj_builtin jj_list_methods[] = {
    {"append", "object", 1, list_append},
    {"extend", "iterable", 1, list_extend},
    {"insert", "index,object", 2, list_insert},
    {"pop", "index", 0, list_pop},
    {"remove", "value", 1, list_remove},
    {"index", "value", 1, list_index},
    {"count", "value", 1, list_count},
    {"reverse", "", 0, list_reverse},
    {"sort", "reverse", 0, list_sort},
    {"clear", "", 0, list_clear},
    {"copy", "", 0, list_copy},
    {0},
};

/* ---- dict ---- */

static struct jj_value dict_get(ARGS)
{
    const struct jj_value *found = jj_dict_find(rt, v.dict, c->a[0]);
    if (found)
        return *found;
    return jj_given(c->a[1]) ? c->a[1] : jj_none();
}

static struct jj_value dict_items(ARGS)
{
    (void)c;
    return jj_sequence(jj_dict_view(rt, v.dict, JJ_ITEMS));
}

static struct jj_value dict_keys(ARGS)
{
    (void)c;
    return jj_sequence(jj_dict_view(rt, v.dict, JJ_KEYS));
}

static struct jj_value dict_values(ARGS)
{
    (void)c;
    return jj_sequence(jj_dict_view(rt, v.dict, JJ_VALUES));
}

static struct jj_value dict_pop(ARGS)
{
    struct jj_value value;
    if (jj_dict_remove(rt, v.dict, c->a[0], &value))
        return value;
    return jj_given(c->a[1]) ? c->a[1] : jj_fail(rt, ERR_ARG, "pop: the dict has no such key");
}

static void update_from(struct jj_rt *rt, struct jj_dict *d, struct jj_value from)
{
    if (from.type == JJ_DICT) {
        size_t n = from.dict->n;
        for (size_t i = 0; i < n && !rt->failed; i++)
            jj_dict_set(rt, d, from.dict->entries[i].key, from.dict->entries[i].value);
        return;
    }
    const struct jj_seq *pairs = jj_iterate(rt, from);
    for (size_t i = 0; i < pairs->n && !rt->failed; i++) {
        const struct jj_seq *pair = jj_iterate(rt, pairs->items[i]);
        if (pair->n == 2)
            jj_dict_set(rt, d, pair->items[0], pair->items[1]);
        else
            jj_fail(rt, ERR_ARG, "a dict is made of pairs; an item has length %zu", pair->n);
    }
}

static void update_named(struct jj_rt *rt, struct jj_dict *d, const struct jj_args *args)
{
    if (args->n > 1)
        jj_fail(rt, ERR_ARG, "at most 1 argument without a name is expected, got %d", args->n);
    if (args->n == 1)
        update_from(rt, d, args->items[0]);
    for (int i = 0; i < args->n_named && !rt->failed; i++)
        jj_dict_set(rt, d, jj_string(args->named[i].name), args->named[i].value);
}

static struct jj_value dict_update(ARGS)
{
    update_named(rt, v.dict, c->args);
    return jj_none();
}

static struct jj_value dict_setdefault(ARGS)
{
    const struct jj_value *found = jj_dict_find(rt, v.dict, c->a[0]);
    if (found)
        return *found;
    struct jj_value value = jj_given(c->a[1]) ? c->a[1] : jj_none();
    jj_dict_set(rt, v.dict, c->a[0], value);
    return value;
}

static struct jj_value dict_copy(ARGS)
{
    (void)c;
    return jj_mapping(jj_dict_copy(rt, v.dict));
}

static struct jj_value dict_clear(ARGS)
{
    (void)c;
    if (!rt->failed)
        *v.dict = (struct jj_dict){0};
    return jj_none();
}

const struct jj_builtin jj_dict_methods[] = {
    {"get", "key,default", 1, dict_get},
    {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},
    {"pop", "key,default", 1, dict_pop},
    {"update", NULL, 0, dict_update},
    {"setdefault", "key,default", 1, dict_setdefault},
    {"copy", "", 0, dict_copy},
    {"clear", "", 0, dict_clear},
    {0},
};

/* dict() and namespace() are built the same way. */
struct jj_dict *jj_dict_from_args(struct jj_rt *rt, const struct jj_args *args)
{
    struct jj_dict *d = jj_dict_new(rt);
    if (!rt->failed)
        update_named(rt, d, args);
    return d;
}

/* ---- loop ---- */

static struct jj_value loop_cycle(ARGS)
{
    if (!c->args->n)
        return jj_fail(rt, ERR_ARG, "no items for cycling given");
    return c->args->items[v.loop->index % (size_t)c->args->n];
}

static struct jj_value loop_changed(ARGS)
{
    struct jj_seq *now = jj_seq_new(rt, JJ_TUPLE);
    for (int i = 0; i < c->args->n && !rt->failed; i++)
        jj_seq_add(rt, now, c->args->items[i]);
    bool same = v.loop->changed && jj_equal(rt, jj_sequence(v.loop->changed), jj_sequence(now));
    v.loop->changed = now;
    return jj_bool(!same);
}

const struct jj_builtin jj_loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {"changed", NULL, 0, loop_changed},
    {0},
};
