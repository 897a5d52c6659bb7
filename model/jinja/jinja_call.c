#include "jinja_eval.h"

/* ---- built-ins ---- */

const struct jj_builtin *jj_builtin_find(const struct jj_builtin *const *tables,
                                         const struct jj_str *name)
{
    for (; *tables; tables++)
        for (const struct jj_builtin *row = *tables; row->name; row++)
            if (jj_str_is(name, row->name))
                return row;
    return NULL;
}

const struct jj_builtin *jj_method_find(struct jj_value v, const struct jj_str *name)
{
    static const struct jj_builtin *const of_str[] = {jj_str_methods, jj_str_predicates, NULL};
    static const struct jj_builtin *const of_list[] = {jj_list_methods, NULL};
    static const struct jj_builtin *const of_dict[] = {jj_dict_methods, NULL};
    static const struct jj_builtin *const of_loop[] = {jj_loop_methods, NULL};
    switch (v.type) {
    case JJ_STR:
        return jj_builtin_find(of_str, name);
    case JJ_SEQ:
        return v.seq->kind <= JJ_TUPLE ? jj_builtin_find(of_list, name) : NULL;
    case JJ_DICT:
        return jj_builtin_find(of_dict, name);
    case JJ_LOOP:
        return jj_builtin_find(of_loop, name);
    default:
        return NULL;
    }
}

/* The place of a name in "a,b,c", or -1. */
static int param_place(const char *params, const struct jj_str *name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, ",");
        if (n == name->n && memcmp(params, name->bytes, n) == 0)
            return i;
        params += n + (params[n] == ',');
    }
    return -1;
}

static int param_count(const char *params)
{
    int n = *params != 0;
    for (; *params; params++)
        n += *params == ',';
    return n;
}

static bool bind(struct jj_rt *rt, const struct jj_builtin *row, const struct jj_args *args,
                 struct jj_call *c)
{
    int n = param_count(row->params);
    if (args->n > n)
        jj_fail(rt, ERR_ARG, "%s() takes at most %d arguments (%d given)", row->name, n, args->n);
    for (int i = 0; i < args->n && i < n; i++)
        c->a[i] = args->items[i];
    for (int i = 0; i < args->n_named && !rt->failed; i++) {
        const struct jj_str *name = args->named[i].name;
        int place = param_place(row->params, name);
        if (place < 0)
            jj_fail(rt, ERR_ARG, "%s() has no argument '%.*s'", row->name,
                    (int)(name->n < 100 ? name->n : 100), name->bytes);
        else
            c->a[place] = args->named[i].value;
    }
    for (int i = 0; i < row->required && !rt->failed; i++)
        if (!jj_given(c->a[i]))
            jj_fail(rt, ERR_ARG, "%s() needs at least %d arguments", row->name, row->required);
    return !rt->failed;
}

struct jj_value jj_builtin_call(struct jj_rt *rt, const struct jj_builtin *row,
                                struct jj_value self, const struct jj_args *args)
{
    struct jj_call c = {.args = args};
    if (row->params && !bind(rt, row, args, &c))
        return (struct jj_value){0};
    return row->fn(rt, self, &c);
}

struct jj_value jj_bound(struct jj_rt *rt, const struct jj_builtin *row, struct jj_value self)
{
    struct jj_callable *c = jj_alloc(rt, 1, sizeof *c);
    if (!c)
        return (struct jj_value){0};
    *c = (struct jj_callable){.builtin = row, .self = self};
    return (struct jj_value){.type = JJ_CALLABLE, .callable = c};
}

/* ---- arguments ---- */

void jj_args_add_named(struct jj_rt *rt, struct jj_args *args, const struct jj_str *name,
                       struct jj_value v)
{
    struct jj_named *more = jj_alloc(rt, (size_t)args->n_named + 1, sizeof *more);
    if (!more || !jj_step(rt, (size_t)args->n_named))
        return;
    if (args->n_named)
        memcpy(more, args->named, (size_t)args->n_named * sizeof *more);
    more[args->n_named] = (struct jj_named){.name = name, .value = v};
    args->named = more;
    args->n_named++;
}

static void eval_star2(struct jj_rt *rt, const struct jj_node *node, struct jj_args *args)
{
    struct jj_value v = jj_eval(rt, node);
    if (v.type != JJ_DICT) {
        jj_fail(rt, ERR_ARG, "the argument after ** must be a mapping, not %s", jj_type_name(v));
        return;
    }
    for (size_t i = 0; i < v.dict->n && !rt->failed; i++)
        jj_args_add_named(rt, args, jj_arg_str(rt, v.dict->entries[i].key),
                          v.dict->entries[i].value);
}

bool jj_eval_args(struct jj_rt *rt, const struct jj_arg_nodes *nodes, struct jj_args *args)
{
    struct jj_seq *items = jj_seq_new(rt, JJ_LIST);
    *args = (struct jj_args){0};
    for (int i = 0; i < nodes->items.n && !rt->failed; i++)
        jj_seq_add(rt, items, jj_eval(rt, nodes->items.items[i]));
    if (nodes->star) {
        const struct jj_seq *more = jj_iterate(rt, jj_eval(rt, nodes->star));
        for (size_t i = 0; i < more->n && !rt->failed; i++)
            jj_seq_add(rt, items, more->items[i]);
    }
    args->items = items->items;
    args->n = (int)items->n;
    for (int i = 0; i < nodes->n_named && !rt->failed; i++)
        jj_args_add_named(rt, args, nodes->named[i].name, jj_eval(rt, nodes->named[i].value));
    if (nodes->star2)
        eval_star2(rt, nodes->star2, args);
    return !rt->failed;
}

