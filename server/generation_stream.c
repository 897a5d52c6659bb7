#include "generation.h"

#include "log.h"
#include "sse.h"

#include <stdlib.h>
#include <string.h>

/* A generation as a stream: the engine's events are kept as they come and written only when the
 * connection can take them, so that a slow reader costs a few bytes per token. */

size_t generation_event_bytes(const struct job_event *e)
{
    size_t bytes = sizeof *e + e->text_bytes;
    for (int i = 0; i < e->n_tokens; i++)
        bytes += sizeof *e->tokens + (size_t)e->tokens[i].n_top * sizeof *e->tokens[i].top;
    return bytes;
}

void generation_stream_add(struct generation *g, struct job_event *e)
{
    g->pending_bytes += generation_event_bytes(e);
    generation_chain(&g->pending_last, e);
}

static struct job_event *pop(struct generation *g)
{
    struct job_event *e = g->pending;
    g->pending = e->next;
    if (!g->pending)
        g->pending_last = &g->pending;
    g->pending_bytes -= generation_event_bytes(e);
    e->next = NULL;
    return e;
}

static bool continues_text(const struct generation *g, const struct job_event *e)
{
    const struct job_event *n = g->pending;
    return n && n->kind == JOB_TEXT && e->kind == JOB_TEXT && n->choice == e->choice;
}

/* Several events of one choice that wait for a slow reader go out as one. */
static void merge_waiting(struct generation *g, struct job_event *e)
{
    struct strbuf text = {0};
    if (g->options.logprobs || g->options.token_ids || !continues_text(g, e))
        return;
    strbuf_add(&text, e->text, e->text_bytes);
    while (continues_text(g, e)) {
        struct job_event *n = pop(g);
        strbuf_add(&text, n->text, n->text_bytes);
        job_event_destroy(n);
    }
    g->out.failed |= text.failed;
    free(e->text);
    e->text_bytes = text.len;
    e->text = strbuf_take(&text);
}

static void format_next(struct generation *g)
{
    struct job_event *e = pop(g);
    merge_waiting(g, e);
    if (e->kind == JOB_PROMPT) {
        generation_keep_prompt(g, e);
        g->options.dialect->event(g, e, &g->out);
    } else {
        g->options.dialect->event(g, e, &g->out);
        job_event_destroy(e);
    }
}

static void format_end(struct generation *g)
{
    if (g->failure.status)
        g->options.dialect->error(&g->failure, &g->out);
    else
        g->options.dialect->end(g, &g->out);
    g->ended_stream = true;
}

static size_t out_copy(struct generation *g, char *to, size_t most)
{
    size_t n = g->out.len - g->out_taken;
    n = n < most ? n : most;
    if (n)
        memcpy(to, g->out.data + g->out_taken, n);
    g->out_taken += n;
    if (g->out_taken == g->out.len) {
        g->out_taken = 0;
        strbuf_clear(&g->out);
    }
    return n;
}

static ssize_t stream_read(void *cls, uint64_t position, char *to, size_t most)
{
    struct exchange *ex = cls;
    struct generation *g = ex->generation;
    (void)position;
    if (ex->gone || g->out.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    while (g->out.len - g->out_taken < most && g->pending)
        format_next(g);
    if (g->ended && !g->pending && !g->ended_stream)
        format_end(g);
    if (g->out.len == 0 && g->ping && !g->ended_stream)
        sse_ping(&g->out);
    g->ping = false;
    size_t n = out_copy(g, to, most);
    if (n) {
        g->last_write_ms = front_now_ms();
        ex->bytes_out += n;
        return (ssize_t)n;
    }
    if (g->ended_stream) {
        g->done = true;
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    exchange_suspend(ex);
    return 0;
}

static void stream_start(struct generation *g)
{
    g->streaming = true;
    g->ping = true; /* when there is nothing better to begin with */
    g->last_write_ms = front_now_ms();
    exchange_stream(g->exchange, "text/event-stream; charset=utf-8", stream_read);
}

/* What one answer token with all its alternatives weighs is not held against a reader. */
static size_t pending_most(const struct generation *g)
{
    const struct job_request *r = &g->job->request;
    int tops = r->logprobs > r->prompt_logprobs ? r->logprobs : r->prompt_logprobs;
    if (r->logprobs == -1 || r->prompt_logprobs == -1)
        tops = tok_size(g->server->tokenizer);
    size_t one = tops > 0 ? (size_t)tops * sizeof(struct token_logprob) : 0;
    return g->server->config->stream_pending_bytes + 256 * one;
}

void generation_stream_advance(struct generation *g, bool shows)
{
    struct exchange *ex = g->exchange;
    if (!g->streaming && g->failure.status && !g->first_ns) {
        g->done = true; /* nothing was sent: the real status */
        ex->error = g->failure;
        exchange_refuse(ex);
    } else if (!g->streaming && shows) {
        stream_start(g);
    } else if (ex->suspended && (g->pending || g->ended)) {
        exchange_resume(ex);
    } else if (g->pending_bytes > pending_most(g) && ex->conn) {
        log_debug("http: %s does not read its stream", ex->conn->address);
        g->server->metrics.slow_readers++;
        struct api_error e = {0};
        api_refuse(&e, 503, "slow_reader", NULL,
                   "this stream was not read fast enough: %zu KiB of it were waiting",
                   g->pending_bytes >> 10);
        generation_cut(g, &e);
    }
}

void generation_stream_sweep(struct generation *g, int64_t now_ms)
{
    const struct server_config *c = g->server->config;
    struct exchange *ex = g->exchange;
    if (!ex || !g->options.stream || !g->submitted || g->done)
        return;
    if (!g->streaming && now_ms - g->submitted_ns / 1000000 >= (int64_t)(c->hold_seconds * 1000)) {
        stream_start(g);
    } else if (g->streaming && ex->suspended &&
               now_ms - g->last_write_ms >= (int64_t)(c->ping_seconds * 1000)) {
        g->ping = true;
        exchange_resume(ex);
    }
}
