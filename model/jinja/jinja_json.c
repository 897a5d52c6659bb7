#include "jinja_json.h"
#include "jinja_builtin.h"
#include "jinja_str.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- in ---- */

static struct jj_value copy_bytes(struct jj_rt *rt, const char *bytes, size_t n, unsigned char mark)
{
    return jj_string(jj_str_share(rt, bytes, n, mark));
}

static struct jj_value from_array(struct jj_rt *rt, const json_t *json, unsigned char mark)
{
    struct jj_seq *s = jj_seq_new(rt, JJ_LIST);
    for (size_t i = 0; i < json_array_size(json) && !rt->failed; i++)
        jj_seq_add(rt, s, jj_from_json(rt, json_array_get(json, i), mark));
    return jj_sequence(s);
}

static struct jj_value from_object(struct jj_rt *rt, const json_t *json, unsigned char mark)
{
    struct jj_dict *d = jj_dict_new(rt);
    json_t *object = (json_t *)json; /* iterators want it without const, and change nothing */
    for (void *i = json_object_iter(object); i && !rt->failed;
         i = json_object_iter_next(object, i)) {
        const char *key = json_object_iter_key(i);
        jj_dict_set(rt, d, copy_bytes(rt, key, strlen(key), mark),
                    jj_from_json(rt, json_object_iter_value(i), mark));
    }
    return jj_mapping(d);
}

struct jj_value jj_from_json(struct jj_rt *rt, const json_t *json, unsigned char mark)
{
    struct jj_value v = {0};
    if (!json || !jj_enter(rt))
        return v;
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = from_object(rt, json, mark);
        break;
    case JSON_ARRAY:
        v = from_array(rt, json, mark);
        break;
    case JSON_STRING:
        v = copy_bytes(rt, json_string_value(json), json_string_length(json), mark);
        break;
    case JSON_INTEGER:
        v = jj_int(json_integer_value(json));
        break;
    case JSON_REAL:
        v = jj_float(json_real_value(json));
        break;
    case JSON_NULL:
        v = jj_none();
        break;
    default:
        v = jj_bool(json_is_true(json));
    }
    jj_leave(rt);
    return v;
}

/* Strings of a document that is freed before the render ends have to be copied. */
static struct jj_value own_copy(struct jj_rt *rt, struct jj_value v)
{
    if (!jj_enter(rt))
        return (struct jj_value){0};
    if (v.type == JJ_STR) {
        v = jj_string(jj_str_new(rt, v.str->bytes, v.str->n, v.str->mark));
    } else if (v.type == JJ_SEQ) {
        for (size_t i = 0; i < v.seq->n; i++)
            v.seq->items[i] = own_copy(rt, v.seq->items[i]);
    } else if (v.type == JJ_DICT) {
        for (size_t i = 0; i < v.dict->n; i++) {
            v.dict->entries[i].key = own_copy(rt, v.dict->entries[i].key);
            v.dict->entries[i].value = own_copy(rt, v.dict->entries[i].value);
        }
    }
    jj_leave(rt);
    return v;
}

struct jj_value jj_json_parse(struct jj_rt *rt, const struct jj_str *text)
{
    json_error_t error;
    if (rt->failed || !jj_step_bytes(rt, text->n))
        return (struct jj_value){0};
    json_t *json = json_loadb(text->bytes, text->n, JSON_DECODE_ANY, &error);
    if (!json)
        return jj_fail(rt, ERR_ARG, "from_json: %s", error.text);
    struct jj_value v = own_copy(rt, jj_from_json(rt, json, jj_str_any_mark(text)));
    json_decref(json);
    return v;
}

/* ---- out ---- */

struct writer {
    struct jj_rt *rt;
    struct jj_buf *b;
    const struct jj_json_style *style;
    int level;
};

static void write_value(struct writer *w, struct jj_value v);

static void write_escape(struct writer *w, int32_t code, unsigned char mark)
{
    char text[16];
    static const char *const names = "\"\"\\\\\nn\rr\tt\bb\ff";
    for (const char *e = names; *e; e += 2) {
        if (code == e[0]) {
            snprintf(text, sizeof text, "\\%c", e[1]);
            jj_buf_add(w->rt, w->b, text, 2, mark);
            return;
        }
    }
    if (code >= 0x10000) {
        unsigned u = (unsigned)code - 0x10000;
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (u >> 10), 0xdc00 + (u & 0x3ff));
    } else {
        snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    }
    jj_buf_add(w->rt, w->b, text, strlen(text), mark);
}

static void write_str(struct writer *w, const struct jj_str *s)
{
    int32_t code;
    jj_step_bytes(w->rt, s->n);
    jj_buf_adds(w->rt, w->b, "\"");
    size_t from = 0; /* of what needs no escape and is not yet written */
    for (size_t at = 0; at < s->n && !w->rt->failed;) {
        size_t len = jj_char_at(s->bytes, s->n, at, &code);
        if (code < 32 || code == '"' || code == '\\' || (code >= 127 && w->style->ensure_ascii)) {
            jj_buf_add_slice(w->rt, w->b, s, from, at - from);
            write_escape(w, code, jj_str_mark(s, at));
            from = at + len;
        }
        at += len;
    }
    jj_buf_add_slice(w->rt, w->b, s, from, s->n - from);
    jj_buf_adds(w->rt, w->b, "\"");
}

