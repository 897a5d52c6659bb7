#include "jinja_eval.h"

/* Filters on sequences and mappings. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static struct jj_value filter_first(ARGS)
{
    (void)c;
    if (jj_is_seq(v, JJ_LAZY) && v.seq->next < v.seq->n)
        return v.seq->items[v.seq->next++];
    const struct jj_seq *s = jj_iterate(rt, v);
    return s->n ? s->items[0] : jj_undefined("the first item of an empty sequence");
}

static struct jj_value filter_last(ARGS)
{
    (void)c;
    const struct jj_seq *s = jj_iterate(rt, v);
    return s->n ? s->items[s->n - 1] : jj_undefined("the last item of an empty sequence");
}

static struct jj_seq *copy_of(struct jj_rt *rt, struct jj_value v, enum jj_seq_kind kind)
{
    const struct jj_seq *from = jj_iterate(rt, v);
    struct jj_seq *s = jj_seq_new(rt, kind);
    for (size_t i = 0; i < from->n && !rt->failed; i++)
        jj_seq_add(rt, s, from->items[i]);
    return s;
}

static struct jj_value filter_list(ARGS)
{
    (void)c;
    return jj_sequence(copy_of(rt, v, JJ_LIST));
}

static struct jj_value filter_reverse(ARGS)
{
    struct jj_buf b = {0};
    const struct jj_seq *from = jj_iterate(rt, v);
    struct jj_seq *s = jj_seq_new(rt, JJ_LAZY);
    (void)c;
    for (size_t i = from->n; i-- > 0 && !rt->failed;) {
        if (v.type == JJ_STR)
            jj_buf_add_str(rt, &b, from->items[i].str);
        else
            jj_seq_add(rt, s, from->items[i]);
    }
    return v.type == JJ_STR ? jj_string(jj_buf_str(rt, &b)) : jj_sequence(s);
}

static struct jj_value filter_items(ARGS)
{
    (void)c;
    if (v.type == JJ_DICT)
        return jj_sequence(jj_dict_view(rt, v.dict, JJ_ITEMS));
    if (v.type != JJ_UNDEFINED)
        return jj_fail(rt, ERR_ARG, "Can only get item pairs from a mapping.");
    return jj_sequence(jj_seq_new(rt, JJ_LAZY));
}

/* ---- order ---- */

/* The key of one item; "a,b" compares by a, then by b. */
static struct jj_value key_of(struct jj_rt *rt, struct jj_value item, struct jj_value path,
                              bool case_sensitive)
{
    static const struct jj_str comma = {.bytes = ",", .n = 1, .chars = 1};
    if (!jj_given(path) || path.type == JJ_NONE)
        return jj_fold(rt, item, case_sensitive);
    if (path.type != JJ_STR || !memchr(path.str->bytes, ',', path.str->n))
        return jj_fold(rt, jj_path(rt, item, path), case_sensitive);
    const struct jj_seq *paths = jj_str_split(rt, path.str, &comma, -1);
    struct jj_seq *keys = jj_seq_new(rt, JJ_LIST);
    for (size_t i = 0; i < paths->n && !rt->failed; i++)
        jj_seq_add(rt, keys, jj_fold(rt, jj_path(rt, item, paths->items[i]), case_sensitive));
    return jj_sequence(keys);
}

/* What the items are compared by. */
static struct jj_value *keys_of(struct jj_rt *rt, const struct jj_seq *s, struct jj_value path,
                                bool case_sensitive)
{
    struct jj_value *keys = jj_alloc(rt, s->n + 1, sizeof *keys);
    for (size_t i = 0; keys && i < s->n && jj_step(rt, 1); i++)
        keys[i] = key_of(rt, s->items[i], path, case_sensitive);
    return keys;
}

