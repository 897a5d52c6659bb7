#include "jinja_eval.h"

#include <utf8proc.h>

/* Methods of Python's str. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static struct jj_value str_strip(ARGS)
{
    return jj_string(jj_str_strip(rt, v.str, jj_arg_str_or_null(rt, c->a[0]), JJ_LEFT | JJ_RIGHT));
}

static struct jj_value str_lstrip(ARGS)
{
    return jj_string(jj_str_strip(rt, v.str, jj_arg_str_or_null(rt, c->a[0]), JJ_LEFT));
}

static struct jj_value str_rstrip(ARGS)
{
    return jj_string(jj_str_strip(rt, v.str, jj_arg_str_or_null(rt, c->a[0]), JJ_RIGHT));
}

static struct jj_value str_split(ARGS)
{
    return jj_sequence(
        jj_str_split(rt, v.str, jj_arg_str_or_null(rt, c->a[0]), jj_int_or(rt, c->a[1], -1)));
}

static struct jj_value str_rsplit(ARGS)
{
    return jj_sequence(
        jj_str_rsplit(rt, v.str, jj_arg_str_or_null(rt, c->a[0]), jj_int_or(rt, c->a[1], -1)));
}

static struct jj_value str_splitlines(ARGS)
{
    return jj_sequence(jj_str_lines(rt, v.str, jj_arg_true(c->a[0], false)));
}

static struct jj_value three(struct jj_rt *rt, const struct jj_str *a, const struct jj_str *b,
                             const struct jj_str *d)
{
    struct jj_seq *parts = jj_seq_new(rt, JJ_TUPLE);
    jj_seq_add(rt, parts, jj_string(a));
    jj_seq_add(rt, parts, jj_string(b));
    jj_seq_add(rt, parts, jj_string(d));
    return jj_sequence(parts);
}

static struct jj_value cut_at(struct jj_rt *rt, const struct jj_str *s, int64_t at,
                              const struct jj_str *sep)
{
    size_t behind = (size_t)at + sep->n;
    /* The middle is the found text, not what was looked for: the marks differ. */
    return three(rt, jj_str_slice(rt, s, 0, (size_t)at), jj_str_slice(rt, s, (size_t)at, sep->n),
                 jj_str_slice(rt, s, behind, s->n - behind));
}

static const struct jj_str *separator(struct jj_rt *rt, const struct jj_call *c)
{
    const struct jj_str *sep = jj_arg_str(rt, c->a[0]);
    if (!sep->n)
        jj_fail(rt, ERR_ARG, "empty separator");
    return sep;
}

static struct jj_value str_partition(ARGS)
{
    const struct jj_str *sep = separator(rt, c);
    int64_t at = jj_str_find(rt, v.str, sep, 0, v.str->n);
    return at < 0 ? three(rt, v.str, &jj_empty, &jj_empty) : cut_at(rt, v.str, at, sep);
}

static struct jj_value str_rpartition(ARGS)
{
    const struct jj_str *sep = separator(rt, c);
    int64_t at = jj_str_rfind(rt, v.str, sep, 0, v.str->n);
    return at < 0 ? three(rt, &jj_empty, &jj_empty, v.str) : cut_at(rt, v.str, at, sep);
}

/* ---- places ---- */

/* The bytes [from, to) of the arguments start and end; false when start is behind the end. */
static bool span(struct jj_rt *rt, const struct jj_str *s, const struct jj_call *c, int first,
                 size_t *from, size_t *to)
{
    int64_t n = (int64_t)s->chars;
    int64_t start = jj_int_or(rt, c->a[first], 0), end = jj_int_or(rt, c->a[first + 1], n);
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    end = end < 0 ? (end + n < 0 ? 0 : end + n) : end > n ? n : end;
    if (start > n || start > end)
        return false;
    jj_step_bytes(rt, s->n);
    *from = jj_str_offset(s, (size_t)start);
    *to = jj_str_offset(s, (size_t)end);
    return !rt->failed;
}

