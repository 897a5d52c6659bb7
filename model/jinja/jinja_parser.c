#include "jinja_parse.h"
#include "jinja_str.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_NAMES 65536

/* What the parser of statements and that of expressions work with. */

void jj_parse_fail(struct jj_parser *p, int code, const char *format, ...)
{
    static const struct jj_token end[2] = {{.kind = JJ_T_END, .text = "", .n = 0},
                                           {.kind = JJ_T_END, .text = "", .n = 0}};
    char text[300];
    va_list args;
    if (p->code)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->code = err_set(p->err, code, "chat template, line %d: %s", p->token->line, text);
    p->token = end;
}

void jj_parse_expected(struct jj_parser *p, const char *what)
{
    static const char *const kinds[] = {
        [JJ_T_DATA] = "text", [JJ_T_OUTPUT_BEGIN] = "{{", [JJ_T_BLOCK_BEGIN] = "{%"};
    const struct jj_token *t = p->token;
    if (t->kind == JJ_T_DATA || t->kind == JJ_T_OUTPUT_BEGIN || t->kind == JJ_T_BLOCK_BEGIN)
        jj_parse_fail(p, ERR_FORMAT, "expected %s, found %s", what, kinds[t->kind]);
    else
        jj_parse_fail(p, ERR_FORMAT, "expected %s, found '%.*s'", what,
                      (int)(t->n < 60 ? t->n : 60), t->text);
}

bool jj_parse_enter(struct jj_parser *p)
{
    if (p->depth >= JJ_MAX_PARSE_DEPTH)
        jj_parse_fail(p, ERR_LIMIT, "is nested more than %d levels deep", JJ_MAX_PARSE_DEPTH);
    else
        p->depth++;
    return !p->code;
}

void *jj_parse_alloc(struct jj_parser *p, size_t bytes)
{
    void *memory = mem_arena_alloc(p->arena, bytes);
    if (!memory)
        jj_parse_fail(p, ERR_NOMEM, "out of memory for %zu bytes", bytes);
    return memory;
}

struct jj_node *jj_parse_node(struct jj_parser *p, enum jj_kind kind)
{
    /* Where all nodes end up for which there is no memory; nobody reads it, but it is written. */
    static _Thread_local struct jj_node spare;
    struct jj_node *node = jj_parse_alloc(p, sizeof *node);
    if (!node)
        node = &spare;
    *node = (struct jj_node){.kind = (uint8_t)kind, .line = p->token->line};
    return node;
}

struct jj_node *jj_node_unary(struct jj_parser *p, enum jj_kind kind, struct jj_node *a)
{
    struct jj_node *node = jj_parse_node(p, kind);
    node->kids[0] = a;
    return node;
}

struct jj_node *jj_node_binary(struct jj_parser *p, enum jj_kind kind, struct jj_node *a,
                               struct jj_node *b)
{
    struct jj_node *node = jj_node_unary(p, kind, a);
    node->kids[1] = b;
    return node;
}

const struct jj_str *jj_parse_text(struct jj_parser *p, const char *text, size_t n)
{
    struct jj_str *s = jj_parse_alloc(p, sizeof *s);
    /* Zero-terminated, because names appear in messages. */
    char *copy = mem_arena_strndup(p->arena, text, n);
    if (!s || !copy) {
        jj_parse_fail(p, ERR_NOMEM, "out of memory for %zu bytes", n);
        return &jj_empty;
    }
    *s = (struct jj_str){.bytes = copy, .n = n, .chars = jj_str_count_chars(text, n)};
    return s;
}

void jj_grow_add(struct jj_parser *p, struct jj_grow *g, struct jj_node *node)
{
    if (g->n == g->cap) {
        int cap = g->cap ? g->cap * 2 : 4;
        struct jj_node **items = jj_parse_alloc(p, (size_t)cap * sizeof *items);
        if (!items)
            return;
        if (g->n)
            memcpy(items, g->items, (size_t)g->n * sizeof *items);
        g->items = items;
        g->cap = cap;
    }
    g->items[g->n++] = node;
}

