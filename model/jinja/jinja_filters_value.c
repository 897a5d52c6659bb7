#include "jinja_eval.h"
#include "jinja_json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Filters on single values: numbers, defaults, JSON. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static struct jj_value filter_default(ARGS)
{
    struct jj_value otherwise = jj_given(c->a[0]) ? c->a[0] : jj_string(&jj_empty);
    bool missing = v.type == JJ_UNDEFINED || v.type == JJ_ABSENT;
    (void)rt;
    return missing || (jj_arg_true(c->a[1], false) && !jj_truth(v)) ? otherwise : v;
}

static struct jj_value filter_length(ARGS)
{
    (void)c;
    return jj_int(jj_length(rt, v));
}

/* The trimmed text of a string without '_', zero-terminated; false when it is too long for a
 * number. */
static bool number_text(const struct jj_str *s, char out[64])
{
    size_t n = 0, from = 0, to = s->n;
    while (from < to && jj_char_is_space((unsigned char)s->bytes[from]))
        from++;
    while (to > from && jj_char_is_space((unsigned char)s->bytes[to - 1]))
        to--;
    for (; from < to && n < 63; from++)
        if (s->bytes[from] != '_')
            out[n++] = s->bytes[from];
    out[n] = '\0';
    return from == to && n > 0;
}