static bool any_affix(struct jj_rt *rt, const struct jj_str *s, struct jj_value v,
                      bool (*has)(const struct jj_str *, const struct jj_str *))
{
    if (!jj_is_seq(v, JJ_TUPLE))
        return has(s, jj_arg_str(rt, v));
    for (size_t i = 0; i < v.seq->n && jj_step(rt, 1); i++)
        if (has(s, jj_arg_str(rt, v.seq->items[i])))
            return true;
    return false;
}

static struct jj_value affix(struct jj_rt *rt, const struct jj_str *s, const struct jj_call *c,
                             bool (*has)(const struct jj_str *, const struct jj_str *))
{
    size_t from, to;
    bool inside = span(rt, s, c, 1, &from, &to);
    return jj_bool(inside && any_affix(rt, jj_str_slice(rt, s, from, to - from), c->a[0], has));
}

static struct jj_value str_startswith(ARGS)
{
    return affix(rt, v.str, c, jj_str_has_prefix);
}

static struct jj_value str_endswith(ARGS)
{
    return affix(rt, v.str, c, jj_str_has_suffix);
}

typedef int64_t finder(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *what,
                       size_t from, size_t to);

static int64_t find_char(struct jj_rt *rt, const struct jj_str *s, const struct jj_call *c,
                         finder *find)
{
    size_t from, to;
    const struct jj_str *what = jj_arg_str(rt, c->a[0]);
    int64_t at = span(rt, s, c, 1, &from, &to) ? find(rt, s, what, from, to) : -1;
    return at < 0 ? -1 : (int64_t)jj_str_count_chars(s->bytes, (size_t)at);
}

static struct jj_value str_find(ARGS)
{
    return jj_int(find_char(rt, v.str, c, jj_str_find));
}

static struct jj_value str_rfind(ARGS)
{
    return jj_int(find_char(rt, v.str, c, jj_str_rfind));
}

static struct jj_value found_or_fail(struct jj_rt *rt, int64_t at)
{
    return at < 0 ? jj_fail(rt, ERR_ARG, "substring not found") : jj_int(at);
}

static struct jj_value str_index(ARGS)
{
    return found_or_fail(rt, find_char(rt, v.str, c, jj_str_find));
}

static struct jj_value str_rindex(ARGS)
{
    return found_or_fail(rt, find_char(rt, v.str, c, jj_str_rfind));
}

static struct jj_value str_count(ARGS)
{
    size_t from, to;
    const struct jj_str *what = jj_arg_str(rt, c->a[0]);
    int64_t n = 0, at;
    if (!span(rt, v.str, c, 1, &from, &to))
        return jj_int(0);
    if (!what->n)
        return jj_int((int64_t)jj_str_count_chars(v.str->bytes + from, to - from) + 1);
    while ((at = jj_str_find(rt, v.str, what, from, to)) >= 0) {
        n++;
        from = (size_t)at + what->n;
    }
    return jj_int(n);
}

/* ---- changed copies ---- */

static struct jj_value str_replace(ARGS)
{
    return jj_string(jj_str_replace(rt, v.str, jj_arg_str(rt, c->a[0]), jj_arg_str(rt, c->a[1]),
                                    jj_int_or(rt, c->a[2], -1)));
}

static struct jj_value str_removeprefix(ARGS)
{
    const struct jj_str *prefix = jj_arg_str(rt, c->a[0]);
    if (!jj_str_has_prefix(v.str, prefix))
        return v;
    return jj_string(jj_str_slice(rt, v.str, prefix->n, v.str->n - prefix->n));
}

static struct jj_value str_removesuffix(ARGS)
{
    const struct jj_str *suffix = jj_arg_str(rt, c->a[0]);
    if (!jj_str_has_suffix(v.str, suffix))
        return v;
    return jj_string(jj_str_slice(rt, v.str, 0, v.str->n - suffix->n));
}

