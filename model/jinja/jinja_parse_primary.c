#include "jinja_builtin.h"
#include "jinja_parse.h"
#include "jinja_str.h"

#include <errno.h>
#include <stdlib.h>

/* Primary expressions and what follows them. */

/* ---- arguments ---- */

static void add_named(struct jj_parser *p, struct jj_arg_nodes *args, const struct jj_str *name,
                      struct jj_node *value)
{
    /* Grows by powers of two. */
    if ((args->n_named & (args->n_named - 1)) == 0) {
        size_t cap = args->n_named ? (size_t)args->n_named * 2 : 1;
        struct jj_keyword *more = jj_parse_alloc(p, cap * sizeof *more);
        if (!more)
            return;
        if (args->n_named)
            memcpy(more, args->named, (size_t)args->n_named * sizeof *more);
        args->named = more;
    }
    args->named[args->n_named++] = (struct jj_keyword){.name = name, .value = value};
}

static void parse_argument(struct jj_parser *p, struct jj_arg_nodes *args, struct jj_grow *items)
{
    if (jj_skip_op(p, "**")) {
        args->star2 = jj_parse_expression(p);
    } else if (jj_skip_op(p, "*")) {
        args->star = jj_parse_expression(p);
    } else if (p->token->kind == JJ_T_NAME && p->token[1].kind == JJ_T_OP && p->token[1].n == 1 &&
               p->token[1].text[0] == '=') {
        const struct jj_str *name = jj_parse_text(p, p->token->text, p->token->n);
        jj_parse_next(p);
        jj_parse_next(p);
        add_named(p, args, name, jj_parse_expression(p));
    } else {
        if (args->n_named || args->star2)
            jj_parse_fail(p, ERR_FORMAT, "an argument without a name follows one with a name");
        jj_grow_add(p, items, jj_parse_expression(p));
    }
}

/* `( ... )` */
static struct jj_arg_nodes *parse_arguments(struct jj_parser *p)
{
    struct jj_arg_nodes *args = jj_parse_alloc(p, sizeof *args);
    struct jj_grow items = {0};
    jj_expect_op(p, "(");
    bool first = true;
    while (args && !p->code && !jj_at_op(p, ")")) {
        if (!first)
            jj_expect_op(p, ",");
        first = false;
        if (jj_at_op(p, ")"))
            break;
        parse_argument(p, args, &items);
    }
    jj_expect_op(p, ")");
    if (args)
        args->items = jj_grow_list(&items);
    return args;
}

static struct jj_arg_nodes *no_arguments(struct jj_parser *p)
{
    return jj_parse_alloc(p, sizeof(struct jj_arg_nodes));
}

/* ---- primary ---- */

static struct jj_node *constant(struct jj_parser *p, struct jj_value v)
{
    struct jj_node *node = jj_parse_node(p, JJ_CONST);
    node->constant = v;
    return node;
}

