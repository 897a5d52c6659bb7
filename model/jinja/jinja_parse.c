#include "jinja_parse.h"
#include "jinja_str.h"

#include <stdlib.h>

/* Statements. */

static void expect_block_end(struct jj_parser *p)
{
    if (p->token->kind == JJ_T_BLOCK_END)
        jj_parse_next(p);
    else
        jj_parse_expected(p, "'%}'");
}

static struct jj_node *parse_statement(struct jj_parser *p);

/* At `{% NAME` with one of the names in `ends` (separated by spaces). */
static bool at_end_tag(const struct jj_parser *p, const char *ends)
{
    const struct jj_token *name = p->token + 1;
    if (p->token->kind != JJ_T_BLOCK_BEGIN || name->kind != JJ_T_NAME)
        return false;
    for (const char *e = ends; *e;) {
        size_t n = strcspn(e, " ");
        if (name->n == n && memcmp(name->text, e, n) == 0)
            return true;
        e += n + (e[n] == ' ');
    }
    return false;
}

static struct jj_node *parse_item(struct jj_parser *p)
{
    struct jj_node *node;
    switch (p->token->kind) {
    case JJ_T_DATA:
        node = jj_parse_node(p, JJ_DATA);
        node->text = jj_parse_text(p, p->token->text, p->token->n);
        jj_parse_next(p);
        return node;
    case JJ_T_OUTPUT_BEGIN:
        jj_parse_next(p);
        node = jj_parse_node(p, JJ_OUTPUT);
        node->kids[0] = jj_parse_tuple(p, NULL, true);
        if (p->token->kind == JJ_T_OUTPUT_END)
            jj_parse_next(p);
        else
            jj_parse_expected(p, "'}}'");
        return node;
    default:
        jj_parse_next(p);
        return parse_statement(p);
    }
}

/* Statements up to `{% END`, where END is one of `ends`; stops behind the name END, which is
 * returned in *end. */
static struct jj_node *parse_until(struct jj_parser *p, const char *ends,
                                   const struct jj_token **end)
{
    struct jj_node *body = jj_parse_node(p, JJ_BODY);
    struct jj_grow items = {0};
    if (!jj_parse_enter(p))
        return body;
    while (!p->code && p->token->kind != JJ_T_END && !at_end_tag(p, ends))
        jj_grow_add(p, &items, parse_item(p));
    p->depth--;
    body->list = jj_grow_list(&items);
    if (!*ends)
        return body;
    if (p->token->kind == JJ_T_END)
        jj_parse_fail(p, ERR_FORMAT, "the template ends where {%% %s %%} is expected", ends);
    jj_parse_next(p);
    *end = p->token;
    jj_parse_next(p);
    return body;
}

/* The body of a statement, from its `%}` to its `{% end`, which may not be followed by anything. */
static struct jj_node *parse_body(struct jj_parser *p, const char *end_name)
{
    const struct jj_token *end;
    expect_block_end(p);
    struct jj_node *body = parse_until(p, end_name, &end);
    expect_block_end(p);
    return body;
}

static bool is_word(const struct jj_token *t, const char *word)
{
    return jj_token_is(t, JJ_T_NAME, word);
}

static struct jj_node *parse_if(struct jj_parser *p)
{
    struct jj_node *first = jj_parse_node(p, JJ_IF), *node = first;
    int depth = p->depth;
    for (;;) {
        const struct jj_token *end = p->token;
        node->kids[0] = jj_parse_tuple(p, NULL, false);
        expect_block_end(p);
        node->kids[1] = parse_until(p, "elif else endif", &end);
        if (p->code || is_word(end, "endif"))
            break;
        if (is_word(end, "else")) {
            expect_block_end(p);
            node->kids[2] = parse_until(p, "endif", &end);
            break;
        }
        node->kids[2] = jj_parse_node(p, JJ_IF);
        node = node->kids[2];
    }
    p->depth = depth;
    expect_block_end(p);
    return first;
}