static bool parse_real(const struct jj_str *s, double *out)
{
    char text[64], *end;
    /* Python reads no hexadecimal floats. */
    if (!number_text(s, text) || strpbrk(text, "xXpP"))
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

static bool parse_int(const struct jj_str *s, int base, int64_t *out)
{
    char text[64], *end;
    if (base < 0 || base > 36 || base == 1 || !number_text(s, text))
        return false;
    char *digits = text + (*text == '-' || *text == '+');
    char prefix = digits[0] == '0' ? (char)(digits[1] | 0x20) : 0;
    if ((base == 2 && prefix == 'b') || (base == 8 && prefix == 'o'))
        memset(digits, '0', 2); /* strtoll knows the prefix 0x only */
    errno = 0;
    *out = strtoll(text, &end, base);
    return *end == '\0' && !errno;
}

static bool real_to_int(double d, int64_t *out)
{
    if (!(d > -0x1p63 && d < 0x1p63))
        return false;
    *out = (int64_t)d;
    return true;
}

static struct jj_value filter_int(ARGS)
{
    int64_t i;
    double d;
    int base = (int)jj_int_or(rt, c->a[1], 10);
    if (!jj_check_defined(rt, v))
        return v;
    if (jj_as_int(v, &i) || (v.type == JJ_FLOAT && real_to_int(v.real, &i)))
        return jj_int(i);
    if (v.type == JJ_STR && parse_int(v.str, base, &i))
        return jj_int(i);
    if (v.type == JJ_STR && parse_real(v.str, &d) && real_to_int(d, &i))
        return jj_int(i);
    return jj_given(c->a[0]) ? c->a[0] : jj_int(0);
}

static struct jj_value filter_float(ARGS)
{
    double d;
    if (!jj_check_defined(rt, v))
        return v;
    if (jj_is_number(v))
        return jj_float(jj_as_real(v));
    if (v.type == JJ_STR && parse_real(v.str, &d))
        return jj_float(d);
    return jj_given(c->a[0]) ? c->a[0] : jj_float(0);
}

static struct jj_value filter_abs(ARGS)
{
    int64_t i;
    (void)c;
    if (v.type == JJ_FLOAT)
        return jj_float(fabs(v.real));
    return jj_as_int(v, &i) && i >= 0 ? jj_int(i) : jj_negate(rt, v);
}

/* Correct to the last digit, as Python rounds: by way of decimal text. */
static double round_half_even(double d, int64_t precision)
{
    char text[400];
    if (precision > 17 || !isfinite(d) || fabs(d) >= 0x1p53)
        return d;
    if (precision < 0) {
        double scale = pow(10, (double)(precision < -300 ? 300 : -precision));
        return nearbyint(d / scale) * scale;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, d);
    return strtod(text, NULL);
}

/* An integer stays one. */
static struct jj_value round_common(struct jj_value v, int64_t precision)
{
    int64_t i = 0;
    bool is_int = jj_as_int(v, &i);
    if (is_int && precision >= 0)
        return jj_int(i);
    double d = round_half_even(jj_as_real(v), precision);
    return is_int && fabs(d) < 0x1p62 ? jj_int((int64_t)d) : jj_float(d);
}

static struct jj_value filter_round(ARGS)
{
    int64_t precision = jj_int_or(rt, c->a[0], 0);
    const struct jj_str *method = jj_arg_str_or_null(rt, c->a[1]);
    if (!jj_is_number(v) && jj_check_defined(rt, v))
        return jj_fail(rt, ERR_ARG, "'%s' cannot be rounded", jj_type_name(v));
    if (precision > 300 || precision < -300)
        return jj_fail(rt, ERR_ARG, "round: %lld digits", (long long)precision);
    double scale = pow(10, (double)precision), d = jj_as_real(v);
    if (!method || jj_str_is(method, "common"))
        return round_common(v, precision);
    if (jj_str_is(method, "ceil"))
        return jj_float(ceil(d * scale) / scale);
    if (jj_str_is(method, "floor"))
        return jj_float(floor(d * scale) / scale);
    return jj_fail(rt, ERR_ARG, "method must be common, ceil or floor");
}

static struct jj_value filter_attr(ARGS)
{
    return jj_attribute(rt, v, jj_arg_str(rt, c->a[0]));
}

/* ---- JSON ---- */

static const struct jj_str *json_indent(struct jj_rt *rt, struct jj_value v)
{
    struct jj_buf b = {0};
    if (v.type == JJ_STR || v.type == JJ_NONE || !jj_given(v))
        return jj_arg_str_or_null(rt, v);
    int64_t n = jj_int_or(rt, v, 0);
    jj_buf_fill(rt, &b, ' ', n < 0 ? 0 : n > 1000 ? 1000 : (size_t)n, 0);
    return jj_buf_str(rt, &b);
}

static struct jj_value filter_tojson(ARGS)
{
    static const struct jj_str comma = {.bytes = ", ", .n = 2}, colon = {.bytes = ": ", .n = 2};
    static const struct jj_str tight = {.bytes = ",", .n = 1};
    struct jj_json_style style = {.ensure_ascii = jj_arg_true(c->a[0], false),
                                  .sort_keys = jj_arg_true(c->a[3], false),
                                  .indent = json_indent(rt, c->a[1])};
    style.item = style.indent ? &tight : &comma;
    style.key = &colon;
    if (jj_truth(c->a[2])) {
        const struct jj_seq *pair = jj_iterate(rt, c->a[2]);
        if (pair->n != 2)
            return jj_fail(rt, ERR_ARG, "tojson: separators must be a pair");
        style.item = jj_arg_str(rt, pair->items[0]);
        style.key = jj_arg_str(rt, pair->items[1]);
    }
    struct jj_buf b = {0};
    jj_buf_add_json(rt, &b, v, &style);
    return jj_string(jj_buf_str(rt, &b));
}

static struct jj_value filter_from_json(ARGS)
{
    (void)c;
    return jj_json_parse(rt, jj_arg_str(rt, v));
}

const struct jj_builtin jj_filters_value[] = {
    {"default", "default_value,boolean", 0, filter_default},
    {"d", "default_value,boolean", 0, filter_default},
    {"length", "", 0, filter_length},
    {"count", "", 0, filter_length},
    {"int", "default,base", 0, filter_int},
    {"float", "default", 0, filter_float},
    {"abs", "", 0, filter_abs},
    {"round", "precision,method", 0, filter_round},
    {"attr", "name", 1, filter_attr},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, filter_tojson},
    {"from_json", "", 0, filter_from_json},
    {0},
};
