#include "openai.h"

#include "json_out.h"
#include "sse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void openai_head(const struct generation *g, const char *object, struct strbuf *out)
{
    strbuf_adds(out, "{\"id\":");
    json_out_text(out, g->id);
    strbuf_adds(out, ",\"object\":");
    json_out_text(out, object);
    strbuf_adds(out, ",\"created\":");
    json_out_int(out, g->created);
    strbuf_adds(out, ",\"model\":");
    json_out_text(out, g->model);
    strbuf_adds(out, ",\"system_fingerprint\":");
    json_out_text(out, g->server->fingerprint);
}

/* Of several prompts the first that could have had more tells why. */
static void add_miss(const struct generation *g, struct strbuf *out)
{
    enum kv_miss miss = KV_MISS_NONE;
    for (int i = 0; i < g->job->request.n_prompts && miss == KV_MISS_NONE; i++)
        miss = g->prompts[i].miss;
    strbuf_adds(out, ",\"cache_miss_reason\":");
    json_out_text(out, miss == KV_MISS_NONE ? NULL : kv_miss_name(miss));
}

void openai_usage(const struct generation *g, struct strbuf *out)
{
    int64_t cached = 0, prompt = g->options.prompt_tokens;
    for (int i = 0; i < g->job->request.n_prompts; i++)
        cached += g->prompts[i].cached_tokens;
    strbuf_adds(out, "{\"prompt_tokens\":");
    json_out_int(out, prompt);
    strbuf_adds(out, ",\"completion_tokens\":");
    json_out_int(out, g->completion_tokens);
    strbuf_adds(out, ",\"total_tokens\":");
    json_out_int(out, prompt + g->completion_tokens);
    strbuf_adds(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_out_int(out, cached);
    if (g->options.cache_info)
        add_miss(g, out);
    strbuf_adds(out, "}}");
}

void openai_finish(const struct generation *g, const struct generation_choice *c,
                   struct strbuf *out)
{
    strbuf_adds(out, "\"finish_reason\":");
    json_out_text(out, c->finish == FINISH_LENGTH ? "length" : "stop");
    strbuf_adds(out, ",\"stop_reason\":");
    if (c->finish == FINISH_STOP && !c->stop_string && c->stop_token >= 0 &&
        !tok_is_end(g->server->tokenizer, c->stop_token))
        json_out_int(out, c->stop_token);
    else
        json_out_text(out, c->stop_string);
}

void openai_ids(const int32_t *ids, int n, struct strbuf *out)
{
    strbuf_addc(out, '[');
    for (int i = 0; i < n; i++) {
        if (i)
            strbuf_addc(out, ',');
        json_out_int(out, ids[i]);
    }
    strbuf_addc(out, ']');
}

void openai_event_ids(const struct job_event *e, struct strbuf *out)
{
    bool first = true;
    strbuf_addc(out, '[');
    for (; e; e = e->next)
        for (int i = 0; i < e->n_tokens; i++, first = false) {
            if (!first)
                strbuf_addc(out, ',');
            json_out_int(out, e->tokens[i].id);
        }
    strbuf_addc(out, ']');
}

static void add_bytes_name(const char *piece, size_t bytes, struct strbuf *out)
{
    static const char hex[] = "0123456789abcdef";
    strbuf_adds(out, "\"bytes:");
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)piece[i];
        const char text[5] = {'\\', '\\', 'x', hex[c >> 4], hex[c & 15]};
        strbuf_add(out, text, sizeof text);
    }
    strbuf_addc(out, '"');
}

void openai_token(const struct generation *g, int32_t id, struct strbuf *out)
{
    if (g->options.tokens_as_ids) {
        strbuf_adds(out, "\"token_id:");
        json_out_int(out, id);
        strbuf_addc(out, '"');
        return;
    }
    size_t bytes;
    const char *piece = tok_piece(g->server->tokenizer, id, true, &bytes);
    if (utf8_valid(piece, bytes))
        json_out_string(out, piece, bytes);
    else
        add_bytes_name(piece, bytes, out);
}

