#include "jinja_eval.h"

/* `value is test`. */

#define TEST(name, expression)                                                                     \
    static struct jj_value test_##name(struct jj_rt *rt, struct jj_value v,                        \
                                       const struct jj_call *c)                                    \
    {                                                                                              \
        (void)rt;                                                                                  \
        (void)c;                                                                                   \
        return jj_bool(expression);                                                                \
    }

static bool is_iterable(struct jj_value v)
{
    return v.type == JJ_STR || v.type == JJ_SEQ || v.type == JJ_DICT || v.type == JJ_UNDEFINED;
}

static bool is_sequence(struct jj_value v)
{
    return is_iterable(v) &&
           (v.type != JJ_SEQ || v.seq->kind <= JJ_TUPLE || v.seq->kind == JJ_RANGE);
}

static bool is_same(struct jj_rt *rt, struct jj_value a, struct jj_value b)
{
    if (a.type != b.type)
        return false;
    if (a.type == JJ_SEQ)
        return a.seq == b.seq;
    return a.type == JJ_DICT ? a.dict == b.dict : jj_equal(rt, a, b);
}

static bool is_multiple(struct jj_rt *rt, struct jj_value v, struct jj_value by, int64_t rest)
{
    struct jj_value r = jj_arithmetic(rt, JJ_MODULO, v, by);
    return jj_equal(rt, r, jj_int(rest));
}

static bool has_case(struct jj_rt *rt, struct jj_value v, const char *method)
{
    struct jj_str name = {.bytes = method, .n = strlen(method)};
    struct jj_value text = jj_string(jj_to_str(rt, v));
    const struct jj_args none = {0};
    return jj_truth(jj_builtin_call(rt, jj_method_find(text, &name), text, &none));
}

static bool is_row(const struct jj_builtin *const *tables, struct jj_value name)
{
    return name.type == JJ_STR && jj_builtin_find(tables, name.str);
}

TEST(defined, v.type != JJ_UNDEFINED && v.type != JJ_ABSENT)
TEST(undefined, v.type == JJ_UNDEFINED || v.type == JJ_ABSENT)
TEST(none, v.type == JJ_NONE)
TEST(boolean, v.type == JJ_BOOL)
TEST(true, v.type == JJ_BOOL && v.boolean)
TEST(false, v.type == JJ_BOOL && !v.boolean)
TEST(integer, v.type == JJ_INT)
TEST(float, v.type == JJ_FLOAT)
TEST(number, jj_is_number(v))
TEST(string, v.type == JJ_STR)
TEST(mapping, v.type == JJ_DICT)
TEST(iterable, is_iterable(v))
TEST(sequence, is_sequence(v))
TEST(callable, v.type == JJ_CALLABLE || v.type == JJ_LOOP || v.type == JJ_UNDEFINED)
TEST(escaped, v.type == JJ_STR && v.str->markup)
TEST(odd, is_multiple(rt, v, jj_int(2), 1))
TEST(even, is_multiple(rt, v, jj_int(2), 0))
TEST(divisibleby, is_multiple(rt, v, c->a[0], 0))
TEST(lower, has_case(rt, v, "islower"))
TEST(upper, has_case(rt, v, "isupper"))
TEST(sameas, is_same(rt, v, c->a[0]))
TEST(eq, jj_relation(rt, JJ_EQ, v, c->a[0]))
TEST(ne, jj_relation(rt, JJ_NE, v, c->a[0]))
TEST(lt, jj_relation(rt, JJ_LT, v, c->a[0]))
TEST(le, jj_relation(rt, JJ_LE, v, c->a[0]))
TEST(gt, jj_relation(rt, JJ_GT, v, c->a[0]))
TEST(ge, jj_relation(rt, JJ_GE, v, c->a[0]))
TEST(in, jj_contains(rt, c->a[0], v))
TEST(filter, is_row(jj_filters, v))
TEST(test, is_row(jj_tests, v))

const struct jj_builtin jj_tests_table[] = {
    {"defined", "", 0, test_defined},
    {"undefined", "", 0, test_undefined},
    {"none", "", 0, test_none},
    {"boolean", "", 0, test_boolean},
    {"true", "", 0, test_true},
    {"false", "", 0, test_false},
    {"integer", "", 0, test_integer},
    {"float", "", 0, test_float},
    {"number", "", 0, test_number},
    {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},
    {"iterable", "", 0, test_iterable},
    {"sequence", "", 0, test_sequence},
    {"callable", "", 0, test_callable},
    {"escaped", "", 0, test_escaped},
    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},
    {"divisibleby", "num", 1, test_divisibleby},
    {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},
    {"sameas", "other", 1, test_sameas},
    {"eq", "other", 1, test_eq},
    {"equalto", "other", 1, test_eq},
    {"==", "other", 1, test_eq},
    {"ne", "other", 1, test_ne},
    {"!=", "other", 1, test_ne},
    {"lt", "other", 1, test_lt},
    {"lessthan", "other", 1, test_lt},
    {"<", "other", 1, test_lt},
    {"le", "other", 1, test_le},
    {"<=", "other", 1, test_le},
    {"gt", "other", 1, test_gt},
    {"greaterthan", "other", 1, test_gt},
    {">", "other", 1, test_gt},
    {"ge", "other", 1, test_ge},
    {">=", "other", 1, test_ge},
    {"in", "seq", 1, test_in},
    {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},
    {0},
};
