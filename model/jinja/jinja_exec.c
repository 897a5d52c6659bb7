#include "jinja_eval.h"

/* Statements, one function per kind. */

static void exec_body(struct jj_rt *rt, const struct jj_node *node)
{
    for (int i = 0; i < node->list.n && !rt->failed && rt->flow == JJ_FLOW_ON; i++)
        jj_exec(rt, node->list.items[i]);
}

/* In a scope of its own, which ends with it. */
static void exec_inner(struct jj_rt *rt, const struct jj_node *node, struct jj_scope *scope)
{
    struct jj_scope *outer = rt->scope;
    rt->scope = scope;
    jj_exec(rt, node);
    rt->scope = outer;
}

struct jj_value jj_exec_to_str(struct jj_rt *rt, const struct jj_node *node, struct jj_scope *scope)
{
    struct jj_buf text = {0}, *out = rt->out;
    rt->out = &text;
    exec_inner(rt, node, scope);
    rt->out = out;
    return jj_string(jj_buf_str(rt, &text));
}

static void exec_data(struct jj_rt *rt, const struct jj_node *node)
{
    jj_buf_add_str(rt, rt->out, node->text);
}

static void exec_output(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value v = jj_eval(rt, node->kids[0]);
    if (!rt->failed)
        jj_buf_add_value(rt, rt->out, v);
}

static void exec_if(struct jj_rt *rt, const struct jj_node *node)
{
    /* A long chain of elif is a loop here, no recursion. */
    while (!jj_truth(jj_eval(rt, node->kids[0]))) {
        const struct jj_node *otherwise = node->kids[2];
        if (!otherwise || rt->failed)
            return;
        if (otherwise->kind != JJ_IF) {
            jj_exec(rt, otherwise);
            return;
        }
        node = otherwise;
        rt->line = node->line;
    }
    jj_exec(rt, node->kids[1]);
}

/* The items for which the condition of the for statement holds. */
static struct jj_seq *loop_select(struct jj_rt *rt, const struct jj_node *node,
                                  struct jj_seq *items)
{
    if (!node->kids[2])
        return items;
    struct jj_seq *selected = jj_seq_new(rt, JJ_LIST);
    struct jj_scope *outer = rt->scope, *inner = NULL;
    for (size_t i = 0; i < items->n && !rt->failed; i++) {
        rt->scope = inner = jj_scope_again(rt, inner, outer);
        jj_assign(rt, node->kids[0], items->items[i]);
        if (jj_truth(jj_eval(rt, node->kids[2])))
            jj_seq_add(rt, selected, items->items[i]);
    }
    rt->scope = outer;
    return selected;
}

static void exec_round(struct jj_rt *rt, struct jj_loop *loop, struct jj_scope *inner)
{
    struct jj_value self = {.type = JJ_LOOP, .loop = loop};
    rt->scope = inner;
    jj_scope_set(rt, rt->scope, JJ_NAME_LOOP, self);
    jj_assign(rt, loop->node->kids[0], loop->items->items[loop->index]);
    if (!rt->failed)
        jj_exec(rt, loop->node->kids[3]);
}

void jj_exec_loop(struct jj_rt *rt, const struct jj_node *node, struct jj_value items, int depth)
{
    struct jj_loop *loop = jj_alloc(rt, 1, sizeof *loop);
    if (!loop)
        return;
    *loop = (struct jj_loop){.node = node, .depth = depth, .outer = rt->scope};
    loop->items = loop_select(rt, node, jj_iterate(rt, items));
    bool empty = loop->items->n == 0;
    struct jj_scope *inner = NULL;
    for (; loop->index < loop->items->n && !rt->failed; loop->index++) {
        inner = jj_scope_again(rt, inner, loop->outer);
        exec_round(rt, loop, inner);
        enum jj_flow flow = rt->flow;
        rt->flow = JJ_FLOW_ON;
        if (flow == JJ_FLOW_BREAK)
            break;
    }
    rt->scope = loop->outer;
    if (empty && node->kids[4])
        exec_inner(rt, node->kids[4], jj_scope_new(rt, rt->scope));
}

static void exec_for(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value items = jj_eval(rt, node->kids[1]);
    if (!rt->failed)
        jj_exec_loop(rt, node, items, 0);
}