/* JSON has no infinity; clients know -9999 from OpenAI. */
void openai_logprob(float logprob, struct strbuf *out)
{
    if (isnan(logprob))
        strbuf_adds(out, "null");
    else if (isinf(logprob))
        strbuf_adds(out, "-9999.0");
    else
        json_out_float(out, logprob);
}

static void add_prompt_logprob(const struct generation *g, int32_t id, float logprob, int rank,
                               struct strbuf *out)
{
    size_t bytes;
    const char *piece = tok_piece(g->server->tokenizer, id, true, &bytes);
    strbuf_addc(out, '"');
    json_out_int(out, id);
    strbuf_adds(out, "\":{\"logprob\":");
    openai_logprob(logprob, out);
    strbuf_adds(out, ",\"rank\":");
    if (rank > 0)
        json_out_int(out, rank);
    else
        strbuf_adds(out, "null");
    strbuf_adds(out, ",\"decoded_token\":");
    if (g->options.tokens_as_ids)
        openai_token(g, id, out);
    else
        json_out_string(out, piece, bytes);
    strbuf_addc(out, '}');
}

static void add_prompt_token(const struct generation *g, const struct job_token *t,
                             struct strbuf *out)
{
    if (isnan(t->logprob)) {
        strbuf_adds(out, "null");
        return;
    }
    strbuf_addc(out, '{');
    add_prompt_logprob(g, t->id, t->logprob, t->rank, out);
    for (int i = 0; i < t->n_top; i++) {
        if (t->top[i].id == t->id)
            continue;
        strbuf_addc(out, ',');
        add_prompt_logprob(g, t->top[i].id, t->top[i].logprob, i + 1, out);
    }
    strbuf_addc(out, '}');
}

void openai_prompt_logprobs(const struct generation *g, const struct generation_prompt *p,
                            struct strbuf *out)
{
    bool first = true;
    strbuf_addc(out, '[');
    for (const struct job_event *e = p->events; e; e = e->next)
        for (int i = 0; i < e->n_tokens; i++, first = false) {
            if (!first)
                strbuf_addc(out, ',');
            add_prompt_token(g, &e->tokens[i], out);
        }
    strbuf_addc(out, ']');
}

void openai_stream_error(const struct api_error *e, struct strbuf *out)
{
    sse_begin(out);
    api_error_write(e, out);
    sse_end(out);
}

void openai_chunk_begin(const struct generation *g, const char *object, struct strbuf *out)
{
    sse_begin(out);
    openai_head(g, object, out);
    strbuf_adds(out, ",\"choices\":[");
}

void openai_chunk_end(const struct generation *g, struct strbuf *out)
{
    strbuf_addc(out, ']');
    if (g->options.continuous_usage) {
        strbuf_adds(out, ",\"usage\":");
        openai_usage(g, out);
    } else if (g->options.include_usage) {
        strbuf_adds(out, ",\"usage\":null");
    }
    strbuf_addc(out, '}');
    sse_end(out);
}

void openai_stream_end(struct generation *g, const char *object, struct strbuf *out)
{
    if (g->options.include_usage) {
        openai_chunk_begin(g, object, out);
        strbuf_adds(out, "],\"usage\":");
        openai_usage(g, out);
        strbuf_addc(out, '}');
        sse_end(out);
    }
    sse_done(out);
}

static double mean_logprob(const struct generation_choice *c)
{
    return c->completion_tokens ? c->logprob_sum / c->completion_tokens : 0;
}

/* A few dozen at most: insertion keeps equals in their order. */
void openai_ranked(const struct generation *g, int prompt, int *out)
{
    int all = g->job->request.candidates, wanted = g->options.candidates_wanted, n = 0;
    for (int i = prompt * all; i < (prompt + 1) * all; i++) {
        int at = n;
        while (all > wanted && at > 0 &&
               mean_logprob(&g->choices[out[at - 1]]) < mean_logprob(&g->choices[i]))
            at--;
        if (at == wanted)
            continue;
        n += n < wanted;
        memmove(out + at + 1, out + at, (size_t)(n - 1 - at) * sizeof *out);
        out[at] = i;
    }
}
