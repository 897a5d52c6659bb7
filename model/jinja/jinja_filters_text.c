#include "jinja_eval.h"

#include <utf8proc.h>

/* Filters whose result is text. */

#define ARGS struct jj_rt *rt, struct jj_value v, const struct jj_call *c

static const struct jj_str *text_of(struct jj_rt *rt, struct jj_value v)
{
    return jj_to_str(rt, v);
}

static struct jj_value filter_upper(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, text_of(rt, v), JJ_UPPER));
}

static struct jj_value filter_lower(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, text_of(rt, v), JJ_LOWER));
}

static struct jj_value filter_capitalize(ARGS)
{
    (void)c;
    return jj_string(jj_str_case(rt, text_of(rt, v), JJ_CAPITALIZE));
}

static bool begins_word_after(int32_t code)
{
    return code == '-' || code == '(' || code == '{' || code == '[' || code == '<' ||
           jj_char_is_space(code);
}

/* Not str.title(): words begin after white space, hyphens and opening brackets only. */
static struct jj_value filter_title(ARGS)
{
    const struct jj_str *s = text_of(rt, v);
    struct jj_buf b = {0};
    bool begins = true;
    int32_t code;
    (void)c;
    for (size_t at = 0; at < s->n && jj_step(rt, 1);) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        const struct jj_str *one = jj_str_slice(rt, s, at, len);
        jj_buf_add_str(rt, &b, jj_str_case(rt, one, begins ? JJ_UPPER : JJ_LOWER));
        begins = begins_word_after(code);
        at += len;
    }
    return jj_string(jj_buf_str(rt, &b));
}

static struct jj_value filter_trim(ARGS)
{
    const struct jj_str *chars = jj_arg_str_or_null(rt, c->a[0]);
    return jj_string(jj_str_strip(rt, text_of(rt, v), chars, JJ_LEFT | JJ_RIGHT));
}

static struct jj_value filter_replace(ARGS)
{
    return jj_string(jj_str_replace(rt, text_of(rt, v), text_of(rt, c->a[0]), text_of(rt, c->a[1]),
                                    jj_int_or(rt, c->a[2], -1)));
}

static struct jj_value filter_string(ARGS)
{
    (void)c;
    return jj_string(text_of(rt, v));
}

static struct jj_value filter_safe(ARGS)
{
    const struct jj_str *s = text_of(rt, v);
    struct jj_str *copy = jj_alloc(rt, 1, sizeof *copy);
    (void)c;
    if (!copy)
        return (struct jj_value){0};
    *copy = *s;
    copy->markup = true;
    return jj_string(copy);
}

static struct jj_value filter_escape(ARGS)
{
    const struct jj_str *s = text_of(rt, v);
    (void)c;
    return jj_string(s->markup ? s : jj_str_escape(rt, s));
}

static struct jj_value filter_forceescape(ARGS)
{
    (void)c;
    return jj_string(jj_str_escape(rt, text_of(rt, v)));
}

static const struct jj_str *spaces(struct jj_rt *rt, int64_t n)
{
    struct jj_buf b = {0};
    jj_buf_fill(rt, &b, ' ', n < 0 ? 0 : (size_t)n, 0);
    return jj_buf_str(rt, &b);
}

static struct jj_value filter_indent(ARGS)
{
    const struct jj_str *s = jj_arg_str(rt, v);
    const struct jj_str *indent = c->a[0].type == JJ_STR ? c->a[0].str
                                                         : spaces(rt, jj_int_or(rt, c->a[0], 4));
    bool first = jj_arg_true(c->a[1], false), blank = jj_arg_true(c->a[2], false);
    static const struct jj_str newline = {.bytes = "\n", .n = 1, .chars = 1};
    const struct jj_seq *lines = jj_str_lines(rt, jj_str_concat(rt, s, &newline), false);
    struct jj_buf b = {0};
    for (size_t i = 0; i < lines->n && !rt->failed; i++) {
        if (i)
            jj_buf_adds(rt, &b, "\n");
        if (i ? blank || lines->items[i].str->n : first)
            jj_buf_add_str(rt, &b, indent);
        jj_buf_add_str(rt, &b, lines->items[i].str);
    }
    return jj_string(jj_buf_str(rt, &b));
}

static struct jj_value filter_join(ARGS)
{
    struct jj_seq *items = jj_iterate(rt, v);
    const struct jj_str *sep = jj_given(c->a[0]) ? text_of(rt, c->a[0]) : &jj_empty;
    struct jj_buf b = {0};
    for (size_t i = 0; i < items->n && jj_step(rt, 1); i++) {
        struct jj_value item = items->items[i];
        if (i)
            jj_buf_add_str(rt, &b, sep);
        if (jj_given(c->a[1]))
            item = jj_path(rt, item, c->a[1]);
        jj_buf_add_value(rt, &b, item);
    }
    return jj_string(jj_buf_str(rt, &b));
}

