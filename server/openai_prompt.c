#include "openai.h"

#include "api.h"
#include "infill.h"
#include "json_in.h"

#include <stdlib.h>
#include <string.h>

/* `prompt` in its four forms and their mixture: tokens, and what `echo` shows. */

int openai_make_prompts(struct generation *g, int n, struct api_error *e)
{
    struct job_request *job = &g->job->request;
    job->n_prompts = n;
    job->prompts = mem_arena_alloc(&g->job->arena, (size_t)n * sizeof *job->prompts);
    g->prompts = mem_arena_alloc(&g->job->arena, (size_t)n * sizeof *g->prompts);
    return job->prompts && g->prompts ? 0 : api_no_memory(e);
}

static void truncate_ids(struct tok_ids *ids, const struct openai_request *r, int context)
{
    int64_t most = r->truncate_prompt == -1 ? context - 1 : r->truncate_prompt;
    if (r->truncate_prompt == 0 || ids->n <= most)
        return;
    bool right = r->truncation_side && strcmp(r->truncation_side, "right") == 0;
    if (!right)
        memmove(ids->ids, ids->ids + (ids->n - most), (size_t)most * sizeof *ids->ids);
    ids->n = (int)most;
}

static int refuse_length(int64_t tokens, int context, int room, const char *field,
                         struct api_error *e)
{
    return api_refuse(
        e, 400, "context_length_exceeded", field,
        "the prompt has %lld tokens, but the context holds %d tokens, %d of them for the "
        "answer at least",
        (long long)tokens, context, room);
}

static int check_length(struct generation *g, const struct tok_ids *ids,
                        const struct openai_request *r, const char *field, struct api_error *e)
{
    int64_t asked = r->max_completion_tokens >= 0 ? r->max_completion_tokens : r->max_tokens;
    int context = engine_context(g->server->engine), room = asked == 0 ? 0 : 1;
    if (ids->n == 0)
        return api_invalid(e, field, "there are no tokens in it");
    if (ids->n + room <= context)
        return 0;
    return refuse_length(ids->n, context, room, field, e);
}

int openai_take_prompt(struct generation *g, int i, struct tok_ids *ids,
                       const struct openai_request *r, struct api_error *e)
{
    struct tok_ids *to = &g->job->request.prompts[i];
    truncate_ids(ids, r, engine_context(g->server->engine));
    int failed = check_length(g, ids, r, r->messages ? "messages" : "prompt", e);
    if (!failed) {
        to->ids = mem_arena_alloc(&g->job->arena, (size_t)ids->n * sizeof *to->ids);
        failed = to->ids ? 0 : api_no_memory(e);
    }
    if (!failed) {
        memcpy(to->ids, ids->ids, (size_t)ids->n * sizeof *to->ids);
        to->n = to->cap = ids->n;
        g->options.prompt_tokens += ids->n;
    }
    free(ids->ids);
    *ids = (struct tok_ids){0};
    return failed;
}

static int push(struct tok_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        int cap = ids->cap ? 2 * ids->cap : 64;
        int32_t *more = realloc(ids->ids, (size_t)cap * sizeof *more);
        if (!more)
            return -1;
        ids->ids = more;
        ids->cap = cap;
    }
    ids->ids[ids->n++] = id;
    return 0;
}

static int ids_of_list(struct generation *g, const json_t *list, struct tok_ids *ids,
                       struct api_error *e)
{
    int most = tok_size(g->server->tokenizer);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            return api_invalid(e, "prompt", "a list of token ids holds %s%s", schema_type_name(v),
                               json_is_real(v) ? " that is no integer" : "");
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= most)
            return api_invalid(e, "prompt", "%lld is no token; ids go from 0 to %d", (long long)id,
                               most - 1);
        if (push(ids, (int32_t)id))
            return api_no_memory(e);
    }
    return 0;
}

static int ids_of_text(struct generation *g, const json_t *v, const struct openai_request *r,
                       struct tok_ids *ids, struct api_error *e)
{
    const struct tok_options options = {.special = true, .add_bos = !json_is_false(r->add_special)};
    struct err err = {0};
    if (tok_encode(g->server->tokenizer, json_string_value(v), json_string_length(v), &options, ids,
                   &err))
        return api_refuse(e, err.code == ERR_NOMEM ? 500 : 400, "invalid_value", "prompt", "%s",
                          err.text);
    return 0;
}

static int push_text(struct generation *g, const char *text, size_t bytes, struct tok_ids *ids,
                     struct api_error *e)
{
    const struct tok_options options = {0}; /* text around a hole is text */
    struct err err;
    if (tok_encode(g->server->tokenizer, text, bytes, &options, ids, &err) == 0)
        return 0;
    return api_refuse(e, err.code == ERR_NOMEM ? 500 : 400, "invalid_value", "prompt", "%s",
                      err.text);
}