static struct jj_node *parse_for(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_FOR);
    const struct jj_token *end = p->token;
    node->kids[0] = jj_parse_target(p, false);
    jj_expect_name(p, "in");
    node->kids[1] = jj_parse_tuple(p, "recursive", false);
    if (jj_skip_name(p, "if"))
        node->kids[2] = jj_parse_expression(p);
    node->recursive = jj_skip_name(p, "recursive");
    expect_block_end(p);
    p->loops++;
    node->kids[3] = parse_until(p, "endfor else", &end);
    p->loops--;
    if (!p->code && is_word(end, "else"))
        node->kids[4] = parse_body(p, "endfor");
    else
        expect_block_end(p);
    return node;
}

static struct jj_node *parse_set(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_SET);
    node->kids[0] = jj_parse_target(p, true);
    if (jj_skip_op(p, "=")) {
        node->kids[1] = jj_parse_tuple(p, NULL, true);
        expect_block_end(p);
        return node;
    }
    node->kind = JJ_SET_BLOCK;
    node->kids[1] = jj_parse_filters(p, NULL, false);
    node->kids[2] = parse_body(p, "endset");
    return node;
}

static void add_param(struct jj_parser *p, struct jj_params *params)
{
    if ((params->n & (params->n - 1)) == 0) {
        size_t cap = params->n ? (size_t)params->n * 2 : 1;
        struct jj_param *more = jj_parse_alloc(p, cap * sizeof *more);
        if (!more)
            return;
        if (params->n)
            memcpy(more, params->items, (size_t)params->n * sizeof *more);
        params->items = more;
    }
    const struct jj_token *name = jj_take_name(p, "the name of a parameter");
    struct jj_param *param = &params->items[params->n++];
    param->name = jj_parse_name(p, name);
    param->text = jj_parse_text(p, name->text, name->n);
    param->otherwise = jj_skip_op(p, "=") ? jj_parse_expression(p) : NULL;
}

static struct jj_params *parse_params(struct jj_parser *p)
{
    struct jj_params *params = jj_parse_alloc(p, sizeof *params);
    jj_expect_op(p, "(");
    while (params && !p->code && !jj_at_op(p, ")")) {
        if (params->n)
            jj_expect_op(p, ",");
        if (jj_at_op(p, ")"))
            break;
        add_param(p, params);
    }
    jj_expect_op(p, ")");
    return params;
}

/* The body of a macro: break and continue do not reach out of it. */
static void parse_macro_body(struct jj_parser *p, struct jj_node *macro, const char *end)
{
    struct jj_params *outer = p->params;
    int loops = p->loops;
    p->params = macro->params;
    p->loops = 0;
    macro->kids[0] = parse_body(p, end);
    p->params = outer;
    p->loops = loops;
}

static struct jj_node *parse_macro(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_MACRO);
    const struct jj_token *name = jj_take_name(p, "the name of a macro");
    node->name = jj_parse_name(p, name);
    node->params = parse_params(p);
    parse_macro_body(p, node, "endmacro");
    return node;
}

static struct jj_node *parse_call_block(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_CALL_BLOCK);
    struct jj_node *caller = jj_parse_node(p, JJ_MACRO);
    caller->name = JJ_NAME_CALLER;
    caller->params = jj_at_op(p, "(") ? parse_params(p) : jj_parse_alloc(p, sizeof *caller->params);
    node->kids[0] = jj_parse_expression(p);
    if (!p->code && node->kids[0]->kind != JJ_CALL)
        jj_parse_fail(p, ERR_FORMAT, "expected a call in {%% call %%}");
    parse_macro_body(p, caller, "endcall");
    node->kids[1] = caller;
    return node;
}

static struct jj_node *parse_filter_block(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_FILTER_BLOCK);
    node->kids[0] = jj_parse_filters(p, NULL, true);
    node->kids[1] = parse_body(p, "endfilter");
    return node;
}

