#include "jinja_eval.h"

/* ---- variables ---- */

struct jj_scope *jj_scope_new(struct jj_rt *rt, struct jj_scope *parent)
{
    struct jj_scope *s = jj_alloc(rt, 1, sizeof *s);
    if (!s)
        return parent;
    s->parent = parent;
    return s;
}

struct jj_scope *jj_scope_again(struct jj_rt *rt, struct jj_scope *last, struct jj_scope *parent)
{
    if (!last || last->captured || rt->failed)
        return jj_scope_new(rt, parent);
    last->n = 0;
    return last;
}

void jj_scope_set(struct jj_rt *rt, struct jj_scope *s, int name, struct jj_value v)
{
    if (!jj_step(rt, 1 + (size_t)s->n / 16))
        return;
    for (int i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].value = v;
            return;
        }
    }
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        struct jj_binding *vars = jj_alloc(rt, (size_t)cap, sizeof *vars);
        if (!vars)
            return;
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jj_binding){.name = name, .value = v};
}

struct jj_value jj_variable(struct jj_rt *rt, int name)
{
    for (const struct jj_scope *s = rt->scope; s; s = s->parent) {
        if (!jj_step(rt, (size_t)s->n / 16))
            break;
        for (int i = 0; i < s->n; i++)
            if (s->vars[i].name == name)
                return s->vars[i].value;
    }
    struct jj_value v = rt->globals[name];
    return jj_given(v) ? v : jj_undefined(rt->t->names[name]->bytes);
}

static void assign_many(struct jj_rt *rt, const struct jj_node_list *targets, struct jj_value v)
{
    if (!jj_check_defined(rt, v))
        return;
    const struct jj_seq *items = jj_iterate(rt, v);
    if ((size_t)targets->n != items->n)
        jj_fail(rt, ERR_ARG, "%zu values for %d variables", items->n, targets->n);
    for (int i = 0; i < targets->n && !rt->failed; i++)
        jj_assign(rt, targets->items[i], items->items[i]);
}

void jj_assign(struct jj_rt *rt, const struct jj_node *target, struct jj_value v)
{
    if (rt->failed)
        return;
    if (target->kind == JJ_NAME) {
        jj_scope_set(rt, rt->scope, target->name, v);
    } else if (target->kind == JJ_TUPLE_OF) {
        assign_many(rt, &target->list, v);
    } else {
        struct jj_value object = jj_eval(rt, target->kids[0]);
        if (object.type == JJ_NAMESPACE)
            jj_dict_set(rt, object.dict, jj_string(target->text), v);
        else
            jj_fail(rt, ERR_ARG, "cannot assign attribute on non-namespace object");
    }
}

/* ---- expressions, one function per kind ---- */

static struct jj_value eval_const(struct jj_rt *rt, const struct jj_node *node)
{
    (void)rt;
    return node->constant;
}

static struct jj_value eval_name(struct jj_rt *rt, const struct jj_node *node)
{
    return jj_variable(rt, node->name);
}

static struct jj_value eval_items(struct jj_rt *rt, const struct jj_node *node,
                                  enum jj_seq_kind kind)
{
    struct jj_seq *s = jj_seq_new(rt, kind);
    for (int i = 0; i < node->list.n && !rt->failed; i++)
        jj_seq_add(rt, s, jj_eval(rt, node->list.items[i]));
    return jj_sequence(s);
}

static struct jj_value eval_list(struct jj_rt *rt, const struct jj_node *node)
{
    return eval_items(rt, node, JJ_LIST);
}

static struct jj_value eval_tuple(struct jj_rt *rt, const struct jj_node *node)
{
    return eval_items(rt, node, JJ_TUPLE);
}

static struct jj_value eval_dict(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_dict *d = jj_dict_new(rt);
    for (int i = 0; i + 1 < node->list.n && !rt->failed; i += 2) {
        struct jj_value key = jj_eval(rt, node->list.items[i]);
        jj_dict_set(rt, d, key, jj_eval(rt, node->list.items[i + 1]));
    }
    return jj_mapping(d);
}

static struct jj_value eval_not(struct jj_rt *rt, const struct jj_node *node)
{
    return jj_bool(!jj_truth(jj_eval(rt, node->kids[0])));
}

static struct jj_value eval_negate(struct jj_rt *rt, const struct jj_node *node)
{
    return jj_negate(rt, jj_eval(rt, node->kids[0]));
}

static struct jj_value eval_plus(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value v = jj_eval(rt, node->kids[0]);
    return v.type == JJ_FLOAT ? v : jj_negate(rt, jj_negate(rt, v));
}

static struct jj_value eval_and(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value v = jj_eval(rt, node->kids[0]);
    return jj_truth(v) ? jj_eval(rt, node->kids[1]) : v;
}