static struct jj_node *parse_name(struct jj_parser *p)
{
    static const struct {
        const char *name;
        struct jj_value value;
    } words[] = {{"true", {.type = JJ_BOOL, .boolean = true}},
                 {"True", {.type = JJ_BOOL, .boolean = true}},
                 {"false", {.type = JJ_BOOL}},
                 {"False", {.type = JJ_BOOL}},
                 {"none", {.type = JJ_NONE}},
                 {"None", {.type = JJ_NONE}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (jj_skip_name(p, words[i].name))
            return constant(p, words[i].value);
    struct jj_node *node = jj_parse_node(p, JJ_NAME);
    node->name = jj_parse_name(p, p->token);
    if (p->params) {
        p->params->varargs |= node->name == JJ_NAME_VARARGS;
        p->params->kwargs |= node->name == JJ_NAME_KWARGS;
    }
    jj_parse_next(p);
    return node;
}

/* Digits without '_', zero-terminated. */
static char *number_text(struct jj_parser *p)
{
    char *text = jj_parse_alloc(p, p->token->n + 1);
    size_t n = 0;
    for (size_t i = 0; text && i < p->token->n; i++)
        if (p->token->text[i] != '_')
            text[n++] = p->token->text[i];
    return text;
}

static struct jj_node *parse_number(struct jj_parser *p)
{
    bool is_int = p->token->kind == JJ_T_INT;
    char *text = number_text(p), *end = text;
    struct jj_value v = jj_none();
    if (!text)
        return constant(p, v);
    errno = 0;
    if (!is_int) {
        v = jj_float(strtod(text, &end));
    } else {
        char c = text[0] == '0' ? (char)(text[1] | 0x20) : 0;
        int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        v = jj_int(strtoll(text + (base == 10 ? 0 : 2), &end, base));
    }
    if (*end || (is_int && errno))
        jj_parse_fail(p, ERR_FORMAT, "the number %.40s cannot be used", text);
    jj_parse_next(p);
    return constant(p, v);
}

static struct jj_node *parse_string(struct jj_parser *p)
{
    const struct jj_token *first = p->token;
    size_t n = 0;
    for (; p->token->kind == JJ_T_STRING; jj_parse_next(p))
        n += p->token->n;
    if (p->token == first + 1)
        return constant(p, jj_string(jj_parse_text(p, first->text, n)));
    char *text = jj_parse_alloc(p, n + 1);
    size_t to = 0;
    for (const struct jj_token *t = first; text && t < p->token; to += t->n, t++)
        memcpy(text + to, t->text, t->n);
    return constant(p, jj_string(jj_parse_text(p, text, text ? n : 0)));
}

static struct jj_node *parse_list(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_LIST_OF);
    struct jj_grow items = {0};
    jj_expect_op(p, "[");
    while (!p->code && !jj_at_op(p, "]")) {
        if (items.n)
            jj_expect_op(p, ",");
        if (jj_at_op(p, "]"))
            break;
        jj_grow_add(p, &items, jj_parse_expression(p));
    }
    jj_expect_op(p, "]");
    node->list = jj_grow_list(&items);
    return node;
}

static struct jj_node *parse_dict(struct jj_parser *p)
{
    struct jj_node *node = jj_parse_node(p, JJ_DICT_OF);
    struct jj_grow items = {0};
    jj_expect_op(p, "{");
    while (!p->code && !jj_at_op(p, "}")) {
        if (items.n)
            jj_expect_op(p, ",");
        if (jj_at_op(p, "}"))
            break;
        jj_grow_add(p, &items, jj_parse_expression(p));
        jj_expect_op(p, ":");
        jj_grow_add(p, &items, jj_parse_expression(p));
    }
    jj_expect_op(p, "}");
    node->list = jj_grow_list(&items);
    return node;
}

static struct jj_node *parse_parentheses(struct jj_parser *p)
{
    jj_expect_op(p, "(");
    struct jj_node *node = jj_at_op(p, ")") ? jj_parse_node(p, JJ_TUPLE_OF)
                                            : jj_parse_tuple(p, NULL, true);
    jj_expect_op(p, ")");
    return node;
}

static struct jj_node *parse_primary(struct jj_parser *p)
{
    switch (p->token->kind) {
    case JJ_T_NAME:
        return parse_name(p);
    case JJ_T_STRING:
        return parse_string(p);
    case JJ_T_INT:
    case JJ_T_FLOAT:
        return parse_number(p);
    default:
        break;
    }
    if (jj_at_op(p, "("))
        return parse_parentheses(p);
    if (jj_at_op(p, "["))
        return parse_list(p);
    if (jj_at_op(p, "{"))
        return parse_dict(p);
    jj_parse_expected(p, "an expression");
    return jj_parse_node(p, JJ_CONST);
}

/* ---- what follows a primary ---- */

static bool at_bound_end(const struct jj_parser *p)
{
    return jj_at_op(p, ":") || jj_at_op(p, "]") || jj_at_op(p, ",");
}

/* One index or slice between brackets. */
static struct jj_node *parse_index(struct jj_parser *p, struct jj_node *object)
{
    struct jj_node *bounds[3] = {0};
    int n = 0;
    if (!at_bound_end(p))
        bounds[0] = jj_parse_expression(p);
    if (!jj_at_op(p, ":"))
        return jj_node_binary(p, JJ_ITEM, object,
                              bounds[0] ? bounds[0] : jj_parse_node(p, JJ_CONST));
    while (n < 2 && jj_skip_op(p, ":")) {
        n++;
        if (!at_bound_end(p))
            bounds[n] = jj_parse_expression(p);
    }
    struct jj_node *node = jj_node_unary(p, JJ_SLICE, object);
    memcpy(node->kids + 1, bounds, sizeof bounds);
    return node;
}

static struct jj_node *parse_brackets(struct jj_parser *p, struct jj_node *object)
{
    jj_expect_op(p, "[");
    if (jj_at_op(p, "]"))
        jj_parse_expected(p, "an index");
    struct jj_node *node = parse_index(p, object);
    if (node->kind == JJ_ITEM && jj_at_op(p, ",")) { /* x[a, b]: the key is a tuple */
        struct jj_grow items = {0};
        jj_grow_add(p, &items, node->kids[1]);
        while (jj_skip_op(p, ",") && !jj_at_op(p, "]"))
            jj_grow_add(p, &items, jj_parse_expression(p));
        node->kids[1] = jj_parse_node(p, JJ_TUPLE_OF);
        node->kids[1]->list = jj_grow_list(&items);
    }
    jj_expect_op(p, "]");
    return node;
}

static struct jj_node *parse_dot(struct jj_parser *p, struct jj_node *object)
{
    jj_expect_op(p, ".");
    if (p->token->kind == JJ_T_INT)
        return jj_node_binary(p, JJ_ITEM, object, parse_number(p));
    struct jj_node *node = jj_node_unary(p, JJ_ATTRIBUTE, object);
    const struct jj_token *name = jj_take_name(p, "the name of an attribute");
    node->text = jj_parse_text(p, name->text, name->n);
    return node;
}

static struct jj_node *parse_call(struct jj_parser *p, struct jj_node *callee)
{
    struct jj_node *node = jj_node_unary(p, JJ_CALL, callee);
    node->apply.args = parse_arguments(p);
    return node;
}

/* Chains are loops here but recursion when they run: each link counts as depth. */
static struct jj_node *parse_postfix(struct jj_parser *p, struct jj_node *node)
{
    int depth = p->depth;
    while (!p->code && p->token->kind == JJ_T_OP) {
        if (jj_at_op(p, "."))
            node = parse_dot(p, node);
        else if (jj_at_op(p, "["))
            node = parse_brackets(p, node);
        else if (jj_at_op(p, "("))
            node = parse_call(p, node);
        else
            break;
        jj_parse_enter(p);
    }
    p->depth = depth;
    return node;
}

static const struct jj_token *dotted_name(struct jj_parser *p, struct jj_node *node,
                                          const char *what)
{
    const struct jj_token *name = jj_take_name(p, what);
    node->apply.text = jj_parse_text(p, name->text, name->n);
    while (jj_skip_op(p, "."))
        jj_take_name(p, what);
    return name;
}

struct jj_node *jj_parse_filters(struct jj_parser *p, struct jj_node *input, bool begun)
{
    int depth = p->depth;
    while (!p->code && (begun || jj_skip_op(p, "|"))) {
        begun = false;
        struct jj_node *node = jj_node_unary(p, JJ_FILTER, input);
        dotted_name(p, node, "the name of a filter");
        node->apply.row = jj_builtin_find(jj_filters, node->apply.text);
        node->apply.args = jj_at_op(p, "(") ? parse_arguments(p) : no_arguments(p);
        input = node;
        jj_parse_enter(p);
    }
    p->depth = depth;
    return input;
}

static bool at_test_argument(const struct jj_parser *p)
{
    if (p->token->kind == JJ_T_OP)
        return jj_at_op(p, "[") || jj_at_op(p, "{");
    if (p->token->kind == JJ_T_NAME)
        return !jj_at_name(p, "else") && !jj_at_name(p, "or") && !jj_at_name(p, "and") &&
               !jj_at_name(p, "is") && !jj_at_name(p, "if");
    return p->token->kind == JJ_T_STRING || p->token->kind == JJ_T_INT ||
           p->token->kind == JJ_T_FLOAT;
}

static struct jj_node *parse_test(struct jj_parser *p, struct jj_node *input)
{
    struct jj_node *node = jj_node_unary(p, JJ_TEST, input);
    node->flag = jj_skip_name(p, "not");
    dotted_name(p, node, "the name of a test");
    node->apply.row = jj_builtin_find(jj_tests, node->apply.text);
    if (jj_at_op(p, "(")) {
        node->apply.args = parse_arguments(p);
        return node;
    }
    node->apply.args = no_arguments(p);
    if (at_test_argument(p) && node->apply.args) {
        struct jj_grow items = {0};
        jj_grow_add(p, &items, parse_postfix(p, parse_primary(p)));
        node->apply.args->items = jj_grow_list(&items);
    }
    return node;
}

static struct jj_node *parse_filter_chain(struct jj_parser *p, struct jj_node *node)
{
    int depth = p->depth;
    while (!p->code) {
        if (jj_at_op(p, "|"))
            node = jj_parse_filters(p, node, false);
        else if (jj_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (jj_at_op(p, "("))
            node = parse_call(p, node);
        else
            break;
        jj_parse_enter(p);
    }
    p->depth = depth;
    return node;
}

struct jj_node *jj_parse_unary(struct jj_parser *p, bool with_filter)
{
    struct jj_node *node;
    if (!jj_parse_enter(p))
        return jj_parse_node(p, JJ_CONST);
    if (jj_skip_op(p, "-"))
        node = jj_node_unary(p, JJ_NEGATE, jj_parse_unary(p, false));
    else if (jj_skip_op(p, "+"))
        node = jj_node_unary(p, JJ_PLUS, jj_parse_unary(p, false));
    else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    if (with_filter)
        node = parse_filter_chain(p, node);
    p->depth--;
    return node;
}

/* ---- targets ---- */

static struct jj_node *parse_target_one(struct jj_parser *p, bool with_namespace)
{
    if (!jj_parse_enter(p))
        return jj_parse_node(p, JJ_CONST);
    struct jj_node *node;
    if (jj_skip_op(p, "(")) {
        node = jj_parse_target(p, with_namespace);
        jj_expect_op(p, ")");
    } else {
        const struct jj_token *name = jj_take_name(p, "the name of a variable");
        node = jj_parse_node(p, JJ_NAME);
        node->name = jj_parse_name(p, name);
        if (with_namespace && jj_at_op(p, "."))
            node = parse_dot(p, node);
    }
    p->depth--;
    return node;
}

struct jj_node *jj_parse_target(struct jj_parser *p, bool with_namespace)
{
    struct jj_node *first = parse_target_one(p, with_namespace);
    if (!jj_at_op(p, ","))
        return first;
    struct jj_node *node = jj_parse_node(p, JJ_TUPLE_OF);
    struct jj_grow items = {0};
    jj_grow_add(p, &items, first);
    while (jj_skip_op(p, ",") &&
           (jj_at_op(p, "(") || (p->token->kind == JJ_T_NAME && !jj_at_name(p, "in"))))
        jj_grow_add(p, &items, parse_target_one(p, with_namespace));
    node->list = jj_grow_list(&items);
    return node;
}