static struct jj_value filter_sort(ARGS)
{
    struct jj_seq *s = copy_of(rt, v, JJ_LIST);
    const struct jj_value *keys = keys_of(rt, s, c->a[2], jj_arg_true(c->a[1], false));
    if (!rt->failed)
        jj_sort(rt, s, keys, jj_arg_true(c->a[0], false));
    return jj_sequence(s);
}

static struct jj_value filter_dictsort(ARGS)
{
    const struct jj_str *by = jj_arg_str_or_null(rt, c->a[1]);
    bool by_value = by && jj_str_is(by, "value");
    if (v.type != JJ_DICT)
        return jj_fail(rt, ERR_ARG, "dictsort: '%s' is no mapping", jj_type_name(v));
    if (by && !by_value && !jj_str_is(by, "key"))
        return jj_fail(rt, ERR_ARG, "dictsort: by must be key or value");
    struct jj_seq *pairs = jj_dict_view(rt, v.dict, JJ_ITEMS);
    pairs = copy_of(rt, jj_sequence(pairs), JJ_LIST);
    const struct jj_value *keys = keys_of(rt, pairs, jj_int(by_value ? 1 : 0),
                                          jj_arg_true(c->a[0], false));
    if (!rt->failed)
        jj_sort(rt, pairs, keys, jj_arg_true(c->a[2], false));
    return jj_sequence(pairs);
}

static struct jj_value filter_unique(ARGS)
{
    const struct jj_seq *s = jj_iterate(rt, v);
    struct jj_seq *once = jj_seq_new(rt, JJ_LAZY);
    struct jj_dict *seen = jj_dict_new(rt);
    const struct jj_value *keys = keys_of(rt, s, c->a[1], jj_arg_true(c->a[0], false));
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        if (jj_dict_find(rt, seen, keys[i]))
            continue;
        jj_dict_set(rt, seen, keys[i], jj_none());
        jj_seq_add(rt, once, s->items[i]);
    }
    return jj_sequence(once);
}

static struct jj_value extreme(struct jj_rt *rt, struct jj_value v, const struct jj_call *c,
                               int sign)
{
    const struct jj_seq *s = jj_iterate(rt, v);
    const struct jj_value *keys = keys_of(rt, s, c->a[1], jj_arg_true(c->a[0], false));
    size_t best = 0;
    for (size_t i = 1; i < s->n && jj_step(rt, 1); i++)
        if (jj_compare(rt, keys[i], keys[best]) * sign > 0)
            best = i;
    return s->n ? s->items[best] : jj_undefined("the extreme of an empty sequence");
}

static struct jj_value filter_min(ARGS)
{
    return extreme(rt, v, c, -1);
}

static struct jj_value filter_max(ARGS)
{
    return extreme(rt, v, c, 1);
}

static struct jj_value filter_sum(ARGS)
{
    const struct jj_seq *s = jj_iterate(rt, v);
    struct jj_value sum = jj_given(c->a[1]) ? c->a[1] : jj_int(0);
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        struct jj_value item = s->items[i];
        if (jj_given(c->a[0]) && c->a[0].type != JJ_NONE)
            item = jj_path(rt, item, c->a[0]);
        sum = jj_arithmetic(rt, JJ_ADD, sum, item);
    }
    return sum;
}

static struct jj_value filter_groupby(ARGS)
{
    struct jj_seq *s = copy_of(rt, v, JJ_LIST), *groups = jj_seq_new(rt, JJ_LIST);
    struct jj_value *keys = keys_of(rt, s, c->a[0], jj_arg_true(c->a[2], false));
    struct jj_value last = {0};
    for (size_t i = 0; keys && i < s->n; i++)
        if (keys[i].type == JJ_UNDEFINED && jj_given(c->a[1]))
            keys[i] = c->a[1];
    struct jj_seq *sorted_keys = copy_of(
        rt, jj_sequence(&(struct jj_seq){.items = keys, .n = keys ? s->n : 0}), JJ_LIST);
    if (rt->failed)
        return (struct jj_value){0};
    jj_sort(rt, s, keys, false);
    jj_sort(rt, sorted_keys, keys, false);
    struct jj_seq *group = NULL;
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        if (!group || !jj_equal(rt, last, sorted_keys->items[i])) {
            last = sorted_keys->items[i];
            group = jj_seq_new(rt, JJ_LIST);
            jj_seq_add(rt, groups, jj_pair(rt, last, jj_sequence(group)));
        }
        jj_seq_add(rt, group, s->items[i]);
    }
    return jj_sequence(groups);
}

