#include "jinja_str.h"

#include <math.h>

static const char *const type_names[JJ_N_TYPES] = {
    [JJ_ABSENT] = "Undefined",  [JJ_UNDEFINED] = "Undefined",
    [JJ_NONE] = "NoneType",     [JJ_BOOL] = "bool",
    [JJ_INT] = "int",           [JJ_FLOAT] = "float",
    [JJ_STR] = "str",           [JJ_SEQ] = "list",
    [JJ_DICT] = "dict",         [JJ_NAMESPACE] = "Namespace",
    [JJ_CALLABLE] = "function", [JJ_LOOP] = "LoopContext",
};
static const char *const seq_names[] = {"list",      "tuple",       "generator", "range",
                                        "dict_keys", "dict_values", "dict_items"};

const char *jj_type_name(struct jj_value v)
{
    return v.type == JJ_SEQ ? seq_names[v.seq->kind] : type_names[v.type];
}

bool jj_truth(struct jj_value v)
{
    switch (v.type) {
    case JJ_ABSENT:
    case JJ_UNDEFINED:
    case JJ_NONE:
        return false;
    case JJ_BOOL:
        return v.boolean;
    case JJ_INT:
        return v.integer != 0;
    case JJ_FLOAT:
        return v.real != 0;
    case JJ_STR:
        return v.str->n > 0;
    case JJ_SEQ:
        return v.seq->kind == JJ_LAZY || v.seq->n > 0;
    case JJ_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

bool jj_as_int(struct jj_value v, int64_t *out)
{
    if (v.type == JJ_BOOL)
        *out = v.boolean;
    else if (v.type == JJ_INT)
        *out = v.integer;
    else
        return false;
    return true;
}

double jj_as_real(struct jj_value v)
{
    int64_t i;
    return jj_as_int(v, &i) ? (double)i : v.type == JJ_FLOAT ? v.real : 0;
}

int64_t jj_int_or(struct jj_rt *rt, struct jj_value v, int64_t otherwise)
{
    int64_t i = otherwise;
    if (v.type != JJ_ABSENT && v.type != JJ_NONE && !jj_as_int(v, &i))
        jj_fail(rt, ERR_ARG, "'%s' where an integer is needed", jj_type_name(v));
    return i;
}

bool jj_check_defined(struct jj_rt *rt, struct jj_value v)
{
    if (v.type != JJ_UNDEFINED && v.type != JJ_ABSENT)
        return true;
    const char *name = v.type == JJ_UNDEFINED ? v.hint : NULL;
    if (!name)
        jj_fail(rt, ERR_ARG, "a value is undefined");
    else if (v.owner)
        jj_fail(rt, ERR_ARG, "'%s object' has no attribute '%.200s'", type_names[v.owner], name);
    else
        jj_fail(rt, ERR_ARG, "'%.200s' is undefined", name);
    return false;
}

/* ---- equality and order ---- */

static int number_compare(struct jj_value a, struct jj_value b)
{
    int64_t i, j;
    if (jj_as_int(a, &i) && jj_as_int(b, &j))
        return (i > j) - (i < j);
    double x = jj_as_real(a), y = jj_as_real(b);
    return (x > y) - (x < y);
}

static bool seq_equal(struct jj_rt *rt, const struct jj_seq *a, const struct jj_seq *b)
{
    if (a == b)
        return true;
    if (a->kind != b->kind || a->kind == JJ_LAZY || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jj_equal(rt, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool dict_equal(struct jj_rt *rt, const struct jj_dict *a, const struct jj_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jj_value *other = jj_dict_find(rt, b, a->entries[i].key);
        if (!other || !jj_equal(rt, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool same_type_equal(struct jj_rt *rt, struct jj_value a, struct jj_value b)
{
    switch (a.type) {
    case JJ_ABSENT:
    case JJ_UNDEFINED:
    case JJ_NONE:
        return true;
    case JJ_STR:
        return jj_step_bytes(rt, a.str->n) && jj_str_equal(a.str, b.str);
    case JJ_SEQ:
        return seq_equal(rt, a.seq, b.seq);
    case JJ_DICT:
        return dict_equal(rt, a.dict, b.dict);
    case JJ_NAMESPACE:
        return a.dict == b.dict;
    case JJ_CALLABLE:
        return a.callable == b.callable;
    default:
        return a.loop == b.loop;
    }
}

bool jj_equal(struct jj_rt *rt, struct jj_value a, struct jj_value b)
{
    if (jj_is_number(a) && jj_is_number(b))
        return !isnan(jj_as_real(a)) && !isnan(jj_as_real(b)) && number_compare(a, b) == 0;
    if (a.type != b.type || !jj_enter(rt))
        return false;
    bool equal = same_type_equal(rt, a, b);
    jj_leave(rt);
    return equal;
}

static int seq_compare(struct jj_rt *rt, const struct jj_seq *a, const struct jj_seq *b)
{
    for (size_t i = 0; i < a->n && i < b->n && !rt->failed; i++)
        if (!jj_equal(rt, a->items[i], b->items[i]))
            return jj_compare(rt, a->items[i], b->items[i]);
    return (a->n > b->n) - (a->n < b->n);
}

int jj_compare(struct jj_rt *rt, struct jj_value a, struct jj_value b)
{
    if (jj_is_number(a) && jj_is_number(b))
        return number_compare(a, b);
    if (a.type == JJ_STR && b.type == JJ_STR) {
        jj_step_bytes(rt, a.str->n);
        return jj_str_compare(a.str, b.str);
    }
    bool ordered = a.type == JJ_SEQ && b.type == JJ_SEQ && a.seq->kind == b.seq->kind &&
                   a.seq->kind <= JJ_TUPLE;
    if (!ordered) {
        if (jj_check_defined(rt, a) && jj_check_defined(rt, b))
            jj_fail(rt, ERR_ARG, "'%s' and '%s' have no order", jj_type_name(a), jj_type_name(b));
        return 0;
    }
    if (!jj_enter(rt))
        return 0;
    int order = seq_compare(rt, a.seq, b.seq);
    jj_leave(rt);
    return order;
}

/* ---- sequences ---- */

struct jj_seq *jj_seq_new(struct jj_rt *rt, enum jj_seq_kind kind)
{
    /* Shared by failed renders of all threads, therefore never written: jj_seq_add does nothing
     * after a failure. */
    static const struct jj_seq none = {.kind = JJ_LIST};
    struct jj_seq *s = jj_alloc(rt, 1, sizeof *s);
    if (!s)
        return (struct jj_seq *)&none;
    s->kind = kind;
    return s;
}

void jj_seq_add(struct jj_rt *rt, struct jj_seq *s, struct jj_value v)
{
    if (!jj_step(rt, 1))
        return;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct jj_value *items = jj_alloc(rt, cap, sizeof *items);
        if (!items)
            return;
        if (s->n)
            memcpy(items, s->items, s->n * sizeof *items);
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = v;
}

struct jj_value jj_pair(struct jj_rt *rt, struct jj_value a, struct jj_value b)
{
    struct jj_seq *pair = jj_seq_new(rt, JJ_TUPLE);
    jj_seq_add(rt, pair, a);
    jj_seq_add(rt, pair, b);
    return jj_sequence(pair);
}

static struct jj_seq *lazy_take(struct jj_rt *rt, struct jj_seq *s)
{
    struct jj_seq *rest = jj_seq_new(rt, JJ_LIST);
    if (rt->failed)
        return rest;
    rest->items = s->items + s->next;
    rest->n = rest->cap = s->n - s->next;
    s->next = s->n;
    return rest;
}

struct jj_seq *jj_iterate(struct jj_rt *rt, struct jj_value v)
{
    switch (v.type) {
    case JJ_UNDEFINED:
        break;
    case JJ_STR:
        return jj_str_chars(rt, v.str);
    case JJ_SEQ:
        return v.seq->kind == JJ_LAZY && v.seq->n > 0 ? lazy_take(rt, v.seq) : v.seq;
    case JJ_DICT:
        return jj_dict_view(rt, v.dict, JJ_KEYS);
    default:
        jj_fail(rt, ERR_ARG, "'%s' object is not iterable", jj_type_name(v));
    }
    return jj_seq_new(rt, JJ_LIST);
}
