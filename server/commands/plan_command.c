#include "commands.h"
#include "session.h"

#include <stdio.h>

/* `ropewalk plan FILE`: from the header alone, what the model needs and what fits. */

#define MOST_CONTEXTS 32

/* Context lengths to show when none were given: powers of four up to the model's own. */
static int default_contexts(const struct model_plan *p, int *out, int most)
{
    int n = 0;
    for (int c = 1024; c < p->context && n < most - 1; c *= 4)
        out[n++] = c;
    out[n++] = p->context;
    return n;
}

static void list_contexts(const struct settings *s, const struct model_plan *p, int *out, int most,
                          int *n)
{
    if (!s->contexts.n) {
        *n = default_contexts(p, out, most);
        return;
    }
    for (*n = 0; *n < s->contexts.n && *n < most; ++*n)
        out[*n] = s->contexts.items[*n];
}

static void print_windows(const struct model_plan *p)
{
    for (int g = 0; g < p->kv.groups; g++)
        if (p->kv.group[g].window)
            printf("  window          %d of %d layers see the last %d tokens\n", p->group_layers[g],
                   p->layers, p->kv.group[g].window);
}

/* "f16", or "q8_0 (full), f16 (window)". */
static void print_types(const struct model_plan *p)
{
    bool same = true;
    for (int g = 1; g < p->kv.groups; g++)
        same = same && p->kv_types[g] == p->kv_types[0];
    if (same)
        printf("%s", kv_type_name(p->kv_types[0]));
    for (int g = 0; g < p->kv.groups && !same; g++)
        printf("%s%s (%s)", g ? ", " : "", kv_type_name(p->kv_types[g]), p->kv.group[g].name);
    putchar('\n');
}

static void print_model(const struct model_plan *p)
{
    printf("%s\n", p->name);
    printf("  architecture    %s, %.1f million parameters\n", p->architecture,
           (double)p->parameters * 1e-6);
    printf("  layers          %d, width %d, vocabulary %d\n", p->layers, p->width, p->vocabulary);
    printf("  attention       %d heads of size %d, %d for keys and values\n", p->heads, p->key_size,
           p->kv_heads);
    print_windows(p);
    printf("  context         %d tokens", p->context);
    printf(p->context == p->trained_context ? "\n" : " (trained: %d)\n", p->trained_context);
    printf("  keys, values    %s a token, kept as ", size_text((double)p->kv_bytes_per_token).text);
    print_types(p);
}

static void print_budget(const struct session *session)
{
    const struct model_plan *p = model_plan(session->model);
    struct budget_line lines[BUDGET_LINES];
    budget_lines(&session->budget, p, lines);
    printf("\nMemory             %11s, with %d threads\n",
           size_text((double)session->budget.total).text, session->threads);
    for (int i = 0; i < BUDGET_LINES; i++)
        printf("  %-15s  %11s%s%s\n", lines[i].name, size_text((double)lines[i].bytes).text,
               *lines[i].what ? "   " : "", lines[i].what);
    if (!session_fits(session))
        printf("  It does not fit: %11s are needed at least.\n",
               size_text((double)session_least(session)).text);
}

static void print_contexts(const struct settings *s, const struct session *session)
{
    const struct model_plan *p = model_plan(session->model);
    int contexts[MOST_CONTEXTS], n;
    list_contexts(s, p, contexts, MOST_CONTEXTS, &n);
    printf("\nKeys and values of so many users, how many fit, attention's share of the work\n%9s",
           "context");
    for (int u = 0; u < s->users.n; u++)
        printf("  %10d", s->users.items[u]);
    printf("  that fit   share\n");
    for (int i = 0; i < n; i++) {
        size_t one = model_kv_bytes(p, contexts[i]);
        printf("%9d", contexts[i]);
        for (int u = 0; u < s->users.n; u++)
            printf("  %10s", size_text((double)one * s->users.items[u]).text);
        printf("  %8zu  %4.1f %%\n", one ? session->budget.arena / one : 0,
               100 * model_plan_attention_share(p, contexts[i]));
    }
}

/* ---- JSON ---- */

