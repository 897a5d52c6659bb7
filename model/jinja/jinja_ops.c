#include "jinja_eval.h"

#include <math.h>

static struct jj_value op_fail(struct jj_rt *rt, enum jj_op op, struct jj_value a,
                               struct jj_value b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (!jj_check_defined(rt, a) || !jj_check_defined(rt, b))
        return jj_fail(rt, ERR_ARG, "a value is undefined");
    return jj_fail(rt, ERR_ARG, "unsupported operand types for %s: '%s' and '%s'", names[op],
                   jj_type_name(a), jj_type_name(b));
}

/* ---- numbers ---- */

static struct jj_value too_large(struct jj_rt *rt)
{
    return jj_fail(rt, ERR_LIMIT, "an integer does not fit in 64 bits");
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static struct jj_value int_power(struct jj_rt *rt, int64_t a, int64_t b)
{
    int64_t result = 1;
    if (b < 0)
        return jj_float(pow((double)a, (double)b));
    for (; b > 0; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result))
            return too_large(rt);
        if (b > 1 && __builtin_mul_overflow(a, a, &a))
            return too_large(rt);
    }
    return jj_int(result);
}

static struct jj_value int_divide(struct jj_rt *rt, enum jj_op op, int64_t a, int64_t b)
{
    if (b == 0)
        return jj_fail(rt, ERR_ARG, "division by zero");
    if (op == JJ_DIVIDE)
        return jj_float((double)a / (double)b);
    if (b == -1)
        return op == JJ_MODULO ? jj_int(0) : jj_negate(rt, jj_int(a));
    int64_t q = floor_div(a, b);
    return jj_int(op == JJ_MODULO ? a - q * b : q);
}

static struct jj_value int_op(struct jj_rt *rt, enum jj_op op, int64_t a, int64_t b)
{
    int64_t r;
    bool over;
    switch (op) {
    case JJ_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JJ_SUBTRACT:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JJ_MULTIPLY:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JJ_POWER:
        return int_power(rt, a, b);
    default:
        return int_divide(rt, op, a, b);
    }
    return over ? too_large(rt) : jj_int(r);
}

static struct jj_value real_op(struct jj_rt *rt, enum jj_op op, double a, double b)
{
    if (b == 0 && (op == JJ_DIVIDE || op == JJ_FLOOR_DIVIDE || op == JJ_MODULO))
        return jj_fail(rt, ERR_ARG, "division by zero");
    switch (op) {
    case JJ_ADD:
        return jj_float(a + b);
    case JJ_SUBTRACT:
        return jj_float(a - b);
    case JJ_MULTIPLY:
        return jj_float(a * b);
    case JJ_DIVIDE:
        return jj_float(a / b);
    case JJ_FLOOR_DIVIDE:
        return jj_float(floor(a / b));
    case JJ_MODULO:
        a = fmod(a, b);
        return jj_float(a != 0 && (a < 0) != (b < 0) ? a + b : a);
    default:
        return jj_float(pow(a, b));
    }
}

struct jj_value jj_negate(struct jj_rt *rt, struct jj_value v)
{
    int64_t i;
    if (v.type == JJ_FLOAT)
        return jj_float(-v.real);
    if (jj_as_int(v, &i))
        return i == INT64_MIN ? too_large(rt) : jj_int(-i);
    if (!jj_check_defined(rt, v))
        return v;
    return jj_fail(rt, ERR_ARG, "bad operand type for unary -: '%s'", jj_type_name(v));
}

/* ---- strings and sequences ---- */

static const struct jj_str *as_markup(struct jj_rt *rt, const struct jj_str *s)
{
    struct jj_str *copy = jj_alloc(rt, 1, sizeof *copy);
    if (!copy)
        return &jj_empty;
    *copy = *s;
    copy->markup = true;
    return copy;
}

static struct jj_value add_strings(struct jj_rt *rt, const struct jj_str *a, const struct jj_str *b)
{
    if (!a->markup && !b->markup)
        return jj_string(jj_str_concat(rt, a, b));
    a = a->markup ? a : jj_str_escape(rt, a);
    b = b->markup ? b : jj_str_escape(rt, b);
    return jj_string(as_markup(rt, jj_str_concat(rt, a, b)));
}

