#ifndef MODEL_JINJA_EVAL_H
#define MODEL_JINJA_EVAL_H

#include "jinja_ast.h"
#include "jinja_builtin.h"
#include "jinja_str.h"

struct jj_value jj_eval(struct jj_rt *rt, const struct jj_node *node);
void jj_exec(struct jj_rt *rt, const struct jj_node *node);
/* What the statement writes, as a string, in the scope given. */
struct jj_value jj_exec_to_str(struct jj_rt *rt, const struct jj_node *node,
                               struct jj_scope *scope);
/* A for statement over `items`, which it is entered with again by loop(...). */
void jj_exec_loop(struct jj_rt *rt, const struct jj_node *node, struct jj_value items, int depth);

/* ---- variables ---- */
struct jj_scope *jj_scope_new(struct jj_rt *rt, struct jj_scope *parent); /* never NULL */
/* An empty scope for the next round of a loop: the last one (or NULL) again when nothing can
 * reach it any more. */
struct jj_scope *jj_scope_again(struct jj_rt *rt, struct jj_scope *last, struct jj_scope *parent);
void jj_scope_set(struct jj_rt *rt, struct jj_scope *s, int name, struct jj_value v);
struct jj_value jj_variable(struct jj_rt *rt, int name);
void jj_assign(struct jj_rt *rt, const struct jj_node *target, struct jj_value v);

/* ---- operators (jinja_ops.c) ---- */
struct jj_value jj_arithmetic(struct jj_rt *rt, enum jj_op op, struct jj_value a,
                              struct jj_value b);
struct jj_value jj_negate(struct jj_rt *rt, struct jj_value v);
bool jj_relation(struct jj_rt *rt, enum jj_op op, struct jj_value a, struct jj_value b);
bool jj_contains(struct jj_rt *rt, struct jj_value container, struct jj_value v);

/* ---- attributes (jinja_attr.c) ---- */
struct jj_value jj_attribute(struct jj_rt *rt, struct jj_value v, const struct jj_str *name);
struct jj_value jj_item(struct jj_rt *rt, struct jj_value v, struct jj_value key);
struct jj_value jj_slice(struct jj_rt *rt, struct jj_value v, const struct jj_value bounds[3]);

/* ---- calls (jinja_call.c) ---- */
struct jj_value jj_call(struct jj_rt *rt, struct jj_value callee, const struct jj_args *args);
/* False after a failure. */
bool jj_eval_args(struct jj_rt *rt, const struct jj_arg_nodes *nodes, struct jj_args *args);
void jj_args_add_named(struct jj_rt *rt, struct jj_args *args, const struct jj_str *name,
                       struct jj_value v);
struct jj_value jj_macro_new(struct jj_rt *rt, const struct jj_node *node);

#endif
