#ifndef MODEL_JINJA_PARSE_H
#define MODEL_JINJA_PARSE_H

#include "jinja_ast.h"
#include "jinja_lex.h"

/* Shared by the parser of statements and that of expressions. The first error is kept; after it
 * the token at hand is always the end, so that all loops end. Functions return a node always (an
 * empty constant after a failure). */

struct jj_parser {
    struct jj_template *t;
    struct mem_arena *arena;
    const struct jj_token *token;
    struct err *err;
    int code;
    int depth;
    int loops;                /* for statements around */
    struct jj_params *params; /* of the macro around, or NULL */
    int *name_index;          /* open addressing: name number + 1 */
    int name_slots, name_cap;
};

struct jj_grow {
    struct jj_node **items;
    int n, cap;
};

void jj_parse_fail(struct jj_parser *p, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails with "expected ..., found ...". */
void jj_parse_expected(struct jj_parser *p, const char *what);
bool jj_parse_enter(struct jj_parser *p);
void *jj_parse_alloc(struct jj_parser *p, size_t bytes);
struct jj_node *jj_parse_node(struct jj_parser *p, enum jj_kind kind);
const struct jj_str *jj_parse_text(struct jj_parser *p, const char *text, size_t n);
int jj_parse_name(struct jj_parser *p, const struct jj_token *token);
void jj_grow_add(struct jj_parser *p, struct jj_grow *g, struct jj_node *node);
struct jj_node_list jj_grow_list(const struct jj_grow *g);

bool jj_token_is(const struct jj_token *t, enum jj_token_kind kind, const char *text);
void jj_parse_next(struct jj_parser *p);
bool jj_at_op(const struct jj_parser *p, const char *op);
bool jj_at_name(const struct jj_parser *p, const char *name);
bool jj_skip_op(struct jj_parser *p, const char *op);
bool jj_skip_name(struct jj_parser *p, const char *name);
void jj_expect_op(struct jj_parser *p, const char *op);
void jj_expect_name(struct jj_parser *p, const char *name);
/* The name at hand, passed over. */
const struct jj_token *jj_take_name(struct jj_parser *p, const char *what);

/* A node with one kid, or two. */
struct jj_node *jj_node_unary(struct jj_parser *p, enum jj_kind kind, struct jj_node *a);
struct jj_node *jj_node_binary(struct jj_parser *p, enum jj_kind kind, struct jj_node *a,
                               struct jj_node *b);

/* A primary expression with all that may follow it (attributes, items, calls, and filters and
 * tests if wanted) and the signs in front of it. */
struct jj_node *jj_parse_unary(struct jj_parser *p, bool with_filter);
struct jj_node *jj_parse_expression(struct jj_parser *p);
/* An expression or several with commas; `stop`: a name that ends it, or NULL; choice: with
 * inline if. */
struct jj_node *jj_parse_tuple(struct jj_parser *p, const char *stop, bool choice);
/* What can be assigned to. */
struct jj_node *jj_parse_target(struct jj_parser *p, bool with_namespace);
/* `|`-separated filters on `input`, which is NULL in blocks; the first `|` is passed already when
 * `begun`. */
struct jj_node *jj_parse_filters(struct jj_parser *p, struct jj_node *input, bool begun);

#endif