static void write_real(struct writer *w, double d)
{
    char text[40];
    jj_real_text(d, text);
    if (strcmp(text, "nan") == 0)
        strcpy(text, "NaN");
    else if (strcmp(text, "inf") == 0)
        strcpy(text, "Infinity");
    else if (strcmp(text, "-inf") == 0)
        strcpy(text, "-Infinity");
    jj_buf_adds(w->rt, w->b, text);
}

static void write_newline(struct writer *w)
{
    if (!w->style->indent)
        return;
    jj_buf_adds(w->rt, w->b, "\n");
    for (int i = 0; i < w->level && !w->rt->failed; i++)
        jj_buf_add_str(w->rt, w->b, w->style->indent);
}

static void write_separator(struct writer *w, bool first)
{
    if (!first)
        jj_buf_add_str(w->rt, w->b, w->style->item);
    write_newline(w);
}

static void write_seq(struct writer *w, const struct jj_seq *s)
{
    if (s->kind > JJ_TUPLE) {
        jj_fail(w->rt, ERR_ARG, "Object of type %s is not JSON serializable",
                jj_type_name((struct jj_value){.type = JJ_SEQ, .seq = (struct jj_seq *)s}));
        return;
    }
    jj_buf_adds(w->rt, w->b, "[");
    w->level++;
    for (size_t i = 0; i < s->n && jj_step(w->rt, 1); i++) {
        write_separator(w, i == 0);
        write_value(w, s->items[i]);
    }
    w->level--;
    if (s->n)
        write_newline(w);
    jj_buf_adds(w->rt, w->b, "]");
}

static void write_key(struct writer *w, struct jj_value key)
{
    if (key.type == JJ_STR) {
        write_str(w, key.str);
        return;
    }
    if (key.type == JJ_SEQ || key.type > JJ_STR) {
        jj_fail(w->rt, ERR_ARG, "keys must be str, int, float, bool or None, not %s",
                jj_type_name(key));
        return;
    }
    jj_buf_adds(w->rt, w->b, "\"");
    write_value(w, key);
    jj_buf_adds(w->rt, w->b, "\"");
}

static const struct jj_seq *dict_pairs(struct writer *w, const struct jj_dict *d)
{
    struct jj_seq *pairs = jj_dict_view(w->rt, d, JJ_ITEMS);
    if (!w->style->sort_keys)
        return pairs;
    const struct jj_seq *keys = jj_dict_view(w->rt, d, JJ_KEYS);
    if (!w->rt->failed)
        jj_sort(w->rt, pairs, keys->items, false);
    return pairs;
}

static void write_dict(struct writer *w, const struct jj_dict *d)
{
    const struct jj_seq *pairs = dict_pairs(w, d);
    jj_buf_adds(w->rt, w->b, "{");
    w->level++;
    for (size_t i = 0; i < pairs->n && jj_step(w->rt, 1); i++) {
        const struct jj_seq *pair = pairs->items[i].seq;
        write_separator(w, i == 0);
        write_key(w, pair->items[0]);
        jj_buf_add_str(w->rt, w->b, w->style->key);
        write_value(w, pair->items[1]);
    }
    w->level--;
    if (pairs->n)
        write_newline(w);
    jj_buf_adds(w->rt, w->b, "}");
}

static void write_scalar(struct writer *w, struct jj_value v)
{
    char text[40];
    switch (v.type) {
    case JJ_NONE:
        jj_buf_adds(w->rt, w->b, "null");
        break;
    case JJ_BOOL:
        jj_buf_adds(w->rt, w->b, v.boolean ? "true" : "false");
        break;
    case JJ_INT:
        snprintf(text, sizeof text, "%" PRId64, v.integer);
        jj_buf_adds(w->rt, w->b, text);
        break;
    case JJ_FLOAT:
        write_real(w, v.real);
        break;
    case JJ_STR:
        write_str(w, v.str);
        break;
    default:
        jj_fail(w->rt, ERR_ARG, "Object of type %s is not JSON serializable", jj_type_name(v));
    }
}

static void write_value(struct writer *w, struct jj_value v)
{
    if (!jj_enter(w->rt))
        return;
    if (v.type == JJ_SEQ)
        write_seq(w, v.seq);
    else if (v.type == JJ_DICT)
        write_dict(w, v.dict);
    else
        write_scalar(w, v);
    jj_leave(w->rt);
}

void jj_buf_add_json(struct jj_rt *rt, struct jj_buf *b, struct jj_value v,
                     const struct jj_json_style *style)
{
    struct writer w = {.rt = rt, .b = b, .style = style};
    write_value(&w, v);
}
