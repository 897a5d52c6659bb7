#include "commands.h"
#include "session.h"

#include <stdio.h>

/* `ropewalk plan FILE`: from the header alone, what the model needs and what fits. */

static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

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

#define MOST_CONTEXTS 32

static void print_model(const struct model_plan *p)
{
    printf("model            %s (%s)\n", p->name, p->architecture);
    printf("parameters       %.1f million\n", (double)p->parameters * 1e-6);
    printf("layers           %d, width %d, vocabulary %d\n", p->layers, p->width, p->vocabulary);
    printf("attention        %d heads, %d KV heads, head size %d\n", p->heads, p->kv_heads,
           p->key_size);
    for (int g = 0; g < p->kv.groups; g++)
        if (p->kv.group[g].window)
            printf("window           %d tokens\n", p->kv.group[g].window);
    printf("context          %d (trained: %d)\n", p->context, p->trained_context);
    printf("KV a token       %zu bytes\n", p->kv_bytes_per_token);
}

static void print_budget(const struct budget *b)
{
    printf("\nmemory budget    %10.1f MiB\n", mib(b->total));
    printf("  weights        %10.1f MiB\n", mib(b->weights));
    printf("  scratch        %10.1f MiB\n", mib(b->scratch));
    printf("  logits         %10.1f MiB\n", mib(b->logits));
    printf("  program        %10.1f MiB\n", mib(b->process));
    printf("  cache lists    %10.1f MiB\n", mib(b->overhead));
    if (b->arena)
        printf("  keys, values   %10.1f MiB left\n", mib(b->arena));
    else
        printf("  the model does not fit into this budget\n");
}

static void print_contexts(const struct settings *s, const struct session *session)
{
    const struct model_plan *p = model_plan(session->model);
    int contexts[MOST_CONTEXTS], n;
    list_contexts(s, p, contexts, MOST_CONTEXTS, &n);
    printf("\n%9s", "context");
    for (int u = 0; u < s->users.n; u++)
        printf("  KV MiB, %4d user%s", s->users.items[u], s->users.items[u] == 1 ? " " : "s");
    printf("  users that fit  attention's share of the work\n");
    for (int i = 0; i < n; i++) {
        size_t one = model_kv_bytes(p, contexts[i]);
        printf("%9d", contexts[i]);
        for (int u = 0; u < s->users.n; u++)
            printf("  %17.1f", mib(one) * s->users.items[u]);
        printf("  %14zu  %27.1f %%\n", one ? session->budget.arena / one : 0,
               100 * model_attention_share(p->parameters, p->layers, p->width, contexts[i]));
    }
}

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
                     model_attention_share(p->parameters, p->layers, p->width, context));
}

static void print_json(const struct settings *s, const struct session *session)
{
    const struct model_plan *p = model_plan(session->model);
    const struct budget *b = &session->budget;
    int contexts[MOST_CONTEXTS], n;
    json_t *rows = json_array();
    list_contexts(s, p, contexts, MOST_CONTEXTS, &n);
    for (int i = 0; i < n; i++)
        json_array_append_new(rows, context_json(s, session, contexts[i]));
    json_t *all = json_pack(
        "{s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:o}",
        "name", p->name, "architecture", p->architecture, "parameters", (json_int_t)p->parameters,
        "layers", p->layers, "width", p->width, "vocabulary", p->vocabulary, "context", p->context,
        "trained_context", p->trained_context, "kv_bytes_per_token",
        (json_int_t)p->kv_bytes_per_token, "memory", "budget", (json_int_t)b->total, "weights",
        (json_int_t)b->weights, "scratch", (json_int_t)b->scratch, "logits", (json_int_t)b->logits,
        "program", (json_int_t)b->process, "cache_lists", (json_int_t)b->overhead,
        "keys_and_values", (json_int_t)b->arena, "contexts", rows);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

int command_plan(const struct settings *s)
{
    struct session session;
    struct err err;
    int rc = session_plan(&session, s, &err);
    if (rc) {
        fprintf(stderr, "ropewalk: %s\n", err.text);
    } else if (s->json) {
        print_json(s, &session);
    } else {
        print_model(model_plan(session.model));
        print_budget(&session.budget);
        print_contexts(s, &session);
    }
    session_finish(&session);
    return rc != 0;
}