static struct jj_value filter_format(ARGS)
{
    struct jj_seq args = {.kind = JJ_TUPLE, .items = c->args->items, .n = (size_t)c->args->n};
    if (!c->args->n_named)
        return jj_format_percent(rt, text_of(rt, v), jj_sequence(&args));
    struct jj_dict *named = jj_dict_new(rt);
    for (int i = 0; i < c->args->n_named; i++)
        jj_dict_set(rt, named, jj_string(c->args->named[i].name), c->args->named[i].value);
    return jj_format_percent(rt, text_of(rt, v), jj_mapping(named));
}

static struct jj_value filter_center(ARGS)
{
    const struct jj_str *s = text_of(rt, v);
    int64_t width = jj_int_or(rt, c->a[0], 80);
    if (width <= (int64_t)s->chars)
        return jj_string(s);
    int64_t pad = width - (int64_t)s->chars;
    /* As str.center has it: the odd space is on the left when the width is odd. */
    int64_t left = pad / 2 + (pad & width & 1);
    const struct jj_str *padded = jj_str_concat(rt, spaces(rt, left), s);
    return jj_string(jj_str_concat(rt, padded, spaces(rt, pad - left)));
}

static struct jj_value filter_truncate(ARGS)
{
    static const struct jj_str dots = {.bytes = "...", .n = 3, .chars = 3};
    static const struct jj_str space = {.bytes = " ", .n = 1, .chars = 1};
    const struct jj_str *s = v.type == JJ_STR ? v.str : &jj_empty;
    const struct jj_str *end = jj_given(c->a[2]) ? text_of(rt, c->a[2]) : &dots;
    jj_length(rt, v);
    int64_t length = jj_int_or(rt, c->a[0], 255), leeway = jj_int_or(rt, c->a[3], 5);
    if (length < (int64_t)end->chars || leeway < 0 || length > INT32_MAX || leeway > INT32_MAX)
        return jj_fail(rt, ERR_ARG, "truncate: the length does not go with the end");
    if ((int64_t)s->chars <= length + leeway)
        return v;
    s = jj_str_slice(rt, s, 0, jj_str_offset(s, (size_t)(length - (int64_t)end->chars)));
    int64_t word = jj_arg_true(c->a[1], false) ? -1 : jj_str_rfind(rt, s, &space, 0, s->n);
    if (word >= 0)
        s = jj_str_slice(rt, s, 0, (size_t)word);
    return jj_string(jj_str_concat(rt, s, end));
}

static struct jj_value filter_pprint(ARGS)
{
    struct jj_buf b = {0};
    (void)c;
    jj_buf_add_repr(rt, &b, v);
    return jj_string(jj_buf_str(rt, &b));
}

static bool is_word_char(int32_t code)
{
    utf8proc_category_t k = utf8proc_category(code);
    return code == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static struct jj_value filter_wordcount(ARGS)
{
    const struct jj_str *s = text_of(rt, v);
    int64_t words = 0;
    bool inside = false;
    int32_t code;
    (void)c;
    jj_step_bytes(rt, s->n);
    for (size_t at = 0; at < s->n;) {
        at += jj_char_at(s->bytes, s->n, at, &code);
        bool word = is_word_char(code);
        words += word && !inside;
        inside = word;
    }
    return jj_int(words);
}

static struct jj_value filter_urlencode(ARGS)
{
    static const char hex[] = "0123456789ABCDEF";
    const struct jj_str *s = text_of(rt, v);
    struct jj_buf b = {0};
    (void)c;
    jj_step_bytes(rt, s->n);
    for (size_t i = 0; i < s->n && !rt->failed; i++) {
        unsigned char u = (unsigned char)s->bytes[i];
        char text[3] = {'%', hex[u >> 4], hex[u & 15]};
        bool plain = (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') ||
                     (u && strchr("_.-~/", u));
        if (plain)
            jj_buf_add_slice(rt, &b, s, i, 1);
        else
            jj_buf_add(rt, &b, text, 3, jj_str_mark(s, i));
    }
    return jj_string(jj_buf_str(rt, &b));
}

const struct jj_builtin jj_filters_text[] = {
    {"upper", "", 0, filter_upper},
    {"lower", "", 0, filter_lower},
    {"capitalize", "", 0, filter_capitalize},
    {"title", "", 0, filter_title},
    {"trim", "chars", 0, filter_trim},
    {"replace", "old,new,count", 2, filter_replace},
    {"string", "", 0, filter_string},
    {"safe", "", 0, filter_safe},
    {"escape", "", 0, filter_escape},
    {"e", "", 0, filter_escape},
    {"forceescape", "", 0, filter_forceescape},
    {"indent", "width,first,blank", 0, filter_indent},
    {"join", "d,attribute", 0, filter_join},
    {"format", NULL, 0, filter_format},
    {"center", "width", 0, filter_center},
    {"truncate", "length,killwords,end,leeway", 0, filter_truncate},
    {"pprint", "", 0, filter_pprint},
    {"wordcount", "", 0, filter_wordcount},
    {"urlencode", "", 0, filter_urlencode},
    {0},
};