/* before the hole, after it, and then the model is to write what is between. */
static int ids_of_infill(struct generation *g, const json_t *v, const struct openai_request *r,
                         struct tok_ids *ids, struct api_error *e)
{
    const struct tokenizer *t = g->server->tokenizer;
    struct infill form;
    if (!infill_find(t, &form))
        return api_refuse(e, 400, "unsupported_value", "suffix",
                          "suffix: this model has no tokens to fill in the middle");
    if (!json_is_string(v))
        return api_invalid(e, "suffix", "it goes with a prompt that is text");
    bool bos = tok_adds_bos(t) && tok_bos(t) >= 0 && !json_is_false(r->add_special);
    if (bos && push(ids, tok_bos(t)))
        return api_no_memory(e);
    for (int part = 0; part < 2; part++) {
        bool after = form.after_first ? part == 0 : part == 1;
        const char *text = after ? r->suffix : json_string_value(v);
        if (push(ids, after ? form.after : form.before))
            return api_no_memory(e);
        if (push_text(g, text, after ? strlen(text) : json_string_length(v), ids, e))
            return -1;
    }
    return form.middle >= 0 && push(ids, form.middle) ? api_no_memory(e) : 0;
}

/* The specification's default: the mark that separates documents. */
static int ids_of_nothing(struct generation *g, struct tok_ids *ids, struct api_error *e)
{
    const struct tokenizer *t = g->server->tokenizer;
    int32_t id = tok_bos(t) >= 0 ? tok_bos(t) : tok_eos(t);
    if (id < 0)
        return api_invalid(e, "prompt", "it is missing");
    return push(ids, id) ? api_no_memory(e) : 0;
}

/* The text that echo shows: as it was sent, or spelled by its tokens. */
static int make_echo(struct generation *g, int i, const json_t *v, const struct openai_request *r,
                     struct api_error *e)
{
    struct generation_prompt *p = &g->prompts[i];
    const struct tok_ids *ids = &g->job->request.prompts[i];
    struct strbuf text = {0};
    if (!r->echo)
        return 0;
    if (json_is_string(v) && r->truncate_prompt == 0)
        strbuf_add(&text, json_string_value(v), json_string_length(v));
    else if (tok_decode(g->server->tokenizer, ids->ids, ids->n, !r->skip_special, &text))
        text.failed = true;
    strbuf_adds(&text, "");
    p->text = text.failed ? NULL : mem_arena_strndup(&g->job->arena, text.data, text.len);
    p->text_bytes = text.len;
    strbuf_finish(&text);
    return p->text ? 0 : api_no_memory(e);
}

static int make_prompt(struct generation *g, int i, const json_t *v, const struct openai_request *r,
                       struct api_error *e)
{
    struct tok_ids ids = {0};
    int failed;
    if (r->suffix && *r->suffix)
        failed = ids_of_infill(g, v, r, &ids, e);
    else if (!v)
        failed = ids_of_nothing(g, &ids, e);
    else if (json_is_string(v))
        failed = ids_of_text(g, v, r, &ids, e);
    else if (json_is_array(v))
        failed = ids_of_list(g, v, &ids, e);
    else
        failed = api_invalid(e, "prompt", "text or token ids were expected, not %s",
                             schema_type_name(v));
    if (failed) {
        free(ids.ids);
        return failed;
    }
    return openai_take_prompt(g, i, &ids, r, e) || make_echo(g, i, v, r, e) ? -1 : 0;
}

static int make_all(struct generation *g, const struct openai_request *r, struct api_error *e)
{
    const json_t *v = r->prompt;
    const json_t *first = json_array_get(v, 0);
    bool several = json_is_array(v) && !json_is_number(first);
    size_t n = several ? json_array_size(v) : 1;
    if (v && !json_is_string(v) && !json_is_array(v))
        return api_invalid(e, "prompt", "text or a list was expected, not %s", schema_type_name(v));
    if (json_is_array(v) && !first)
        return api_invalid(e, "prompt", "the list is empty");
    if (n > (size_t)g->server->config->most_choices)
        return api_invalid(e, "prompt", "%zu prompts were given, %d are the most", n,
                           g->server->config->most_choices);
    if (openai_make_prompts(g, (int)n, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (make_prompt(g, (int)i, several ? json_array_get(v, i) : v, r, e))
            return -1;
    return 0;
}

void completions_weigh(struct exchange *ex)
{
    const char *body = ex->body.data;
    size_t bytes = ex->body.len;
    int context = engine_context(ex->server->engine);
    const char *prompt = bytes > 2 * (size_t)context ? json_in_member(body, bytes, "prompt") : NULL;
    if (!prompt || json_in_member(body, bytes, "truncate_prompt_tokens"))
        return;
    size_t n = json_in_longest_list(prompt, bytes - (size_t)(prompt - body));
    if (n > (size_t)context)
        refuse_length((int64_t)n, context, 1, "prompt", &ex->error);
}

void completions_work(struct exchange *ex)
{
    struct openai_request r;
    struct schema_unknown unknown = {0};
    json_t *root = openai_request_read(ex, false, &r, &unknown);
    if (!root)
        return;
    struct generation *g = generation_create(ex, &openai_completion_dialect);
    bool ok = g && openai_check_model(g, &r, &ex->error) == 0;
    ok = ok && make_all(g, &r, &ex->error) == 0;
    if (ok)
        openai_fill(g, &r, false, &unknown, &ex->error);
    json_decref(root);
    strbuf_finish(&ex->body);
}