static void exec_set(struct jj_rt *rt, const struct jj_node *node)
{
    jj_assign(rt, node->kids[0], jj_eval(rt, node->kids[1]));
}

/* The filters of a block, whose innermost has no input of its own. */
static struct jj_value apply_filters(struct jj_rt *rt, const struct jj_node *node,
                                     struct jj_value v)
{
    struct jj_args args;
    if (!node || !jj_enter(rt))
        return v;
    v = apply_filters(rt, node->kids[0], v);
    if (!node->apply.row)
        jj_fail(rt, ERR_ARG, "No filter named '%.100s' found.", node->apply.text->bytes);
    else if (jj_eval_args(rt, node->apply.args, &args))
        v = jj_builtin_call(rt, node->apply.row, v, &args);
    jj_leave(rt);
    return v;
}

static void exec_set_block(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value text = jj_exec_to_str(rt, node->kids[2], jj_scope_new(rt, rt->scope));
    jj_assign(rt, node->kids[0], apply_filters(rt, node->kids[1], text));
}

static void exec_filter_block(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value text = jj_exec_to_str(rt, node->kids[1], jj_scope_new(rt, rt->scope));
    jj_buf_add_value(rt, rt->out, apply_filters(rt, node->kids[0], text));
}

static void exec_macro(struct jj_rt *rt, const struct jj_node *node)
{
    jj_scope_set(rt, rt->scope, node->name, jj_macro_new(rt, node));
}

static void exec_call_block(struct jj_rt *rt, const struct jj_node *node)
{
    static const struct jj_str caller = {.bytes = "caller", .n = 6, .chars = 6};
    const struct jj_node *call = node->kids[0];
    struct jj_args args;
    struct jj_value callee = jj_eval(rt, call->kids[0]);
    if (!jj_eval_args(rt, call->apply.args, &args))
        return;
    jj_args_add_named(rt, &args, &caller, jj_macro_new(rt, node->kids[1]));
    struct jj_value text = jj_call(rt, callee, &args);
    if (!rt->failed)
        jj_buf_add_value(rt, rt->out, text);
}

static void exec_with(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_scope *outer = rt->scope, *inner = jj_scope_new(rt, outer);
    /* The values are those of the scope outside. */
    for (int i = 0; i < node->list.n && !rt->failed; i++) {
        const struct jj_node *set = node->list.items[i];
        struct jj_value v = jj_eval(rt, set->kids[1]);
        rt->scope = inner;
        jj_assign(rt, set->kids[0], v);
        rt->scope = outer;
    }
    exec_inner(rt, node->kids[0], inner);
}

static void exec_scope(struct jj_rt *rt, const struct jj_node *node)
{
    exec_inner(rt, node->kids[0], jj_scope_new(rt, rt->scope));
}

static void exec_do(struct jj_rt *rt, const struct jj_node *node)
{
    jj_eval(rt, node->kids[0]);
}

static void exec_break(struct jj_rt *rt, const struct jj_node *node)
{
    (void)node;
    rt->flow = JJ_FLOW_BREAK;
}

static void exec_continue(struct jj_rt *rt, const struct jj_node *node)
{
    (void)node;
    rt->flow = JJ_FLOW_CONTINUE;
}

static void (*const execs[JJ_N_KINDS])(struct jj_rt *, const struct jj_node *) = {
    [JJ_BODY] = exec_body,
    [JJ_DATA] = exec_data,
    [JJ_OUTPUT] = exec_output,
    [JJ_IF] = exec_if,
    [JJ_FOR] = exec_for,
    [JJ_SET] = exec_set,
    [JJ_SET_BLOCK] = exec_set_block,
    [JJ_MACRO] = exec_macro,
    [JJ_CALL_BLOCK] = exec_call_block,
    [JJ_FILTER_BLOCK] = exec_filter_block,
    [JJ_WITH] = exec_with,
    [JJ_SCOPE] = exec_scope,
    [JJ_DO] = exec_do,
    [JJ_BREAK] = exec_break,
    [JJ_CONTINUE] = exec_continue,
};

void jj_exec(struct jj_rt *rt, const struct jj_node *node)
{
    if (!jj_enter(rt))
        return;
    if (node->kind != JJ_BODY)
        rt->line = node->line;
    execs[node->kind](rt, node);
    jj_leave(rt);
}