/* ---- macros ---- */

struct jj_value jj_macro_new(struct jj_rt *rt, const struct jj_node *node)
{
    struct jj_callable *c = jj_alloc(rt, 1, sizeof *c);
    if (!c)
        return (struct jj_value){0};
    *c = (struct jj_callable){.macro = node, .closure = rt->scope};
    for (struct jj_scope *s = rt->scope; s && !s->captured; s = s->parent)
        s->captured = true;
    return (struct jj_value){.type = JJ_CALLABLE, .callable = c};
}

static const struct jj_value *named_value(const struct jj_args *args, const struct jj_str *name)
{
    for (int i = 0; i < args->n_named; i++)
        if (jj_str_equal(args->named[i].name, name))
            return &args->named[i].value;
    return NULL;
}

static struct jj_value param_value(struct jj_rt *rt, const struct jj_param *param, int place,
                                   const struct jj_args *args)
{
    const struct jj_value *named = named_value(args, param->text);
    if (place < args->n)
        return args->items[place];
    if (named)
        return *named;
    return param->otherwise ? jj_eval(rt, param->otherwise) : jj_undefined(param->text->bytes);
}

static bool is_param(const struct jj_params *params, const struct jj_str *name)
{
    for (int i = 0; i < params->n; i++)
        if (jj_str_equal(params->items[i].text, name))
            return true;
    return false;
}

/* Named arguments that are no parameters: the caller of a call block, and kwargs. */
static void bind_rest(struct jj_rt *rt, const struct jj_params *params, const struct jj_args *args)
{
    struct jj_dict *kwargs = jj_dict_new(rt);
    struct jj_seq *varargs = jj_seq_new(rt, JJ_TUPLE);
    for (int i = params->n; i < args->n; i++)
        jj_seq_add(rt, varargs, args->items[i]);
    for (int i = 0; i < args->n_named && !rt->failed; i++) {
        const struct jj_named *a = &args->named[i];
        if (is_param(params, a->name))
            continue;
        if (jj_str_is(a->name, "caller"))
            jj_scope_set(rt, rt->scope, JJ_NAME_CALLER, a->value);
        else if (params->kwargs)
            jj_dict_set(rt, kwargs, jj_string(a->name), a->value);
        else
            jj_fail(rt, ERR_ARG, "the macro has no parameter '%.*s'",
                    (int)(a->name->n < 100 ? a->name->n : 100), a->name->bytes);
    }
    if (params->kwargs)
        jj_scope_set(rt, rt->scope, JJ_NAME_KWARGS, jj_mapping(kwargs));
    if (params->varargs)
        jj_scope_set(rt, rt->scope, JJ_NAME_VARARGS, jj_sequence(varargs));
}

static struct jj_value macro_call(struct jj_rt *rt, const struct jj_callable *c,
                                  const struct jj_args *args)
{
    const struct jj_params *params = c->macro->params;
    if (args->n > params->n && !params->varargs)
        return jj_fail(rt, ERR_ARG, "the macro takes not more than %d arguments", params->n);
    struct jj_scope *outer = rt->scope;
    int line = rt->line;
    rt->scope = jj_scope_new(rt, c->closure);
    bind_rest(rt, params, args);
    for (int i = 0; i < params->n && jj_step(rt, (size_t)args->n_named); i++)
        jj_scope_set(rt, rt->scope, params->items[i].name,
                     param_value(rt, &params->items[i], i, args));
    struct jj_value text = jj_exec_to_str(rt, c->macro->kids[0], rt->scope);
    rt->scope = outer;
    if (!rt->failed)
        rt->line = line;
    return text;
}

/* loop(items): the same for statement again, one level deeper. */
static struct jj_value loop_call(struct jj_rt *rt, const struct jj_loop *loop,
                                 const struct jj_args *args)
{
    if (!loop->node->recursive || args->n != 1)
        return jj_fail(rt, ERR_ARG, "loop() needs {%% for ... recursive %%} and one argument");
    struct jj_buf text = {0}, *out = rt->out;
    struct jj_scope *scope = rt->scope;
    rt->out = &text;
    rt->scope = loop->outer;
    jj_exec_loop(rt, loop->node, args->items[0], loop->depth + 1);
    rt->out = out;
    rt->scope = scope;
    return jj_string(jj_buf_str(rt, &text));
}

static struct jj_value call_any(struct jj_rt *rt, struct jj_value callee,
                                const struct jj_args *args)
{
    if (callee.type == JJ_LOOP)
        return loop_call(rt, callee.loop, args);
    if (callee.type == JJ_CALLABLE && callee.callable->builtin)
        return jj_builtin_call(rt, callee.callable->builtin, callee.callable->self, args);
    if (callee.type == JJ_CALLABLE)
        return macro_call(rt, callee.callable, args);
    if (!jj_check_defined(rt, callee))
        return (struct jj_value){0};
    return jj_fail(rt, ERR_ARG, "'%s' object is not callable", jj_type_name(callee));
}

struct jj_value jj_call(struct jj_rt *rt, struct jj_value callee, const struct jj_args *args)
{
    if (!jj_enter(rt))
        return (struct jj_value){0};
    struct jj_value v = call_any(rt, callee, args);
    jj_leave(rt);
    return v;
}