static struct jj_value str_upper(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, v.str, JJ_UPPER));
}

static struct jj_value str_lower(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, v.str, JJ_LOWER));
}

static struct jj_value str_capitalize(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, v.str, JJ_CAPITALIZE));
}

static struct jj_value str_title(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, v.str, JJ_TITLE));
}

static struct jj_value str_swapcase(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, v.str, JJ_SWAP));
}

static struct jj_value str_join(ARGS)
{
    const struct jj_seq *items = jj_iterate(rt, c->a[0]);
    struct jj_buf b = {0};
    for (size_t i = 0; i < items->n && jj_step(rt, 1); i++) {
        if (i)
            jj_buf_add_str(rt, &b, v.str);
        jj_buf_add_str(rt, &b, jj_arg_str(rt, items->items[i]));
    }
    return jj_string(jj_buf_str(rt, &b));
}

static struct jj_value str_format(ARGS)
{
    return jj_format_braces(rt, v.str, c->args);
}

/* Fills up to a width; left and right say where. */
static struct jj_value pad(struct jj_rt *rt, const struct jj_str *s, const struct jj_call *c,
                           int sides)
{
    static const struct jj_str space = {.bytes = " ", .n = 1, .chars = 1};
    int64_t width = jj_int_or(rt, c->a[0], 0);
    const struct jj_str *with = jj_given(c->a[1]) ? jj_arg_str(rt, c->a[1]) : &space;
    if (width <= (int64_t)s->chars || rt->failed)
        return jj_string(s);
    int64_t n = width - (int64_t)s->chars;
    if (with->chars != 1)
        return jj_fail(rt, ERR_ARG, "the fill character must be exactly one character long");
    int64_t left = sides == JJ_LEFT ? n : sides == JJ_RIGHT ? 0 : n / 2 + (n & width & 1);
    const struct jj_str *text = jj_str_concat(rt, jj_str_repeat(rt, with, left), s);
    return jj_string(jj_str_concat(rt, text, jj_str_repeat(rt, with, n - left)));
}

static struct jj_value str_center(ARGS)
{
    return pad(rt, v.str, c, JJ_LEFT | JJ_RIGHT);
}

static struct jj_value str_ljust(ARGS)
{
    return pad(rt, v.str, c, JJ_RIGHT);
}

static struct jj_value str_rjust(ARGS)
{
    return pad(rt, v.str, c, JJ_LEFT);
}

static struct jj_value str_zfill(ARGS)
{
    static const struct jj_str zero = {.bytes = "0", .n = 1, .chars = 1};
    int64_t width = jj_int_or(rt, c->a[0], 0);
    if (width <= (int64_t)v.str->chars)
        return v;
    int64_t n = width - (int64_t)v.str->chars;
    size_t sign = v.str->n && (v.str->bytes[0] == '-' || v.str->bytes[0] == '+');
    const struct jj_str *front = jj_str_slice(rt, v.str, 0, sign);
    const struct jj_str *rest = jj_str_slice(rt, v.str, sign, v.str->n - sign);
    front = jj_str_concat(rt, front, jj_str_repeat(rt, &zero, n));
    return jj_string(jj_str_concat(rt, front, rest));
}

