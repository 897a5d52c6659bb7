#include "jinja_eval.h"

#include <inttypes.h>
#include <stdio.h>

/* Python's two ways to format: "%s" % x and "{}".format(x). */

#define MAX_WIDTH 10000

struct spec {
    char fill[4];
    size_t fill_bytes;
    char align; /* < > ^ =, or 0 */
    char sign;  /* + space, or 0 */
    bool alternate, comma;
    int width, precision; /* precision -1: none */
    char type;            /* or 0 */
};

static const struct spec plain_spec = {.fill = " ", .fill_bytes = 1, .precision = -1};

struct reader {
    const struct jj_str *s;
    size_t at;
};

static int peek(const struct reader *r)
{
    return r->at < r->s->n ? (unsigned char)r->s->bytes[r->at] : -1;
}

static int read_number(struct jj_rt *rt, struct reader *r)
{
    int n = 0;
    while (peek(r) >= '0' && peek(r) <= '9') {
        n = n * 10 + (peek(r) - '0');
        r->at++;
        if (n > MAX_WIDTH) {
            jj_fail(rt, ERR_LIMIT, "a format is wider than %d", MAX_WIDTH);
            return 0;
        }
    }
    return n;
}

/* ---- a value and a spec ---- */

static void add_padded(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *text,
                       const struct spec *spec, char align, size_t sign)
{
    int64_t pad = spec->width - (int64_t)text->chars;
    pad = pad < 0 ? 0 : pad;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align == '=') {
        jj_buf_add_slice(rt, b, text, 0, sign);
        text = jj_str_slice(rt, text, sign, text->n - sign);
    }
    for (int64_t i = 0; i < left; i++)
        jj_buf_add(rt, b, spec->fill, spec->fill_bytes, 0);
    jj_buf_add_str(rt, b, text);
    for (int64_t i = left; i < pad; i++)
        jj_buf_add(rt, b, spec->fill, spec->fill_bytes, 0);
}

/* Digits with commas, from text that may begin with a sign. */
static void add_commas(char *text, size_t size)
{
    size_t n = strcspn(text + (*text == '-'), ".e") + (*text == '-');
    for (size_t at = n; at > 3 + (size_t)(*text == '-') && strlen(text) + 2 < size;) {
        at -= 3;
        memmove(text + at + 1, text + at, strlen(text + at) + 1);
        text[at] = ',';
    }
}

static void int_text(int64_t i, const struct spec *spec, char out[128])
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *prefix = !spec->alternate    ? ""
                         : spec->type == 'x' ? "0x"
                         : spec->type == 'X' ? "0X"
                         : spec->type == 'o' ? "0o"
                         : spec->type == 'b' ? "0b"
                                             : "";
    char digits[72];
    size_t n = 0;
    unsigned base = spec->type == 'x' || spec->type == 'X' ? 16
                    : spec->type == 'o'                    ? 8
                    : spec->type == 'b'                    ? 2
                                                           : 10;
    do
        digits[n++] = (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    while (spec->precision > (int)n && n < 64 && spec->type != 'c')
        digits[n++] = '0';
    size_t to = (size_t)snprintf(out, 128, "%s%s", i < 0 ? "-" : "", prefix);
    while (n)
        out[to++] = digits[--n];
    out[to] = '\0';
}

static void real_text(double d, const struct spec *spec, char *out, size_t size)
{
    char format[8] = {'%', '.', '*', spec->type ? spec->type : 'g', 0};
    int precision = spec->precision < 0 ? 6 : spec->precision > 300 ? 300 : spec->precision;
    if (spec->type == '%') {
        snprintf(out, size, "%.*f%%", precision, d * 100);
        return;
    }
    snprintf(out, size, format, precision, d);
}

static const char int_types[] = "dixXobu", real_types[] = "fFeEgG%";

static bool type_in(char type, const char *types)
{
    return type && strchr(types, type);
}

/* The text of a number under a spec; false when the spec is none for numbers. */
static bool number_text(struct jj_value v, const struct spec *spec, char *out, size_t size)
{
    int64_t i;
    bool is_int = jj_as_int(v, &i);
    if (is_int && (!spec->type || type_in(spec->type, int_types)))
        int_text(i, spec, out);
    else if (v.type == JJ_FLOAT && !spec->type && spec->precision < 0)
        jj_real_text(v.real, out);
    else if (!spec->type || type_in(spec->type, real_types))
        real_text(jj_as_real(v), spec, out, size);
    else
        return false;
    if (spec->comma)
        add_commas(out, size);
    return true;
}