static struct jj_value eval_or(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value v = jj_eval(rt, node->kids[0]);
    return jj_truth(v) ? v : jj_eval(rt, node->kids[1]);
}

static struct jj_value eval_arithmetic(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value a = jj_eval(rt, node->kids[0]);
    struct jj_value b = jj_eval(rt, node->kids[1]);
    return rt->failed ? (struct jj_value){0} : jj_arithmetic(rt, node->op, a, b);
}

static struct jj_value eval_concat(struct jj_rt *rt, const struct jj_node *node)
{
    const struct jj_str *text = &jj_empty;
    for (int i = 0; i < node->list.n && !rt->failed; i++)
        text = jj_str_concat(rt, text, jj_to_str(rt, jj_eval(rt, node->list.items[i])));
    return jj_string(text);
}

static struct jj_value eval_compare(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value left = jj_eval(rt, node->kids[0]);
    bool holds = true;
    for (int i = 0; i < node->list.n && holds && !rt->failed; i++) {
        const struct jj_node *operand = node->list.items[i];
        struct jj_value right = jj_eval(rt, operand->kids[0]);
        holds = !rt->failed && jj_relation(rt, operand->op, left, right);
        left = right;
    }
    return jj_bool(holds);
}

static struct jj_value eval_choice(struct jj_rt *rt, const struct jj_node *node)
{
    if (jj_truth(jj_eval(rt, node->kids[1])))
        return jj_eval(rt, node->kids[0]);
    return node->kids[2] ? jj_eval(rt, node->kids[2])
                         : jj_undefined("the value of an if without else");
}

static struct jj_value eval_attribute(struct jj_rt *rt, const struct jj_node *node)
{
    return jj_attribute(rt, jj_eval(rt, node->kids[0]), node->text);
}

static struct jj_value eval_item(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value object = jj_eval(rt, node->kids[0]);
    return jj_item(rt, object, jj_eval(rt, node->kids[1]));
}

static struct jj_value eval_slice(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value object = jj_eval(rt, node->kids[0]), bounds[3] = {0};
    for (int i = 0; i < 3; i++)
        if (node->kids[i + 1])
            bounds[i] = jj_eval(rt, node->kids[i + 1]);
    return jj_slice(rt, object, bounds);
}

static struct jj_value eval_call(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_args args;
    struct jj_value callee = jj_eval(rt, node->kids[0]);
    if (!jj_eval_args(rt, node->apply.args, &args))
        return (struct jj_value){0};
    return jj_call(rt, callee, &args);
}

static struct jj_value eval_apply(struct jj_rt *rt, const struct jj_node *node, struct jj_value v,
                                  const char *what)
{
    struct jj_args args;
    if (!node->apply.row)
        return jj_fail(rt, ERR_ARG, "No %s named '%.100s' found.", what, node->apply.text->bytes);
    if (!jj_eval_args(rt, node->apply.args, &args))
        return (struct jj_value){0};
    return jj_builtin_call(rt, node->apply.row, v, &args);
}

static struct jj_value eval_filter(struct jj_rt *rt, const struct jj_node *node)
{
    return eval_apply(rt, node, jj_eval(rt, node->kids[0]), "filter");
}

static struct jj_value eval_test(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_value v = eval_apply(rt, node, jj_eval(rt, node->kids[0]), "test");
    return jj_bool(jj_truth(v) != node->flag);
}

static struct jj_value (*const evals[JJ_N_KINDS])(struct jj_rt *, const struct jj_node *) = {
    [JJ_CONST] = eval_const,
    [JJ_NAME] = eval_name,
    [JJ_LIST_OF] = eval_list,
    [JJ_TUPLE_OF] = eval_tuple,
    [JJ_DICT_OF] = eval_dict,
    [JJ_NOT] = eval_not,
    [JJ_NEGATE] = eval_negate,
    [JJ_PLUS] = eval_plus,
    [JJ_AND] = eval_and,
    [JJ_OR] = eval_or,
    [JJ_ARITHMETIC] = eval_arithmetic,
    [JJ_CONCAT] = eval_concat,
    [JJ_COMPARE] = eval_compare,
    [JJ_CHOICE] = eval_choice,
    [JJ_ATTRIBUTE] = eval_attribute,
    [JJ_ITEM] = eval_item,
    [JJ_SLICE] = eval_slice,
    [JJ_CALL] = eval_call,
    [JJ_FILTER] = eval_filter,
    [JJ_TEST] = eval_test,
};

struct jj_value jj_eval(struct jj_rt *rt, const struct jj_node *node)
{
    if (!jj_enter(rt))
        return (struct jj_value){0};
    struct jj_value v = evals[node->kind](rt, node);
    jj_leave(rt);
    return rt->failed ? (struct jj_value){0} : v;
}