static json_t *context_json(const struct settings *s, const struct session *session, int context)
{
    const struct model_plan *p = model_plan(session->model);
    size_t one = model_kv_bytes(p, context);
    json_t *users = json_object();
    for (int u = 0; u < s->users.n; u++) {
        char name[16];
        snprintf(name, sizeof name, "%d", s->users.items[u]);
        json_object_set_new(users, name,
                            json_integer((json_int_t)(one * (size_t)s->users.items[u])));
    }
    return json_pack("{s:i, s:I, s:o, s:I, s:f}", "context", context, "kv_bytes", (json_int_t)one,
                     "kv_bytes_by_users", users, "users_that_fit",
                     (json_int_t)(one ? session->budget.arena / one : 0), "attention_share",
                     model_plan_attention_share(p, context));
}

static json_t *contexts_json(const struct settings *s, const struct session *session)
{
    int contexts[MOST_CONTEXTS], n;
    json_t *rows = json_array();
    list_contexts(s, model_plan(session->model), contexts, MOST_CONTEXTS, &n);
    for (int i = 0; i < n; i++)
        json_array_append_new(rows, context_json(s, session, contexts[i]));
    return rows;
}

static json_t *groups_json(const struct model_plan *p)
{
    json_t *groups = json_array();
    for (int g = 0; g < p->kv.groups; g++)
        json_array_append_new(
            groups, json_pack("{s:s, s:i, s:i, s:s, s:I}", "name", p->kv.group[g].name, "layers",
                              p->group_layers[g], "window", p->kv.group[g].window, "type",
                              kv_type_name(p->kv_types[g]), "bytes_per_token",
                              (json_int_t)(p->kv.group[g].block_bytes / KV_BLOCK_TOKENS)));
    return groups;
}

static json_t *memory_json(const struct session *session)
{
    struct budget_line lines[BUDGET_LINES];
    json_t *all = json_pack("{s:I}", "budget", (json_int_t)session->budget.total);
    budget_lines(&session->budget, model_plan(session->model), lines);
    for (int i = 0; i < BUDGET_LINES; i++)
        json_object_set_new(all, lines[i].key, json_integer((json_int_t)lines[i].bytes));
    json_object_set_new(all, "connections", json_integer(session->budget.connections));
    json_object_set_new(all, "body", json_integer((json_int_t)session->budget.body));
    json_object_set_new(all, "least", json_integer((json_int_t)session_least(session)));
    json_object_set_new(all, "fits", json_boolean(session_fits(session)));
    return all;
}

static json_t *plan_json(const struct settings *s, const struct session *session)
{
    const struct model_plan *p = model_plan(session->model);
    return json_pack(
        "{s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:I, s:o, s:i, s:i, "
        "s:o, s:o}",
        "name", p->name, "architecture", p->architecture, "parameters", (json_int_t)p->parameters,
        "layers", p->layers, "width", p->width, "vocabulary", p->vocabulary, "heads", p->heads,
        "kv_heads", p->kv_heads, "key_size", p->key_size, "value_size", p->value_size, "context",
        p->context, "trained_context", p->trained_context, "kv_type", s->kv, "kv_bytes_per_token",
        (json_int_t)p->kv_bytes_per_token, "kv_groups", groups_json(p), "threads", session->threads,
        "batch_tokens", p->batch_tokens, "memory", memory_json(session), "contexts",
        contexts_json(s, session));
}

static int print_json(const struct settings *s, const struct session *session)
{
    json_t *all = plan_json(s, session);
    int rc = all ? json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : -1;
    json_decref(all);
    putchar('\n');
    if (rc)
        fprintf(stderr, "ropewalk: the plan cannot be written as JSON\n");
    return rc;
}

int command_plan(const struct settings *s)
{
    struct session session;
    struct err err;
    int rc = session_plan(&session, s, &err);
    if (rc) {
        fprintf(stderr, "ropewalk: %s\n", err.text);
    } else if (s->json) {
        rc = print_json(s, &session);
    } else {
        print_model(model_plan(session.model));
        print_budget(&session);
        print_contexts(s, &session);
    }
    session_finish(&session);
    return rc != 0;
}