static void add_number(struct jj_rt *rt, struct jj_buf *b, struct jj_value v,
                       const struct spec *spec)
{
    char text[1024];
    if (!number_text(v, spec, text + 1, sizeof text - 1)) {
        jj_fail(rt, ERR_ARG, "the format '%c' is none for '%s'", spec->type, jj_type_name(v));
        return;
    }
    text[0] = spec->sign;
    const char *start = spec->sign && text[1] != '-' ? text : text + 1;
    const struct jj_str *s = jj_str_new(rt, start, strlen(start), 0);
    size_t sign = *start == '-' || start == text;
    add_padded(rt, b, s, spec, spec->align ? spec->align : '>', sign);
}

static void add_text(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s,
                     const struct spec *spec, char align)
{
    if (spec->precision >= 0 && (size_t)spec->precision < s->chars)
        s = jj_str_slice(rt, s, 0, jj_str_offset(s, (size_t)spec->precision));
    add_padded(rt, b, s, spec, align, 0);
}

/* ---- % ---- */

struct percent {
    struct jj_rt *rt;
    struct reader r;
    struct jj_buf b;
    struct jj_value args;
    size_t used;
};

static struct jj_value percent_next(struct percent *p)
{
    if (jj_is_seq(p->args, JJ_TUPLE)) {
        if (p->used < p->args.seq->n)
            return p->args.seq->items[p->used++];
    } else if (p->used++ == 0) {
        return p->args;
    }
    return jj_fail(p->rt, ERR_ARG, "not enough arguments for format string");
}

static struct jj_value percent_named(struct percent *p)
{
    size_t from = ++p->r.at;
    while (peek(&p->r) >= 0 && peek(&p->r) != ')')
        p->r.at++;
    if (peek(&p->r) < 0 || p->args.type != JJ_DICT)
        return jj_fail(p->rt, ERR_ARG, "format requires a mapping");
    const struct jj_str *key = jj_str_slice(p->rt, p->r.s, from, p->r.at++ - from);
    const struct jj_value *v = jj_dict_find(p->rt, p->args.dict, jj_string(key));
    p->used = 1;
    return v ? *v : jj_fail(p->rt, ERR_ARG, "the format's mapping has no such key");
}

static int percent_star(struct percent *p)
{
    if (peek(&p->r) != '*')
        return read_number(p->rt, &p->r);
    p->r.at++;
    int64_t n = jj_int_or(p->rt, percent_next(p), 0);
    if (n < -MAX_WIDTH || n > MAX_WIDTH)
        jj_fail(p->rt, ERR_LIMIT, "a format is wider than %d", MAX_WIDTH);
    return p->rt->failed ? 0 : (int)n;
}

static void percent_flags(struct percent *p, struct spec *spec)
{
    for (int c; (c = peek(&p->r)) > 0 && strchr("-+ #0", c); p->r.at++) {
        if (c == '-')
            spec->align = '<';
        else if (c == '#')
            spec->alternate = true;
        else if (c == '0' && spec->align != '<')
            spec->align = '=';
        else if (c == '+' || (c == ' ' && !spec->sign))
            spec->sign = (char)c;
    }
    spec->width = percent_star(p);
    if (spec->width < 0) {
        spec->align = '<';
        spec->width = -spec->width;
    }
    if (spec->align == '=')
        spec->fill[0] = '0';
    if (peek(&p->r) == '.') {
        p->r.at++;
        spec->precision = percent_star(p);
    }
    while (peek(&p->r) > 0 && strchr("hlL", peek(&p->r)))
        p->r.at++;
}

static void percent_char(struct percent *p, struct jj_value v, const struct spec *spec)
{
    struct jj_buf one = {0};
    int64_t code;
    if (v.type == JJ_STR && v.str->chars == 1)
        jj_buf_add_str(p->rt, &one, v.str);
    else if (jj_as_int(v, &code) && code >= 0 && code < 0x110000 &&
             (code < 0xd800 || code > 0xdfff))
        jj_buf_add_char(p->rt, &one, (int32_t)code, 0);
    else
        jj_fail(p->rt, ERR_ARG, "%%c requires int or char");
    add_text(p->rt, &p->b, jj_buf_str(p->rt, &one), spec, spec->align == '<' ? '<' : '>');
}

