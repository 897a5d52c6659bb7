#include "jinja_eval.h"

const struct jj_builtin *const jj_filters[] = {jj_filters_text, jj_filters_value, jj_filters_seq,
                                               NULL};
const struct jj_builtin *const jj_tests[] = {jj_tests_table, NULL};
const struct jj_builtin *const jj_functions[] = {jj_functions_table, NULL};

const struct jj_str *jj_arg_str(struct jj_rt *rt, struct jj_value v)
{
    if (v.type == JJ_STR)
        return v.str;
    if (jj_check_defined(rt, v))
        jj_fail(rt, ERR_ARG, "'%s' where a string is needed", jj_type_name(v));
    return &jj_empty;
}

const struct jj_str *jj_arg_str_or_null(struct jj_rt *rt, struct jj_value v)
{
    return v.type == JJ_ABSENT || v.type == JJ_NONE ? NULL : jj_arg_str(rt, v);
}

bool jj_arg_true(struct jj_value v, bool otherwise)
{
    return jj_given(v) ? jj_truth(v) : otherwise;
}

int64_t jj_length(struct jj_rt *rt, struct jj_value v)
{
    if (v.type == JJ_STR)
        return (int64_t)v.str->chars;
    if (v.type == JJ_SEQ && v.seq->kind != JJ_LAZY)
        return (int64_t)v.seq->n;
    if (v.type == JJ_DICT)
        return (int64_t)v.dict->n;
    if (v.type != JJ_UNDEFINED)
        jj_fail(rt, ERR_ARG, "object of type '%s' has no len()", jj_type_name(v));
    return 0;
}

static bool all_digits(const struct jj_str *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->bytes[i] < '0' || s->bytes[i] > '9')
            return false;
    return s->n > 0 && s->n < 10;
}

/* One part of a path: digits are an index. */
static struct jj_value path_step(struct jj_rt *rt, struct jj_value v, const struct jj_str *part)
{
    int64_t index = 0;
    if (!all_digits(part))
        return jj_item(rt, v, jj_string(part));
    for (size_t i = 0; i < part->n; i++)
        index = index * 10 + (part->bytes[i] - '0');
    return jj_item(rt, v, jj_int(index));
}

struct jj_value jj_path(struct jj_rt *rt, struct jj_value v, struct jj_value path)
{
    static const struct jj_str dot = {.bytes = ".", .n = 1, .chars = 1};
    if (path.type != JJ_STR)
        return jj_item(rt, v, path);
    const struct jj_seq *parts = jj_str_split(rt, path.str, &dot, -1);
    for (size_t i = 0; i < parts->n && !rt->failed; i++)
        v = path_step(rt, v, parts->items[i].str);
    return v;
}

struct jj_value jj_fold(struct jj_rt *rt, struct jj_value v, bool case_sensitive)
{
    return v.type == JJ_STR && !case_sensitive ? jj_string(jj_str_case(rt, v.str, JJ_LOWER)) : v;
}

/* ---- sort: merges runs from the bottom up ---- */

struct sorter {
    struct jj_rt *rt;
    const struct jj_value *keys;
    bool reverse;
};

static bool goes_first(const struct sorter *s, size_t a, size_t b)
{
    /* Equality first, as when Python compares lists of keys: two undefined ones have no order. */
    if (jj_equal(s->rt, s->keys[a], s->keys[b]))
        return true;
    int order = jj_compare(s->rt, s->keys[a], s->keys[b]);
    return s->reverse ? order >= 0 : order <= 0;
}

static void merge(const struct sorter *s, const size_t *from, size_t *to, size_t low, size_t middle,
                  size_t high)
{
    size_t a = low, b = middle;
    for (size_t k = low; k < high; k++) {
        bool left = a < middle && (b >= high || goes_first(s, from[a], from[b]));
        to[k] = left ? from[a++] : from[b++];
    }
}

static size_t *sorted_order(const struct sorter *s, size_t n)
{
    size_t *order = jj_alloc(s->rt, n, sizeof *order);
    size_t *other = jj_alloc(s->rt, n, sizeof *other);
    if (!order || !other)
        return NULL;
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t width = 1; width < n && jj_step(s->rt, n); width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n;
            size_t high = low + 2 * width < n ? low + 2 * width : n;
            merge(s, order, other, low, middle, high);
        }
        size_t *swap = order;
        order = other;
        other = swap;
    }
    return s->rt->failed ? NULL : order;
}

void jj_sort(struct jj_rt *rt, struct jj_seq *s, const struct jj_value *keys, bool reverse)
{
    struct sorter sorter = {.rt = rt, .keys = keys ? keys : s->items, .reverse = reverse};
    if (s->n < 2)
        return;
    const size_t *order = sorted_order(&sorter, s->n);
    struct jj_value *items = jj_alloc(rt, s->n, sizeof *items);
    if (!order || !items)
        return;
    for (size_t i = 0; i < s->n; i++)
        items[i] = s->items[order[i]];
    s->items = items;
    s->cap = s->n;
}
