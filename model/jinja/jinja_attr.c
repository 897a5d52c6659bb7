#include "jinja_eval.h"

/* Attributes, items and slices, as jinja2 looks them up on Python's values. */

static struct jj_value missing(struct jj_rt *rt, struct jj_value v, const struct jj_str *name)
{
    /* A name of the template is followed by a zero byte, one made at run time is not. */
    char *hint = jj_alloc(rt, name->n + 1, 1);
    if (!hint)
        return (struct jj_value){0};
    memcpy(hint, name->bytes, name->n);
    struct jj_value none = jj_undefined(hint);
    none.owner = v.type;
    return none;
}

/* ---- loop ---- */

static struct jj_value loop_neighbour(const struct jj_loop *l, size_t index)
{
    return index < l->items->n ? l->items->items[index] : jj_undefined("there is no such item");
}

static bool loop_attribute(const struct jj_loop *l, const struct jj_str *name, struct jj_value *out)
{
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->n;
    struct {
        const char *name;
        struct jj_value v;
    } rows[] = {{"index", jj_int(i + 1)},
                {"index0", jj_int(i)},
                {"revindex", jj_int(n - i)},
                {"revindex0", jj_int(n - i - 1)},
                {"first", jj_bool(i == 0)},
                {"last", jj_bool(i + 1 == n)},
                {"length", jj_int(n)},
                {"depth", jj_int(l->depth + 1)},
                {"depth0", jj_int(l->depth)},
                {"previtem", loop_neighbour(l, l->index - 1)},
                {"nextitem", loop_neighbour(l, l->index + 1)}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (jj_str_is(name, rows[k].name)) {
            *out = rows[k].v;
            return true;
        }
    }
    return false;
}

static bool dict_attribute(struct jj_rt *rt, struct jj_value v, const struct jj_str *name,
                           struct jj_value *out)
{
    const struct jj_value *found = jj_dict_find(rt, v.dict, jj_string(name));
    if (found)
        *out = *found;
    return found != NULL;
}

static bool own_attribute(struct jj_rt *rt, struct jj_value v, const struct jj_str *name,
                          struct jj_value *out)
{
    if (v.type == JJ_LOOP)
        return loop_attribute(v.loop, name, out);
    if (v.type == JJ_DICT || v.type == JJ_NAMESPACE)
        return dict_attribute(rt, v, name, out);
    return false;
}

struct jj_value jj_attribute(struct jj_rt *rt, struct jj_value v, const struct jj_str *name)
{
    struct jj_value out;
    if (!jj_check_defined(rt, v))
        return (struct jj_value){0};
    /* Methods come first: {"items": 1}.items is the method, as in Python. */
    const struct jj_builtin *method = jj_method_find(v, name);
    if (method)
        return jj_bound(rt, method, v);
    return own_attribute(rt, v, name, &out) ? out : missing(rt, v, name);
}

/* ---- items ---- */