/* ---- parts ---- */

static void fill(struct jj_rt *rt, struct jj_seq *s, int64_t n, struct jj_value with)
{
    while (jj_given(with) && with.type != JJ_NONE && (int64_t)s->n < n && !rt->failed)
        jj_seq_add(rt, s, with);
}

static struct jj_value filter_batch(ARGS)
{
    const struct jj_seq *s = jj_iterate(rt, v);
    struct jj_seq *batches = jj_seq_new(rt, JJ_LAZY), *batch = NULL;
    int64_t n = jj_int_or(rt, c->a[0], 1);
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        if (!batch || (int64_t)batch->n >= n) {
            batch = jj_seq_new(rt, JJ_LIST);
            jj_seq_add(rt, batches, jj_sequence(batch));
        }
        jj_seq_add(rt, batch, s->items[i]);
    }
    if (batch)
        fill(rt, batch, n, c->a[1]);
    return jj_sequence(batches);
}

static struct jj_value filter_slice(ARGS)
{
    const struct jj_seq *s = jj_iterate(rt, v);
    struct jj_seq *slices = jj_seq_new(rt, JJ_LAZY);
    int64_t n = jj_int_or(rt, c->a[0], 1);
    if (n < 1)
        return jj_fail(rt, ERR_ARG, "slice: %lld parts", (long long)n);
    size_t at = 0, each = s->n / (size_t)n, more = s->n % (size_t)n;
    for (int64_t k = 0; k < n && jj_step(rt, 1); k++) {
        struct jj_seq *part = jj_seq_new(rt, JJ_LIST);
        size_t end = at + each + ((size_t)k < more);
        for (; at < end && !rt->failed; at++)
            jj_seq_add(rt, part, s->items[at]);
        if ((size_t)k >= more)
            fill(rt, part, (int64_t)each + 1, c->a[1]);
        jj_seq_add(rt, slices, jj_sequence(part));
    }
    return jj_sequence(slices);
}

/* ---- map, select ---- */

static const struct jj_value *named(const struct jj_args *args, const char *name)
{
    for (int i = 0; i < args->n_named; i++)
        if (jj_str_is(args->named[i].name, name))
            return &args->named[i].value;
    return NULL;
}

/* The arguments behind the first n. */
static struct jj_args rest_of(const struct jj_args *args, int n)
{
    struct jj_args rest = *args;
    rest.items = args->n > n ? args->items + n : NULL;
    rest.n = args->n > n ? args->n - n : 0;
    return rest;
}

static struct jj_value map_attribute(struct jj_rt *rt, struct jj_value item,
                                     const struct jj_args *args)
{
    const struct jj_value *otherwise = named(args, "default");
    struct jj_value v = jj_path(rt, item, *named(args, "attribute"));
    return v.type == JJ_UNDEFINED && otherwise ? *otherwise : v;
}

static struct jj_value map_filter(struct jj_rt *rt, struct jj_value item,
                                  const struct jj_args *args)
{
    const struct jj_str *name = args->n ? jj_arg_str(rt, args->items[0]) : &jj_empty;
    const struct jj_builtin *row = jj_builtin_find(jj_filters, name);
    struct jj_args rest = rest_of(args, 1);
    if (!row)
        return jj_fail(rt, ERR_ARG, "map: no filter named '%.*s'",
                       (int)(name->n < 100 ? name->n : 100), name->bytes);
    return jj_builtin_call(rt, row, item, &rest);
}