static void percent_value(struct percent *p, struct jj_value v, struct spec *spec)
{
    struct jj_rt *rt = p->rt;
    struct jj_buf text = {0};
    char align = spec->align == '<' ? '<' : '>';
    if (spec->type == 's' || spec->type == 'r' || spec->type == 'a') {
        if (spec->type == 's')
            jj_buf_add_value(rt, &text, v);
        else
            jj_buf_add_repr(rt, &text, v);
        memcpy(spec->fill, " ", 1);
        add_text(rt, &p->b, jj_buf_str(rt, &text), spec, align);
    } else if (spec->type == 'c') {
        percent_char(p, v, spec);
    } else if (!jj_is_number(v)) {
        jj_fail(rt, ERR_ARG, "%%%c format: a number is required, not %s", spec->type,
                jj_type_name(v));
    } else {
        if (v.type == JJ_FLOAT && type_in(spec->type, "diu") && v.real > -0x1p63 && v.real < 0x1p63)
            v = jj_int((int64_t)v.real);
        add_number(rt, &p->b, v, spec);
    }
}

static void percent_one(struct percent *p)
{
    struct spec spec = plain_spec;
    struct jj_value v = {0};
    p->r.at++;
    bool named = peek(&p->r) == '(';
    if (named)
        v = percent_named(p);
    percent_flags(p, &spec);
    int type = peek(&p->r);
    p->r.at++;
    if (type == '%') {
        jj_buf_adds(p->rt, &p->b, "%");
        return;
    }
    if (type <= 0 || !strchr("sracdiuxXofFeEgG", type)) {
        jj_fail(p->rt, ERR_ARG, "unsupported format character at index %zu", p->r.at - 1);
        return;
    }
    spec.type = (char)type;
    if (!named)
        v = percent_next(p);
    if (!p->rt->failed)
        percent_value(p, v, &spec);
}

/* Arguments that can be looked up in may be left over; Python counts a list among them. */
static size_t must_use(struct jj_value args)
{
    if (jj_is_seq(args, JJ_TUPLE))
        return args.seq->n;
    return args.type == JJ_STR || args.type == JJ_NONE || jj_is_number(args);
}

struct jj_value jj_format_percent(struct jj_rt *rt, const struct jj_str *format,
                                  struct jj_value args)
{
    struct percent p = {.rt = rt, .r = {.s = format}, .args = args};
    while (p.r.at < format->n && jj_step(rt, 1)) {
        const char *next = memchr(format->bytes + p.r.at, '%', format->n - p.r.at);
        size_t end = next ? (size_t)(next - format->bytes) : format->n;
        jj_buf_add_slice(rt, &p.b, format, p.r.at, end - p.r.at);
        p.r.at = end;
        if (next)
            percent_one(&p);
    }
    if (p.used < must_use(args))
        return jj_fail(rt, ERR_ARG, "not all arguments converted during string formatting");
    return jj_string(jj_buf_str(rt, &p.b));
}

/* ---- {} ---- */

struct braces {
    struct jj_rt *rt;
    struct reader r;
    struct jj_buf b;
    const struct jj_args *args;
    int next; /* of fields without a number */
};

static const struct jj_str *braces_until(struct braces *f, const char *ends)
{
    size_t from = f->r.at;
    while (peek(&f->r) > 0 && !strchr(ends, peek(&f->r)))
        f->r.at++;
    return jj_str_slice(f->rt, f->r.s, from, f->r.at - from);
}

static struct jj_value braces_argument(struct braces *f, const struct jj_str *name)
{
    int64_t index = -1;
    struct reader digits = {.s = name};
    if (!name->n)
        index = f->next++;
    else if (peek(&digits) >= '0' && peek(&digits) <= '9')
        index = read_number(f->rt, &digits);
    if (index >= 0 && index < f->args->n)
        return f->args->items[index];
    for (int i = 0; index < 0 && i < f->args->n_named; i++)
        if (jj_str_equal(f->args->named[i].name, name))
            return f->args->named[i].value;
    return jj_fail(f->rt, ERR_ARG, "format: there is no argument '%.*s'",
                   (int)(name->n < 100 ? name->n : 100), name->bytes);
}