static bool resolve_index(int64_t i, size_t n, size_t *out)
{
    if (i < 0)
        i += (int64_t)n;
    *out = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

static struct jj_value char_at(struct jj_rt *rt, const struct jj_str *s, size_t index)
{
    int32_t code;
    jj_step_bytes(rt, s->n);
    size_t at = jj_str_offset(s, index);
    return jj_string(jj_str_slice(rt, s, at, jj_char_at(s->bytes, s->n, at, &code)));
}

static bool item_by_index(struct jj_rt *rt, struct jj_value v, int64_t i, struct jj_value *out)
{
    size_t at;
    if (v.type == JJ_STR && resolve_index(i, v.str->chars, &at))
        *out = char_at(rt, v.str, at);
    else if (v.type == JJ_SEQ && (v.seq->kind <= JJ_TUPLE || v.seq->kind == JJ_RANGE) &&
             resolve_index(i, v.seq->n, &at))
        *out = v.seq->items[at];
    else
        return false;
    return true;
}

struct jj_value jj_item(struct jj_rt *rt, struct jj_value v, struct jj_value key)
{
    struct jj_value out;
    int64_t i;
    if (!jj_check_defined(rt, v) || rt->failed)
        return (struct jj_value){0};
    uint64_t hash;
    if (v.type == JJ_DICT && jj_hash(key, &hash)) {
        const struct jj_value *found = jj_dict_find(rt, v.dict, key);
        if (found)
            return *found;
    } else if (jj_as_int(key, &i) && item_by_index(rt, v, i, &out)) {
        return out;
    }
    if (key.type == JJ_STR && v.type != JJ_DICT)
        return jj_attribute(rt, v, key.str);
    const struct jj_builtin *method = key.type == JJ_STR ? jj_method_find(v, key.str) : NULL;
    return method ? jj_bound(rt, method, v) : missing(rt, v, jj_to_str(rt, key));
}

/* ---- slices ---- */

struct range {
    int64_t from, to, step;
};

static int64_t clamp(int64_t i, int64_t low, int64_t high)
{
    return i < low ? low : i > high ? high : i;
}

static bool slice_range(struct jj_rt *rt, const struct jj_value bounds[3], size_t count,
                        struct range *r)
{
    int64_t n = (int64_t)count;
    r->step = jj_int_or(rt, bounds[2], 1);
    if (r->step == 0)
        jj_fail(rt, ERR_ARG, "slice step cannot be zero");
    bool back = r->step < 0;
    r->from = jj_int_or(rt, bounds[0], back ? n - 1 : 0);
    r->to = jj_int_or(rt, bounds[1], back ? -n - 1 : n);
    if (r->from < 0)
        r->from += n;
    if (r->to < 0)
        r->to += n;
    r->from = clamp(r->from, back ? -1 : 0, back ? n - 1 : n);
    r->to = clamp(r->to, back ? -1 : 0, back ? n - 1 : n);
    return !rt->failed;
}

static bool in_range(const struct range *r, int64_t i)
{
    return r->step > 0 ? i < r->to : i > r->to;
}

/* The next place, kept from overflowing: both ends of a range are far from the limits. */
static int64_t range_next(const struct range *r, int64_t i)
{
    int64_t next;
    return __builtin_add_overflow(i, r->step, &next) ? r->to : next;
}

static struct jj_value slice_seq(struct jj_rt *rt, const struct jj_seq *s, const struct range *r)
{
    struct jj_seq *part = jj_seq_new(rt, s->kind);
    for (int64_t i = r->from; in_range(r, i) && !rt->failed; i = range_next(r, i))
        jj_seq_add(rt, part, s->items[i]);
    return jj_sequence(part);
}

static struct jj_value slice_str(struct jj_rt *rt, const struct jj_str *s, const struct range *r)
{
    struct jj_buf b = {0};
    jj_step_bytes(rt, s->n);
    if (r->step == 1) {
        if (r->from >= r->to)
            return jj_string(&jj_empty);
        size_t from = jj_str_offset(s, (size_t)r->from), to = jj_str_offset(s, (size_t)r->to);
        return jj_string(jj_str_slice(rt, s, from, to - from));
    }
    const struct jj_seq *chars = jj_str_chars(rt, s);
    for (int64_t i = r->from; in_range(r, i) && jj_step(rt, 1); i = range_next(r, i))
        jj_buf_add_str(rt, &b, chars->items[i].str);
    return jj_string(jj_buf_str(rt, &b));
}

struct jj_value jj_slice(struct jj_rt *rt, struct jj_value v, const struct jj_value bounds[3])
{
    struct range r;
    if (!jj_check_defined(rt, v))
        return (struct jj_value){0};
    if (v.type == JJ_STR && slice_range(rt, bounds, v.str->chars, &r))
        return slice_str(rt, v.str, &r);
    if (v.type == JJ_SEQ && (v.seq->kind <= JJ_TUPLE || v.seq->kind == JJ_RANGE) &&
        slice_range(rt, bounds, v.seq->n, &r))
        return slice_seq(rt, v.seq, &r);
    return jj_fail(rt, ERR_ARG, "'%s' object is not subscriptable", jj_type_name(v));
}
