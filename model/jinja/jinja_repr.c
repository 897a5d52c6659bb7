#include "jinja_str.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Python's str() and repr() of values. */

/* The shortest digits that read back as the same number, laid out as Python does. */
void jj_real_text(double d, char out[40])
{
    if (!isfinite(d)) {
        strcpy(out, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    char digits[32];
    int precision = 1;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, d);
    while (strtod(digits, NULL) != d && precision++ < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        int mantissa = (int)(strchr(digits, 'e') - digits);
        snprintf(out, 40, "%.*se%c%02d", mantissa, digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent;
    snprintf(out, 40, "%.*f", decimals < 1 ? 1 : decimals, d);
}

static void add_char_escape(struct jj_rt *rt, struct jj_buf *b, int32_t code, unsigned char mark)
{
    char text[16];
    const char *format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
    if (code == '\n' || code == '\r' || code == '\t')
        snprintf(text, sizeof text, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else
        snprintf(text, sizeof text, format, (unsigned)code);
    jj_buf_add(rt, b, text, strlen(text), mark);
}

static void add_str_repr(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s)
{
    bool single = memchr(s->bytes, '\'', s->n) != NULL;
    char quote = single && !memchr(s->bytes, '"', s->n) ? '"' : '\'';
    int32_t code;
    jj_step_bytes(rt, s->n);
    jj_buf_add(rt, b, &quote, 1, 0);
    for (size_t at = 0; at < s->n && !rt->failed;) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        if (code == quote || code == '\\')
            jj_buf_add(rt, b, "\\", 1, jj_str_mark(s, at));
        if (jj_char_is_printable(code))
            jj_buf_add_slice(rt, b, s, at, len);
        else
            add_char_escape(rt, b, code, jj_str_mark(s, at));
        at += len;
    }
    jj_buf_add(rt, b, &quote, 1, 0);
}

static void add_items(struct jj_rt *rt, struct jj_buf *b, const struct jj_seq *s, const char *open,
                      const char *close)
{
    jj_buf_adds(rt, b, open);
    for (size_t i = 0; i < s->n && jj_step(rt, 1); i++) {
        if (i)
            jj_buf_adds(rt, b, ", ");
        jj_buf_add_repr(rt, b, s->items[i]);
    }
    if (s->kind == JJ_TUPLE && s->n == 1)
        jj_buf_adds(rt, b, ",");
    jj_buf_adds(rt, b, close);
}

static void add_range(struct jj_rt *rt, struct jj_buf *b, const struct jj_seq *s)
{
    char text[80];
    int64_t first = s->n ? s->items[0].integer : 0;
    int64_t step = s->n > 1 ? s->items[1].integer - first : 1;
    int64_t end = s->n ? s->items[s->n - 1].integer + (step < 0 ? -1 : 1) : 0;
    snprintf(text, sizeof text, step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
             (long long)first, (long long)end, (long long)step);
    jj_buf_adds(rt, b, text);
}

static void add_seq(struct jj_rt *rt, struct jj_buf *b, const struct jj_seq *s)
{
    switch (s->kind) {
    case JJ_LIST:
        add_items(rt, b, s, "[", "]");
        break;
    case JJ_TUPLE:
        add_items(rt, b, s, "(", ")");
        break;
    case JJ_LAZY:
        jj_buf_adds(rt, b, "<generator object>");
        break;
    case JJ_RANGE:
        add_range(rt, b, s);
        break;
    case JJ_KEYS:
        add_items(rt, b, s, "dict_keys([", "])");
        break;
    case JJ_VALUES:
        add_items(rt, b, s, "dict_values([", "])");
        break;
    case JJ_ITEMS:
        add_items(rt, b, s, "dict_items([", "])");
        break;
    }
}

static void add_dict(struct jj_rt *rt, struct jj_buf *b, const struct jj_dict *d)
{
    jj_buf_adds(rt, b, "{");
    for (size_t i = 0; i < d->n && jj_step(rt, 1); i++) {
        if (i)
            jj_buf_adds(rt, b, ", ");
        jj_buf_add_repr(rt, b, d->entries[i].key);
        jj_buf_adds(rt, b, ": ");
        jj_buf_add_repr(rt, b, d->entries[i].value);
    }
    jj_buf_adds(rt, b, "}");
}

static void add_nested(struct jj_rt *rt, struct jj_buf *b, struct jj_value v)
{
    if (!jj_enter(rt))
        return;
    if (v.type == JJ_SEQ) {
        add_seq(rt, b, v.seq);
    } else {
        jj_buf_adds(rt, b, v.type == JJ_NAMESPACE ? "<Namespace " : "");
        add_dict(rt, b, v.dict);
        jj_buf_adds(rt, b, v.type == JJ_NAMESPACE ? ">" : "");
    }
    jj_leave(rt);
}

void jj_buf_add_repr(struct jj_rt *rt, struct jj_buf *b, struct jj_value v)
{
    char text[40];
    switch (v.type) {
    case JJ_ABSENT:
    case JJ_UNDEFINED:
        jj_buf_adds(rt, b, "Undefined");
        break;
    case JJ_NONE:
        jj_buf_adds(rt, b, "None");
        break;
    case JJ_BOOL:
        jj_buf_adds(rt, b, v.boolean ? "True" : "False");
        break;
    case JJ_INT:
        snprintf(text, sizeof text, "%" PRId64, v.integer);
        jj_buf_adds(rt, b, text);
        break;
    case JJ_FLOAT:
        jj_real_text(v.real, text);
        jj_buf_adds(rt, b, text);
        break;
    case JJ_STR:
        add_str_repr(rt, b, v.str);
        break;
    case JJ_SEQ:
    case JJ_DICT:
    case JJ_NAMESPACE:
        add_nested(rt, b, v);
        break;
    default:
        jj_buf_adds(rt, b, v.type == JJ_LOOP ? "<LoopContext>" : "<function>");
    }
}

void jj_buf_add_value(struct jj_rt *rt, struct jj_buf *b, struct jj_value v)
{
    if (v.type == JJ_STR)
        jj_buf_add_str(rt, b, v.str);
    else if (v.type != JJ_UNDEFINED && v.type != JJ_ABSENT)
        jj_buf_add_repr(rt, b, v);
}

const struct jj_str *jj_to_str(struct jj_rt *rt, struct jj_value v)
{
    struct jj_buf b = {0};
    if (v.type == JJ_STR)
        return v.str;
    jj_buf_add_value(rt, &b, v);
    return jj_buf_str(rt, &b);
}