static void seq_append(struct jj_rt *rt, struct jj_seq *to, const struct jj_seq *from)
{
    size_t n = from->n;
    for (size_t i = 0; i < n && !rt->failed; i++)
        jj_seq_add(rt, to, from->items[i]);
}

static struct jj_value add_seqs(struct jj_rt *rt, const struct jj_seq *a, const struct jj_seq *b)
{
    struct jj_seq *sum = jj_seq_new(rt, a->kind);
    seq_append(rt, sum, a);
    seq_append(rt, sum, b);
    return jj_sequence(sum);
}

static struct jj_value repeat(struct jj_rt *rt, struct jj_value v, int64_t times)
{
    if (v.type == JJ_STR)
        return jj_string(jj_str_repeat(rt, v.str, times));
    struct jj_seq *s = jj_seq_new(rt, v.seq->kind);
    for (int64_t i = 0; i < times && jj_step(rt, 1); i++)
        seq_append(rt, s, v.seq);
    return jj_sequence(s);
}

static bool is_repeatable(struct jj_value v)
{
    return v.type == JJ_STR || (v.type == JJ_SEQ && v.seq->kind <= JJ_TUPLE);
}

struct jj_value jj_arithmetic(struct jj_rt *rt, enum jj_op op, struct jj_value a, struct jj_value b)
{
    int64_t i, j;
    if (jj_as_int(a, &i) && jj_as_int(b, &j))
        return int_op(rt, op, i, j);
    if (jj_is_number(a) && jj_is_number(b))
        return real_op(rt, op, jj_as_real(a), jj_as_real(b));
    if (a.type == JJ_STR && op == JJ_MODULO)
        return jj_format_percent(rt, a.str, b);
    if (op == JJ_ADD && a.type == JJ_STR && b.type == JJ_STR)
        return add_strings(rt, a.str, b.str);
    if (op == JJ_ADD && is_repeatable(a) && is_repeatable(b) && a.type == b.type &&
        a.seq->kind == b.seq->kind)
        return add_seqs(rt, a.seq, b.seq);
    if (op == JJ_MULTIPLY && is_repeatable(a) && jj_as_int(b, &j))
        return repeat(rt, a, j);
    if (op == JJ_MULTIPLY && is_repeatable(b) && jj_as_int(a, &i))
        return repeat(rt, b, i);
    return op_fail(rt, op, a, b);
}

/* ---- relations ---- */

static bool seq_contains(struct jj_rt *rt, const struct jj_seq *s, struct jj_value v)
{
    for (size_t i = s->kind == JJ_LAZY ? s->next : 0; i < s->n && jj_step(rt, 1); i++)
        if (jj_equal(rt, s->items[i], v))
            return true;
    return false;
}

bool jj_contains(struct jj_rt *rt, struct jj_value container, struct jj_value v)
{
    switch (container.type) {
    case JJ_STR:
        if (v.type == JJ_STR)
            return jj_str_find(rt, container.str, v.str, 0, container.str->n) >= 0;
        if (jj_check_defined(rt, v))
            jj_fail(rt, ERR_ARG, "'in <string>' requires string as left operand, not %s",
                    jj_type_name(v));
        return false;
    case JJ_SEQ:
        return seq_contains(rt, container.seq, v);
    case JJ_DICT:
        return jj_dict_find(rt, container.dict, v) != NULL;
    case JJ_UNDEFINED:
        return false;
    default:
        jj_fail(rt, ERR_ARG, "argument of type '%s' is not iterable", jj_type_name(container));
        return false;
    }
}

bool jj_relation(struct jj_rt *rt, enum jj_op op, struct jj_value a, struct jj_value b)
{
    switch (op) {
    case JJ_EQ:
        return jj_equal(rt, a, b);
    case JJ_NE:
        return !jj_equal(rt, a, b);
    case JJ_LT:
        return jj_compare(rt, a, b) < 0;
    case JJ_LE:
        return jj_compare(rt, a, b) <= 0;
    case JJ_GT:
        return jj_compare(rt, a, b) > 0;
    case JJ_GE:
        return jj_compare(rt, a, b) >= 0;
    case JJ_IN:
        return jj_contains(rt, b, a);
    default:
        return !jj_contains(rt, b, a);
    }
}