const struct jj_builtin jj_str_methods[] = {
    {"strip", "chars", 0, str_strip},
    {"lstrip", "chars", 0, str_lstrip},
    {"rstrip", "chars", 0, str_rstrip},
    {"split", "sep,maxsplit", 0, str_split},
    {"rsplit", "sep,maxsplit", 0, str_rsplit},
    {"splitlines", "keepends", 0, str_splitlines},
    {"partition", "sep", 1, str_partition},
    {"rpartition", "sep", 1, str_rpartition},
    {"startswith", "prefix,start,end", 1, str_startswith},
    {"endswith", "suffix,start,end", 1, str_endswith},
    {"find", "sub,start,end", 1, str_find},
    {"rfind", "sub,start,end", 1, str_rfind},
    {"index", "sub,start,end", 1, str_index},
    {"rindex", "sub,start,end", 1, str_rindex},
    {"count", "sub,start,end", 1, str_count},
    {"replace", "old,new,count", 2, str_replace},
    {"removeprefix", "prefix", 1, str_removeprefix},
    {"removesuffix", "suffix", 1, str_removesuffix},
    {"upper", "", 0, str_upper},
    {"lower", "", 0, str_lower},
    {"casefold", "", 0, str_lower},
    {"capitalize", "", 0, str_capitalize},
    {"title", "", 0, str_title},
    {"swapcase", "", 0, str_swapcase},
    {"join", "iterable", 1, str_join},
    {"format", NULL, 0, str_format},
    {"center", "width,fillchar", 1, str_center},
    {"ljust", "width,fillchar", 1, str_ljust},
    {"rjust", "width,fillchar", 1, str_rjust},
    {"zfill", "width", 1, str_zfill},
    {0},
};

/* ---- what all characters are ---- */

static bool is_alpha(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

/* Also superscripts and subscripts. */
static bool is_digit(int32_t c)
{
    return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}

static bool is_numeric(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static bool is_alnum(int32_t c)
{
    return is_alpha(c) || is_numeric(c);
}

static bool is_ascii(int32_t c)
{
    return c < 128;
}

static bool is_upper(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LU;
}

static bool is_lower(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_LL;
}

static bool all_chars(struct jj_rt *rt, const struct jj_str *s, bool (*is)(int32_t))
{
    int32_t code;
    jj_step_bytes(rt, s->n);
    for (size_t at = 0; at < s->n;) {
        at += jj_char_at(s->bytes, s->n, at, &code);
        if (!is(code))
            return false;
    }
    return s->n > 0;
}

/* Has letters of the one case and none of the other. */
static bool only_case(struct jj_rt *rt, const struct jj_str *s, bool (*wanted)(int32_t),
                      bool (*unwanted)(int32_t))
{
    bool some = false;
    int32_t code;
    jj_step_bytes(rt, s->n);
    for (size_t at = 0; at < s->n;) {
        at += jj_char_at(s->bytes, s->n, at, &code);
        if (unwanted(code))
            return false;
        some |= wanted(code);
    }
    return some;
}

#define PREDICATE(name, expression)                                                                \
    static struct jj_value str_##name(ARGS)                                                        \
    {                                                                                              \
        (void)c;                                                                                   \
        return jj_bool(expression);                                                                \
    }

PREDICATE(isalpha, all_chars(rt, v.str, is_alpha))
PREDICATE(isdigit, all_chars(rt, v.str, is_digit))
PREDICATE(isdecimal, all_chars(rt, v.str, is_decimal))
PREDICATE(isnumeric, all_chars(rt, v.str, is_numeric))
PREDICATE(isalnum, all_chars(rt, v.str, is_alnum))
PREDICATE(isspace, all_chars(rt, v.str, jj_char_is_space))
PREDICATE(isascii, !v.str->n || all_chars(rt, v.str, is_ascii))
PREDICATE(isupper, only_case(rt, v.str, is_upper, is_lower))
PREDICATE(islower, only_case(rt, v.str, is_lower, is_upper))

const struct jj_builtin jj_str_predicates[] = {
    {"isalpha", "", 0, str_isalpha},     {"isdigit", "", 0, str_isdigit},
    {"isdecimal", "", 0, str_isdecimal}, {"isnumeric", "", 0, str_isnumeric},
    {"isalnum", "", 0, str_isalnum},     {"isspace", "", 0, str_isspace},
    {"isascii", "", 0, str_isascii},     {"isupper", "", 0, str_isupper},
    {"islower", "", 0, str_islower},     {0},
};