static struct jj_value braces_path(struct braces *f, struct jj_value v)
{
    while (!f->rt->failed && (peek(&f->r) == '.' || peek(&f->r) == '[')) {
        bool dot = f->r.s->bytes[f->r.at++] == '.';
        const struct jj_str *part = braces_until(f, dot ? ".[:!}" : "]");
        if (!dot)
            f->r.at++;
        v = dot ? jj_attribute(f->rt, v, part) : jj_path(f->rt, v, jj_string(part));
    }
    return v;
}

static void braces_fill(struct reader *r, struct spec *spec)
{
    int32_t code;
    if (peek(r) < 0)
        return;
    size_t len = jj_char_at(r->s->bytes, r->s->n, r->at, &code);
    if (r->at + len < r->s->n && strchr("<>^=", r->s->bytes[r->at + len])) {
        memcpy(spec->fill, r->s->bytes + r->at, len);
        spec->fill_bytes = len;
        spec->align = r->s->bytes[r->at + len];
        r->at += len + 1;
    } else if (strchr("<>^=", peek(r))) {
        spec->align = r->s->bytes[r->at++];
    }
}

static bool skip(struct reader *r, char c)
{
    bool at = peek(r) == c;
    r->at += at;
    return at;
}

static bool braces_spec(struct braces *f, const struct jj_str *text, struct spec *spec)
{
    struct reader r = {.s = text};
    braces_fill(&r, spec);
    if (peek(&r) == '+' || peek(&r) == ' ' || peek(&r) == '-')
        spec->sign = r.s->bytes[r.at++];
    if (spec->sign == '-')
        spec->sign = 0;
    spec->alternate = skip(&r, '#');
    if (skip(&r, '0') && !spec->align) {
        spec->align = '=';
        spec->fill[0] = '0';
    }
    spec->width = read_number(f->rt, &r);
    spec->comma = skip(&r, ',');
    if (skip(&r, '.'))
        spec->precision = read_number(f->rt, &r);
    if (peek(&r) > 0)
        spec->type = r.s->bytes[r.at++];
    if (r.at < text->n || (spec->type && !strchr("sdxXobfFeEgG%", spec->type)))
        jj_fail(f->rt, ERR_ARG, "Invalid format specifier");
    return !f->rt->failed;
}

static void braces_value(struct braces *f, struct jj_value v, const struct jj_str *text)
{
    struct spec spec = plain_spec;
    struct jj_buf b = {0};
    if (!braces_spec(f, text, &spec))
        return;
    if (jj_is_number(v) && (v.type != JJ_BOOL || spec.type) && spec.type != 's') {
        add_number(f->rt, &f->b, v, &spec);
        return;
    }
    if (spec.type && spec.type != 's')
        jj_fail(f->rt, ERR_ARG, "Unknown format code '%c' for '%s'", spec.type, jj_type_name(v));
    jj_buf_add_value(f->rt, &b, v);
    add_text(f->rt, &f->b, jj_buf_str(f->rt, &b), &spec, spec.align ? spec.align : '<');
}

/* Behind `{`. */
static void braces_field(struct braces *f)
{
    struct jj_value v = braces_path(f, braces_argument(f, braces_until(f, ".[:!}")));
    const struct jj_str *spec = &jj_empty;
    if (skip(&f->r, '!')) {
        struct jj_buf b = {0};
        if (skip(&f->r, 'r'))
            jj_buf_add_repr(f->rt, &b, v);
        else if (skip(&f->r, 's'))
            jj_buf_add_value(f->rt, &b, v);
        v = jj_string(jj_buf_str(f->rt, &b));
    }
    if (skip(&f->r, ':'))
        spec = braces_until(f, "}");
    if (!skip(&f->r, '}'))
        jj_fail(f->rt, ERR_ARG, "expected '}' in a format string");
    if (!f->rt->failed)
        braces_value(f, v, spec);
}

struct jj_value jj_format_braces(struct jj_rt *rt, const struct jj_str *format,
                                 const struct jj_args *args)
{
    struct braces f = {.rt = rt, .r = {.s = format}, .args = args};
    while (f.r.at < format->n && jj_step(rt, 1)) {
        char c = format->bytes[f.r.at++];
        bool doubled = (c == '{' || c == '}') && skip(&f.r, c);
        if (c == '{' && !doubled)
            braces_field(&f);
        else if (c == '}' && !doubled)
            jj_fail(rt, ERR_ARG, "Single '}' encountered in format string");
        else
            jj_buf_add_slice(rt, &f.b, format, f.r.at - 1, 1);
    }
    return jj_string(jj_buf_str(rt, &f.b));
}
