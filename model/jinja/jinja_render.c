#include "jinja_render.h"
#include "jinja_eval.h"

/* A role often stands inside of a special token ('<|' + role + '|>'), so the usual ones, which a
 * server knows and can check, count as the template's own text. Any other role stays plain. */
static const char *const known_roles[] = {"system",   "developer",   "user",    "assistant", "tool",
                                          "function", "observation", "ipython", "model"};

static void trust_role(struct jj_rt *rt, struct jj_value message)
{
    if (message.type != JJ_DICT)
        return;
    struct jj_value *role = jj_dict_find_name(rt, message.dict, "role");
    if (!role || role->type != JJ_STR)
        return;
    for (size_t i = 0; i < sizeof known_roles / sizeof *known_roles; i++)
        if (jj_str_is(role->str, known_roles[i]))
            *role = jj_string(jj_str_share(rt, known_roles[i], role->str->n, 0));
}

static void trust_roles(struct jj_rt *rt, struct jj_value messages)
{
    if (messages.type != JJ_SEQ)
        return;
    for (size_t i = 0; i < messages.seq->n && jj_step(rt, 1); i++)
        trust_role(rt, messages.seq->items[i]);
}

/* What a template may ask for although the caller has not got it. */
static struct jj_value usual_value(const char *name)
{
    if (strcmp(name, "tools") == 0 || strcmp(name, "documents") == 0)
        return jj_none();
    if (strcmp(name, "add_generation_prompt") == 0)
        return jj_bool(false);
    return (struct jj_value){0};
}

static struct jj_value global_value(struct jj_rt *rt, const struct jj_str *name,
                                    const struct jj_input *input)
{
    const json_t *json = input->trusted ? json_object_get(input->trusted, name->bytes) : NULL;
    if (json)
        return jj_from_json(rt, json, 0);
    json = json_object_get(input->plain, name->bytes);
    if (json) {
        struct jj_value v = jj_from_json(rt, json, 1);
        if (jj_str_is(name, "messages"))
            trust_roles(rt, v);
        return v;
    }
    const struct jj_builtin *row = jj_builtin_find(jj_functions, name);
    return row ? jj_bound(rt, row, jj_none()) : usual_value(name->bytes);
}

static void globals_init(struct jj_rt *rt, const struct jj_input *input)
{
    const struct jj_template *t = rt->t;
    rt->globals = jj_alloc(rt, (size_t)t->n_names, sizeof *rt->globals);
    for (int i = 0; i < t->n_names && !rt->failed; i++)
        rt->globals[i] = global_value(rt, t->names[i], input);
}

int jj_render(struct jj_rt *rt, const struct jj_input *input, struct jj_buf *out)
{
    struct jj_scope root = {0};
    rt->now = input->now;
    rt->scope = &root;
    rt->out = out;
    rt->line = 1;
    globals_init(rt, input);
    if (!rt->failed)
        jj_exec(rt, rt->t->body);
    return rt->failed ? rt->code : 0;
}
