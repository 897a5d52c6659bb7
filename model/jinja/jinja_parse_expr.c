#include "jinja_parse.h"

#include <string.h>

/* Operators, from the tightest to the loosest. */

struct operator_row {
    const char *text;
    enum jj_op op;
};

static const struct operator_row powers[] = {{"**", JJ_POWER}, {0}};
static const struct operator_row products[] = {
    {"*", JJ_MULTIPLY}, {"/", JJ_DIVIDE}, {"//", JJ_FLOOR_DIVIDE}, {"%", JJ_MODULO}, {0}};
static const struct operator_row sums[] = {{"+", JJ_ADD}, {"-", JJ_SUBTRACT}, {0}};
static const struct operator_row comparisons[] = {
    {"==", JJ_EQ}, {"!=", JJ_NE}, {"<", JJ_LT}, {"<=", JJ_LE}, {">", JJ_GT}, {">=", JJ_GE}, {0}};

static bool skip_operator(struct jj_parser *p, const struct operator_row *rows, enum jj_op *op)
{
    for (; rows->text; rows++) {
        if (jj_skip_op(p, rows->text)) {
            *op = rows->op;
            return true;
        }
    }
    return false;
}

static struct jj_node *parse_concat(struct jj_parser *p);

/* Level 0: **, 1: products, 2: sums. Left-associative, all of them, as in jinja2. */
static struct jj_node *parse_arithmetic(struct jj_parser *p, int level)
{
    static const struct operator_row *const rows[] = {powers, products, sums};
    struct jj_node *left = NULL;
    enum jj_op op = JJ_ADD;
    int depth = p->depth;
    do {
        struct jj_node *right = level == 0   ? jj_parse_unary(p, true)
                                : level == 1 ? parse_arithmetic(p, 0)
                                             : parse_concat(p);
        left = left ? jj_node_binary(p, JJ_ARITHMETIC, left, right) : right;
        if (left->kind == JJ_ARITHMETIC && left->kids[1] == right)
            left->op = op;
    } while (!p->code && skip_operator(p, rows[level], &op) && jj_parse_enter(p));
    p->depth = depth;
    return left;
}

static struct jj_node *parse_concat(struct jj_parser *p)
{
    struct jj_node *first = parse_arithmetic(p, 1);
    if (!jj_at_op(p, "~"))
        return first;
    struct jj_node *node = jj_parse_node(p, JJ_CONCAT);
    struct jj_grow items = {0};
    jj_grow_add(p, &items, first);
    while (jj_skip_op(p, "~"))
        jj_grow_add(p, &items, parse_arithmetic(p, 1));
    node->list = jj_grow_list(&items);
    return node;
}

static bool skip_comparison(struct jj_parser *p, enum jj_op *op)
{
    if (skip_operator(p, comparisons, op))
        return true;
    if (jj_skip_name(p, "in")) {
        *op = JJ_IN;
        return true;
    }
    const struct jj_token *after = p->token + 1;
    if (!jj_at_name(p, "not") || after->kind != JJ_T_NAME || after->n != 2 ||
        memcmp(after->text, "in", 2) != 0)
        return false;
    jj_parse_next(p);
    jj_parse_next(p);
    *op = JJ_NOT_IN;
    return true;
}

static struct jj_node *parse_comparison(struct jj_parser *p)
{
    struct jj_node *first = parse_arithmetic(p, 2);
    struct jj_grow operands = {0};
    enum jj_op op;
    while (!p->code && skip_comparison(p, &op)) {
        struct jj_node *operand = jj_node_unary(p, JJ_OPERAND, parse_arithmetic(p, 2));
        operand->op = (uint8_t)op;
        jj_grow_add(p, &operands, operand);
    }
    if (!operands.n)
        return first;
    struct jj_node *node = jj_node_unary(p, JJ_COMPARE, first);
    node->list = jj_grow_list(&operands);
    return node;
}

static struct jj_node *parse_not(struct jj_parser *p)
{
    if (!jj_at_name(p, "not"))
        return parse_comparison(p);
    if (!jj_parse_enter(p))
        return jj_parse_node(p, JJ_CONST);
    jj_parse_next(p);
    struct jj_node *node = jj_node_unary(p, JJ_NOT, parse_not(p));
    p->depth--;
    return node;
}

static struct jj_node *parse_and(struct jj_parser *p)
{
    struct jj_node *left = parse_not(p);
    int depth = p->depth;
    while (jj_skip_name(p, "and") && jj_parse_enter(p))
        left = jj_node_binary(p, JJ_AND, left, parse_not(p));
    p->depth = depth;
    return left;
}

static struct jj_node *parse_or(struct jj_parser *p)
{
    struct jj_node *left = parse_and(p);
    int depth = p->depth;
    while (jj_skip_name(p, "or") && jj_parse_enter(p))
        left = jj_node_binary(p, JJ_OR, left, parse_and(p));
    p->depth = depth;
    return left;
}

static struct jj_node *parse_choice(struct jj_parser *p)
{
    struct jj_node *node = parse_or(p);
    int depth = p->depth;
    while (jj_skip_name(p, "if") && jj_parse_enter(p)) {
        node = jj_node_binary(p, JJ_CHOICE, node, parse_or(p));
        if (jj_skip_name(p, "else"))
            node->kids[2] = jj_parse_expression(p);
    }
    p->depth = depth;
    return node;
}

struct jj_node *jj_parse_expression(struct jj_parser *p)
{
    if (!jj_parse_enter(p))
        return jj_parse_node(p, JJ_CONST);
    struct jj_node *node = parse_choice(p);
    p->depth--;
    return node;
}

static bool at_tuple_end(const struct jj_parser *p, const char *stop)
{
    return p->token->kind == JJ_T_OUTPUT_END || p->token->kind == JJ_T_BLOCK_END ||
           jj_at_op(p, ")") || (stop && jj_at_name(p, stop));
}

struct jj_node *jj_parse_tuple(struct jj_parser *p, const char *stop, bool choice)
{
    struct jj_node *first = choice ? jj_parse_expression(p) : parse_or(p);
    if (!jj_at_op(p, ","))
        return first;
    struct jj_node *node = jj_parse_node(p, JJ_TUPLE_OF);
    struct jj_grow items = {0};
    jj_grow_add(p, &items, first);
    while (jj_skip_op(p, ",") && !at_tuple_end(p, stop))
        jj_grow_add(p, &items, choice ? jj_parse_expression(p) : parse_or(p));
    node->list = jj_grow_list(&items);
    return node;
}