/* Nothing at all may be mapped and selected from, too. */
static const struct jj_seq *items_or_none(struct jj_rt *rt, struct jj_value v)
{
    return jj_truth(v) ? jj_iterate(rt, v) : jj_seq_new(rt, JJ_LIST);
}

static struct jj_value filter_map(ARGS)
{
    const struct jj_seq *s = items_or_none(rt, v);
    struct jj_seq *mapped = jj_seq_new(rt, JJ_LAZY);
    bool attribute = named(c->args, "attribute") != NULL;
    if (!jj_enter(rt))
        return (struct jj_value){0};
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++)
        jj_seq_add(rt, mapped,
                   attribute ? map_attribute(rt, s->items[i], c->args)
                             : map_filter(rt, s->items[i], c->args));
    jj_leave(rt);
    return jj_sequence(mapped);
}

/* The test named by the first argument, with the others; without any: is it true? */
static struct jj_value call_test(struct jj_rt *rt, struct jj_value v, const struct jj_args *args)
{
    if (!args->n)
        return v;
    const struct jj_str *name = jj_arg_str(rt, args->items[0]);
    const struct jj_builtin *row = jj_builtin_find(jj_tests, name);
    struct jj_args rest = rest_of(args, 1);
    if (!row)
        return jj_fail(rt, ERR_ARG, "No test named '%.*s' found.",
                       (int)(name->n < 100 ? name->n : 100), name->bytes);
    return jj_builtin_call(rt, row, v, &rest);
}

static struct jj_value select_items(struct jj_rt *rt, struct jj_value v, const struct jj_args *args,
                                    bool by_attribute, bool wanted)
{
    const struct jj_seq *s = items_or_none(rt, v);
    struct jj_seq *selected = jj_seq_new(rt, JJ_LAZY);
    struct jj_args test = rest_of(args, by_attribute ? 1 : 0);
    if (by_attribute && !args->n)
        return jj_fail(rt, ERR_ARG, "selectattr and rejectattr need the name of an attribute");
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        struct jj_value item = s->items[i];
        if (by_attribute)
            item = jj_path(rt, item, args->items[0]);
        if (jj_truth(call_test(rt, item, &test)) == wanted)
            jj_seq_add(rt, selected, s->items[i]);
    }
    return jj_sequence(selected);
}

static struct jj_value filter_select(ARGS)
{
    return select_items(rt, v, c->args, false, true);
}

static struct jj_value filter_reject(ARGS)
{
    return select_items(rt, v, c->args, false, false);
}

static struct jj_value filter_selectattr(ARGS)
{
    return select_items(rt, v, c->args, true, true);
}

static struct jj_value filter_rejectattr(ARGS)
{
    return select_items(rt, v, c->args, true, false);
}

const struct jj_builtin jj_filters_seq[] = {
    {"first", "", 0, filter_first},
    {"last", "", 0, filter_last},
    {"list", "", 0, filter_list},
    {"reverse", "", 0, filter_reverse},
    {"items", "", 0, filter_items},
    {"sort", "reverse,case_sensitive,attribute", 0, filter_sort},
    {"dictsort", "case_sensitive,by,reverse", 0, filter_dictsort},
    {"unique", "case_sensitive,attribute", 0, filter_unique},
    {"min", "case_sensitive,attribute", 0, filter_min},
    {"max", "case_sensitive,attribute", 0, filter_max},
    {"sum", "attribute,start", 0, filter_sum},
    {"groupby", "attribute,default,case_sensitive", 1, filter_groupby},
    {"batch", "linecount,fill_with", 1, filter_batch},
    {"slice", "slices,fill_with", 1, filter_slice},
    {"map", NULL, 0, filter_map},
    {"select", NULL, 0, filter_select},
    {"reject", NULL, 0, filter_reject},
    {"selectattr", NULL, 0, filter_selectattr},
    {"rejectattr", NULL, 0, filter_rejectattr},
    {0},
};
