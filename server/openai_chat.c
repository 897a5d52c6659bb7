#include "openai.h"

#include "json_out.h"

#include <string.h>

#define OBJECT "chat.completion"
#define CHUNK  "chat.completion.chunk"

static void add_bytes(const char *piece, size_t n, struct strbuf *out)
{
    strbuf_addc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            strbuf_addc(out, ',');
        json_out_int(out, (unsigned char)piece[i]);
    }
    strbuf_addc(out, ']');
}

static void add_token(const struct generation *g, int32_t id, float logprob, struct strbuf *out)
{
    size_t n;
    const char *piece = tok_piece(g->server->tokenizer, id, true, &n);
    strbuf_adds(out, "{\"token\":");
    openai_token(g, id, out);
    strbuf_adds(out, ",\"logprob\":");
    openai_logprob(logprob, out);
    strbuf_adds(out, ",\"bytes\":");
    add_bytes(piece, n, out);
}

static void add_with_tops(const struct generation *g, const struct job_token *t, struct strbuf *out)
{
    add_token(g, t->id, t->logprob, out);
    strbuf_adds(out, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        if (i)
            strbuf_addc(out, ',');
        add_token(g, t->top[i].id, t->top[i].logprob, out);
        strbuf_addc(out, '}');
    }
    strbuf_adds(out, "]}");
}

static void add_logprobs(const struct generation *g, const struct job_event *e, struct strbuf *out)
{
    bool first = true;
    strbuf_adds(out, ",\"logprobs\":");
    if (!g->options.logprobs) {
        strbuf_adds(out, "null");
        return;
    }
    strbuf_adds(out, "{\"content\":[");
    for (; e; e = e->next)
        for (int i = 0; i < e->n_tokens; i++, first = false) {
            if (!first)
                strbuf_addc(out, ',');
            add_with_tops(g, &e->tokens[i], out);
        }
    strbuf_adds(out, "],\"refusal\":null}");
}

/* ---- a whole answer ---- */

static void add_choice(const struct generation *g, int i, struct strbuf *out)
{
    const struct generation_choice *c = &g->choices[i];
    strbuf_addf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i);
    json_out_string(out, c->text.data ? c->text.data : "", c->text.len);
    strbuf_adds(out, ",\"refusal\":null}");
    add_logprobs(g, c->events, out);
    strbuf_addc(out, ',');
    openai_finish(g, c, out);
    if (g->options.token_ids) {
        strbuf_adds(out, ",\"token_ids\":");
        openai_event_ids(c->events, out);
    }
    strbuf_addc(out, '}');
}

static void whole(struct generation *g, struct strbuf *out)
{
    const struct tok_ids *prompt = &g->job->request.prompts[0];
    openai_head(g, OBJECT, out);
    strbuf_adds(out, ",\"choices\":[");
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            strbuf_addc(out, ',');
        add_choice(g, i, out);
    }
    strbuf_adds(out, "],\"usage\":");
    openai_usage(g, out);
    if (g->options.prompt_logprobs) {
        strbuf_adds(out, ",\"prompt_logprobs\":");
        openai_prompt_logprobs(g, &g->prompts[0], out);
    }
    if (g->options.token_ids) {
        strbuf_adds(out, ",\"prompt_token_ids\":");
        openai_ids(prompt->ids, prompt->n, out);
    }
    strbuf_addc(out, '}');
}

/* ---- a stream ---- */

static void chunk_open(struct generation *g, int choice, struct strbuf *out)
{
    openai_chunk_begin(g, CHUNK, out);
    strbuf_addf(out, "{\"index\":%d,\"delta\":{", choice);
}

static void chunk_close(struct generation *g, const struct job_event *tokens, struct strbuf *out)
{
    strbuf_addc(out, '}');
    add_logprobs(g, tokens, out);
    strbuf_adds(out, ",\"finish_reason\":null");
    if (g->options.token_ids) {
        strbuf_adds(out, ",\"token_ids\":");
        openai_event_ids(tokens, out);
    }
    strbuf_addc(out, '}');
    openai_chunk_end(g, out);
}

static void add_role(struct generation *g, int choice, struct strbuf *out)
{
    struct generation_choice *c = &g->choices[choice];
    if (c->begun)
        return;
    c->begun = true;
    chunk_open(g, choice, out);
    strbuf_adds(out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                     "\"finish_reason\":null");
    if (g->options.token_ids) {
        strbuf_adds(out, ",\"prompt_token_ids\":");
        openai_ids(g->job->request.prompts[0].ids, g->job->request.prompts[0].n, out);
    }
    strbuf_addc(out, '}');
    openai_chunk_end(g, out);
}

static void add_content(struct generation *g, const struct job_event *e, struct strbuf *out)
{
    if (!e->text_bytes && !(e->n_tokens && (g->options.logprobs || g->options.token_ids)))
        return;
    chunk_open(g, e->choice, out);
    strbuf_adds(out, "\"content\":");
    json_out_string(out, e->text_bytes ? e->text : "", e->text_bytes);
    chunk_close(g, e, out);
}

static void add_last(struct generation *g, int choice, struct strbuf *out)
{
    chunk_open(g, choice, out);
    strbuf_adds(out, "},\"logprobs\":null,");
    openai_finish(g, &g->choices[choice], out);
    strbuf_addc(out, '}');
    openai_chunk_end(g, out);
}

static void event(struct generation *g, const struct job_event *e, struct strbuf *out)
{
    if (e->kind != JOB_TEXT && e->kind != JOB_FINISH)
        return;
    add_role(g, e->choice, out);
    add_content(g, e, out);
    if (e->kind == JOB_FINISH)
        add_last(g, e->choice, out);
}

static void end(struct generation *g, struct strbuf *out)
{
    openai_stream_end(g, CHUNK, out);
}

const struct generation_dialect openai_chat_dialect = {"chatcmpl-", whole, event, end,
                                                       openai_stream_error};