struct jj_node_list jj_grow_list(const struct jj_grow *g)
{
    return (struct jj_node_list){.items = g->items, .n = g->n};
}

/* ---- names get numbers, so that variables are found by comparing integers ---- */

static unsigned name_hash(const char *s, size_t n)
{
    unsigned h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ (h >> 15);
}

static void name_put(struct jj_parser *p, int name)
{
    const struct jj_str *s = p->t->names[name];
    unsigned slot = name_hash(s->bytes, s->n) & (unsigned)(p->name_slots - 1);
    while (p->name_index[slot])
        slot = (slot + 1) & (unsigned)(p->name_slots - 1);
    p->name_index[slot] = name + 1;
}

static bool names_grow(struct jj_parser *p)
{
    int cap = p->name_cap ? p->name_cap * 2 : 64;
    const struct jj_str **names = jj_parse_alloc(p, (size_t)cap * sizeof *names);
    int *index = jj_parse_alloc(p, (size_t)cap * 2 * sizeof *index);
    if (!names || !index)
        return false;
    if (p->t->n_names)
        memcpy(names, p->t->names, (size_t)p->t->n_names * sizeof *names);
    p->t->names = names;
    p->name_cap = cap;
    p->name_index = index;
    p->name_slots = cap * 2;
    for (int i = 0; i < p->t->n_names; i++)
        name_put(p, i);
    return true;
}

int jj_parse_name(struct jj_parser *p, const struct jj_token *token)
{
    struct jj_str key = {.bytes = token->text, .n = token->n};
    if (p->t->n_names == p->name_cap && !names_grow(p))
        return 0;
    unsigned slot = name_hash(token->text, token->n) & (unsigned)(p->name_slots - 1);
    for (; p->name_index[slot]; slot = (slot + 1) & (unsigned)(p->name_slots - 1))
        if (jj_str_equal(p->t->names[p->name_index[slot] - 1], &key))
            return p->name_index[slot] - 1;
    if (p->t->n_names == MAX_NAMES) {
        jj_parse_fail(p, ERR_LIMIT, "has more than %d names", MAX_NAMES);
        return 0;
    }
    p->t->names[p->t->n_names++] = jj_parse_text(p, token->text, token->n);
    p->name_index[slot] = p->t->n_names;
    return p->t->n_names - 1;
}

/* ---- tokens ---- */

void jj_parse_next(struct jj_parser *p)
{
    if (p->token->kind != JJ_T_END)
        p->token++;
}

bool jj_token_is(const struct jj_token *t, enum jj_token_kind kind, const char *text)
{
    return t->kind == kind && t->n == strlen(text) && memcmp(t->text, text, t->n) == 0;
}

bool jj_at_op(const struct jj_parser *p, const char *op)
{
    return jj_token_is(p->token, JJ_T_OP, op);
}

bool jj_at_name(const struct jj_parser *p, const char *name)
{
    return jj_token_is(p->token, JJ_T_NAME, name);
}

bool jj_skip_op(struct jj_parser *p, const char *op)
{
    bool at = jj_at_op(p, op);
    if (at)
        jj_parse_next(p);
    return at;
}

bool jj_skip_name(struct jj_parser *p, const char *name)
{
    bool at = jj_at_name(p, name);
    if (at)
        jj_parse_next(p);
    return at;
}

void jj_expect_op(struct jj_parser *p, const char *op)
{
    char what[16];
    snprintf(what, sizeof what, "'%s'", op);
    if (!jj_skip_op(p, op))
        jj_parse_expected(p, what);
}

void jj_expect_name(struct jj_parser *p, const char *name)
{
    char what[32];
    snprintf(what, sizeof what, "'%s'", name);
    if (!jj_skip_name(p, name))
        jj_parse_expected(p, what);
}

const struct jj_token *jj_take_name(struct jj_parser *p, const char *what)
{
    const struct jj_token *name = p->token;
    if (name->kind == JJ_T_NAME)
        jj_parse_next(p);
    else
        jj_parse_expected(p, what);
    return name;
}