static struct jj_node *parse_with(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_WITH);
    struct jj_grow sets = {0};
    while (!p->code && p->token->kind != JJ_T_BLOCK_END) {
        if (sets.n)
            jj_expect_op(p, ",");
        struct jj_node *set = jj_parse_node(p, JJ_SET);
        const struct jj_token *name = jj_take_name(p, "the name of a variable");
        set->kids[0] = jj_parse_node(p, JJ_NAME);
        set->kids[0]->name = jj_parse_name(p, name);
        jj_expect_op(p, "=");
        set->kids[1] = jj_parse_expression(p);
        jj_grow_add(p, &sets, set);
    }
    node->list = jj_grow_list(&sets);
    node->kids[0] = parse_body(p, "endwith");
    return node;
}

static struct jj_node *parse_generation(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_SCOPE);
    node->kids[0] = parse_body(p, "endgeneration");
    return node;
}

static struct jj_node *parse_print(struct jj_parser *p)
{
    struct jj_node *body = jj_parse_node(p, JJ_BODY);
    struct jj_grow items = {0};
    do {
        struct jj_node *node = jj_parse_node(p, JJ_OUTPUT);
        node->kids[0] = jj_parse_expression(p);
        jj_grow_add(p, &items, node);
    } while (jj_skip_op(p, ","));
    body->list = jj_grow_list(&items);
    expect_block_end(p);
    return body;
}

static struct jj_node *parse_do(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_DO);
    node->kids[0] = jj_parse_tuple(p, NULL, true);
    expect_block_end(p);
    return node;
}

static struct jj_node *parse_jump(struct jj_parser *p, enum jj_kind kind)
{
    struct jj_node *node = jj_parse_node(p, kind);
    if (!p->loops)
        jj_parse_fail(p, ERR_FORMAT, "%s outside of a loop",
                      kind == JJ_BREAK ? "break" : "continue");
    expect_block_end(p);
    return node;
}

static struct jj_node *parse_break(struct jj_parser *p)
{
    return parse_jump(p, JJ_BREAK);
}

static struct jj_node *parse_continue(struct jj_parser *p)
{
    return parse_jump(p, JJ_CONTINUE);
}

static const struct {
    const char *name;
    struct jj_node *(*parse)(struct jj_parser *p); /* NULL: known, not supported */
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"print", parse_print},
    {"do", parse_do},
    {"break", parse_break},
    {"continue", parse_continue},
    {"include", NULL},
    {"import", NULL},
    {"from", NULL},
    {"extends", NULL},
    {"block", NULL},
    {"autoescape", NULL},
};

/* Behind `{%`. */
static struct jj_node *parse_statement(struct jj_parser *p)
{
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jj_at_name(p, statements[i].name))
            continue;
        if (statements[i].parse) {
            jj_parse_next(p);
            return statements[i].parse(p);
        }
        jj_parse_fail(p, ERR_UNSUPPORTED, "the statement '%s' is not supported in chat templates",
                      statements[i].name);
    }
    jj_parse_expected(p, "a statement");
    return jj_parse_node(p, JJ_CONST);
}

static void add_own_names(struct jj_parser *p)
{
    static const char *const own[JJ_N_OWN_NAMES] = {"loop", "caller", "varargs", "kwargs"};
    for (int i = 0; i < JJ_N_OWN_NAMES; i++) {
        struct jj_token t = {.kind = JJ_T_NAME, .text = own[i], .n = strlen(own[i])};
        jj_parse_name(p, &t);
    }
}

int jj_parse(struct jj_template *t, const char *source, size_t bytes, struct err *err)
{
    struct jj_tokens tokens = {0};
    int code = jj_lex(&t->arena, source, bytes, &tokens, err);
    if (code == 0) {
        struct jj_parser p = {.t = t, .arena = &t->arena, .token = tokens.items, .err = err};
        const struct jj_token *end;
        add_own_names(&p);
        t->body = parse_until(&p, "", &end);
        code = p.code;
    }
    free(tokens.items);
    return code;
}
