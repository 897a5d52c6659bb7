#include "generation.h"

#include "log.h"
#include "room.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Answers with more log-probabilities than this are written in the work pool. */
#define BIG_ANSWER    5000
#define LOGPROB_BYTES 100 /* of each as JSON, rounded up */
#define MOST_SHED     16  /* answers given up at a time */
#define CUT_SECONDS   10  /* to read why */

/* ---- made in the work pool ---- */

struct generation *generation_create(struct exchange *ex, const struct generation_dialect *dialect)
{
    struct generation *g = calloc(1, sizeof *g);
    struct job *job = g ? job_create() : NULL;
    if (!job) {
        free(g);
        api_no_memory(&ex->error);
        return NULL;
    }
    g->exchange = ex;
    g->server = ex->server;
    g->options.dialect = dialect;
    g->job = job;
    g->pending_last = &g->pending;
    g->created = (int64_t)time(NULL);
    ex->made = g;
    return g;
}

int generation_prepare(struct generation *g, struct api_error *e)
{
    const struct job_request *r = &g->job->request;
    g->n_choices = r->n_prompts * r->candidates;
    g->choices = mem_arena_alloc(&g->job->arena, (size_t)g->n_choices * sizeof *g->choices);
    if (!g->choices)
        return api_no_memory(e);
    for (int i = 0; i < g->n_choices; i++)
        g->choices[i].last = &g->choices[i].events;
    for (int i = 0; i < r->n_prompts; i++)
        g->prompts[i].last = &g->prompts[i].events;
    return 0;
}

static void events_destroy(struct job_event *e)
{
    while (e) {
        struct job_event *next = e->next;
        job_event_destroy(e);
        e = next;
    }
}

/* Lets go of what the answer would be made of. */
static void drop_kept(struct generation *g)
{
    for (int i = 0; g->choices && i < g->n_choices; i++) {
        struct generation_choice *c = &g->choices[i];
        events_destroy(c->events);
        c->events = NULL;
        c->last = &c->events;
        strbuf_finish(&c->text);
    }
    for (int i = 0; g->choices && i < g->job->request.n_prompts; i++) {
        events_destroy(g->prompts[i].events);
        g->prompts[i].events = NULL;
        g->prompts[i].last = &g->prompts[i].events;
    }
    events_destroy(g->pending);
    g->pending = NULL;
    g->pending_last = &g->pending;
    g->pending_bytes = g->kept_bytes = 0;
}

void generation_destroy(struct generation *g)
{
    if (!g)
        return;
    drop_kept(g);
    strbuf_finish(&g->out);
    job_unref(g->job);
    free(g);
}

/* ---- admission ---- */

static void queue_leave(struct generation *g)
{
    if (!g->counted)
        return;
    g->counted = false;
    g->server->queued--;
    g->server->queued_tokens -= g->options.prompt_tokens;
}

int generation_retry_seconds(struct server *s)
{
    struct engine_stats stats;
    engine_stats(s->engine, &stats);
    double seconds = 1;
    double answer = metrics_mean_answer(&s->metrics) * s->queued;
    if (stats.tokens_per_second_prefill > 0)
        seconds += (double)s->queued_tokens / stats.tokens_per_second_prefill;
    if (stats.tokens_per_second_decode > 0)
        seconds += answer / stats.tokens_per_second_decode;
    return seconds > 300 ? 300 : (int)seconds;
}

static int refuse_full(struct server *s, struct api_error *e, const char *what)
{
    e->retry_seconds = generation_retry_seconds(s);
    s->metrics.rejected_full++;
    return api_refuse(e, 429, "queue_full", NULL, "the queue is full (%s); try again in %d seconds",
                      what, e->retry_seconds);
}

static int refuse_draining(struct api_error *e)
{
    e->retry_seconds = 5;
    return api_refuse(e, 503, "server_shutting_down", NULL, "the server is shutting down");
}

/* Requests that nothing has begun to work on, beyond those for which there is a place at once. */
static int waiting(struct server *s)
{
    struct engine_stats stats;
    engine_stats(s->engine, &stats);
    int free = s->config->most_running - stats.running;
    return stats.waiting + s->n_working - (free > 0 ? free : 0);
}

void generation_admit(struct exchange *ex)
{
    struct server *s = ex->server;
    if (drain_begun(s))
        refuse_draining(&ex->error);
    else if (waiting(s) >= s->config->most_queued)
        refuse_full(s, &ex->error, "too many requests wait");
}

static const struct {
    int error, status;
    const char *code;
} engine_errors[] = {
    {ERR_LIMIT, 400, "context_length_exceeded"}, {ERR_ARG, 400, "invalid_value"},
    {ERR_UNSUPPORTED, 400, "unsupported_value"}, {ERR_BUSY, 429, "queue_full"},
    {ERR_NOMEM, 503, "out_of_memory"},
};

static void engine_refusal(struct server *s, int error, const char *text, struct api_error *e)
{
    size_t n = sizeof engine_errors / sizeof *engine_errors, i = 0;
    while (i < n && engine_errors[i].error != error)
        i++;
    int status = i < n ? engine_errors[i].status : 500;
    if (status == 429 || status == 503)
        e->retry_seconds = generation_retry_seconds(s);
    api_refuse(e, status, i < n ? engine_errors[i].code : "engine_error", NULL, "%s",
               text && *text ? text : "the engine failed");
}

#define MOST_UNKNOWN 4096 /* bytes of names; after that, no more are logged */

static bool has_line(const struct strbuf *text, const char *line, size_t n)
{
    if (!text->len)
        return false;
    const char *end = text->data + text->len;
    for (const char *at = text->data, *next; at < end; at = next + 1) {
        next = memchr(at, '\n', (size_t)(end - at)); /* every line has its end */
        if ((size_t)(next - at) == n && memcmp(at, line, n) == 0)
            return true;
    }
    return false;
}

static void log_unknown(struct server *s, const char *names)
{
    struct strbuf *seen = &s->unknown_fields;
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, "\n");
        if (seen->len < MOST_UNKNOWN && !has_line(seen, at, n)) {
            strbuf_add(seen, at, n);
            strbuf_addc(seen, '\n');
            log_info("requests carry a field that is not known here and has no effect: %.*s",
                     (int)n, at);
        }
        at += n + (at[n] == '\n');
    }
}

/* The engine copies a prompt for each sequence that runs: the tokens twice, and what the sampler
 * knows of them. */
#define SEQUENCE_BYTES ((size_t)4096)
#define TOKEN_BYTES    ((size_t)12)

static size_t engine_bytes(const struct generation *g)
{
    const struct server_config *c = g->server->config;
    size_t running = (size_t)g->n_choices;
    size_t tokens = (size_t)g->options.prompt_tokens / (size_t)g->job->request.n_prompts;
    if (c->most_running && running > (size_t)c->most_running)
        running = (size_t)c->most_running;
    return running * (SEQUENCE_BYTES + TOKEN_BYTES * tokens);
}

void generation_answer(struct exchange *ex)
{
    struct generation *g = ex->generation = ex->made;
    struct server *s = ex->server;
    struct err err = {0};
    if (g->unknown_fields)
        log_unknown(s, g->unknown_fields);
    if (drain_begun(s))
        refuse_draining(&ex->error);
    else if (s->queued &&
             s->queued_tokens + g->options.prompt_tokens > s->config->most_queued_tokens)
        refuse_full(s, &ex->error, "too many prompt tokens wait");
    else
        room_enter(ex, engine_bytes(g));
    if (ex->error.status) {
        exchange_refuse(ex);
        return;
    }
    g->job->owner = g;
    g->submitted_ns = front_now_ns();
    int failed = engine_submit(s->engine, g->job, &err);
    if (failed) {
        engine_refusal(s, failed, err.text, &ex->error);
        exchange_refuse(ex);
        return;
    }
    g->submitted = g->counted = true;
    s->queued++;
    s->queued_tokens += g->options.prompt_tokens;
}

/* ---- the engine's events ---- */

static struct generation_prompt *prompt_of(struct generation *g, const struct job_event *e)
{
    return &g->prompts[e->choice / g->job->request.candidates];
}

static void note_tokens(struct generation *g, const struct job_event *e)
{
    struct generation_choice *c = &g->choices[e->choice];
    if (e->n_tokens == 0)
        return;
    int64_t now = front_now_ns();
    if (!g->first_ns)
        g->first_ns = now;
    if (c->latest_ns)
        metrics_gap(&g->server->metrics, (double)(now - c->latest_ns) * 1e-9 / e->n_tokens,
                    e->n_tokens);
    c->latest_ns = now;
    g->completion_tokens += e->n_tokens;
}

static void note_finish(struct generation *g, const struct job_event *e)
{
    struct generation_choice *c = &g->choices[e->choice];
    c->ended = true;
    c->finish = e->finish;
    c->stop_string = e->stop_string;
    c->stop_token = e->stop_token;
    c->completion_tokens = e->completion_tokens;
    c->logprob_sum = e->logprob_sum;
}

static void note_done(struct generation *g, const struct job_event *e)
{
    queue_leave(g);
    if (g->exchange)
        room_leave(g->exchange);
    g->ended = true;
    g->completion_tokens = 0;
    for (int i = 0; i < g->n_choices; i++)
        g->completion_tokens += g->choices[i].completion_tokens;
    if (e->error)
        engine_refusal(g->server, e->error, e->text, &g->failure);
    else
        metrics_generation(&g->server->metrics, g);
}

static void note(struct generation *g, const struct job_event *e)
{
    switch (e->kind) {
    case JOB_STARTED:
        queue_leave(g);
        g->started = true;
        prompt_of(g, e)->cached_tokens = e->cached_tokens;
        prompt_of(g, e)->miss = e->miss;
        break;
    case JOB_PROMPT:
        break;
    case JOB_TEXT:
        note_tokens(g, e);
        break;
    case JOB_FINISH:
        note_tokens(g, e);
        note_finish(g, e);
        break;
    case JOB_DONE:
        note_done(g, e);
        break;
    }
}

void generation_keep_prompt(struct generation *g, struct job_event *e)
{
    struct generation_prompt *p = prompt_of(g, e);
    p->tokens_seen += e->n_tokens;
    g->kept_bytes += generation_event_bytes(e);
    generation_chain(&p->last, e);
}

/* Of an answer that goes out as a whole, text is gathered and tokens are kept where they are shown.
 */
static void gather(struct generation *g, struct job_event *e)
{
    struct generation_choice *c = &g->choices[e->choice];
    if (e->kind == JOB_PROMPT) {
        generation_keep_prompt(g, e);
        return;
    }
    bool answer = e->kind == JOB_TEXT || e->kind == JOB_FINISH;
    if (answer && e->text_bytes)
        strbuf_add(&c->text, e->text, e->text_bytes);
    if (answer)
        g->kept_bytes += e->text_bytes;
    if (answer && e->n_tokens && (g->options.logprobs || g->options.token_ids)) {
        g->kept_bytes += generation_event_bytes(e);
        generation_chain(&c->last, e);
    } else {
        job_event_destroy(e);
    }
}

static void finish_whole(struct generation *g);

static void take(struct generation *g, struct job_event *events)
{
    bool shows = false;
    for (struct job_event *e = events, *next; e; e = next) {
        next = e->next;
        note(g, e);
        shows |= e->kind != JOB_STARTED;
        if (!g->exchange || g->done)
            job_event_destroy(e);
        else if (g->options.stream)
            generation_stream_add(g, e);
        else
            gather(g, e);
    }
    if (!g->exchange || g->done)
        return;
    if (g->options.stream)
        generation_stream_advance(g, shows);
    else if (g->ended)
        finish_whole(g);
}

static size_t weight(const struct generation *g)
{
    return g && g->exchange && !g->done ? g->kept_bytes + g->pending_bytes : 0;
}

/* Answers grow while they are made: when there is no room any more, those that hold most are given
 * up. */
static void shed(struct server *s)
{
    for (int i = 0; i < MOST_SHED && !room_for(s, 0); i++) {
        struct generation *most = NULL;
        for (struct exchange *ex = s->exchanges; ex; ex = ex->next)
            if (weight(ex->generation) > weight(most))
                most = ex->generation;
        if (!most)
            return;
        struct api_error e = {0};
        room_refuse(s, 0, &e);
        if (most->ended) { /* nothing but a reader that is too slow */
            generation_cut(most, &e);
        } else {
            drop_kept(most);
            generation_fail(most, &e);
        }
    }
}

void generation_news(struct server *s)
{
    for (struct job *j = engine_next_news(s->engine); j; j = engine_next_news(s->engine)) {
        struct job_event *events = job_take(j);
        if (j->owner)
            take(j->owner, events);
        else
            events_destroy(events);
        job_unref(j);
    }
    shed(s);
}

/* ---- a whole answer ---- */

static size_t count_tops(const struct job_event *e)
{
    size_t n = 0;
    for (; e; e = e->next)
        for (int i = 0; i < e->n_tokens; i++)
            n += 1 + (size_t)e->tokens[i].n_top;
    return n;
}

static void render(struct exchange *ex)
{
    struct generation *g = ex->generation;
    g->options.dialect->whole(g, &ex->reply);
}

static void send_whole(struct exchange *ex)
{
    exchange_answer_json(ex, 200, &ex->reply);
}

static void finish_whole(struct generation *g)
{
    struct exchange *ex = g->exchange;
    g->done = true;
    if (g->failure.status) {
        ex->error = g->failure;
        exchange_refuse(ex);
        return;
    }
    size_t tops = 0;
    for (int i = 0; i < g->n_choices; i++)
        tops += count_tops(g->choices[i].events);
    for (int i = 0; i < g->job->request.n_prompts; i++)
        tops += count_tops(g->prompts[i].events) * (size_t)g->job->request.candidates;
    if (!room_enter(ex, LOGPROB_BYTES * tops + 3 * g->kept_bytes)) {
        drop_kept(g);
        exchange_refuse(ex);
    } else if (tops > BIG_ANSWER) {
        exchange_work(ex, render, send_whole);
    } else {
        render(ex);
        room_leave(ex);
        send_whole(ex);
    }
}

/* ---- ends ---- */

static void cancel(struct generation *g)
{
    queue_leave(g);
    if (g->submitted && !g->ended)
        engine_cancel(g->server->engine, g->job);
}

void generation_gone(struct exchange *ex)
{
    if (ex->gone || !ex->conn)
        return;
    ex->gone = true;
    if (ex->generation && ex->generation->exchange)
        cancel(ex->generation);
    if (ex->suspended)
        exchange_resume(ex); /* the handler or the reader ends it */
    else
        conn_kill(ex->conn);
}

void generation_detach(struct exchange *ex)
{
    struct generation *g = ex->generation;
    if (!g || !g->submitted || !g->exchange)
        return;
    cancel(g);
    g->job->owner = NULL;
    g->exchange = NULL;
}

void generation_fail(struct generation *g, const struct api_error *e)
{
    struct exchange *ex = g->exchange;
    if (g->ended || !ex || g->done)
        return;
    cancel(g);
    g->ended = true;
    g->failure = *e;
    g->job->owner = NULL; /* its last events are dropped */
    if (g->streaming) {
        exchange_resume(ex);
    } else {
        g->done = true;
        ex->error = *e;
        exchange_refuse(ex);
    }
}

void generation_cut(struct generation *g, const struct api_error *e)
{
    struct exchange *ex = g->exchange;
    drop_kept(g);
    cancel(g);
    g->ended = true;
    g->failure = *e;
    g->job->owner = NULL;
    conn_await(ex->conn, CUT_SECONDS);
    if (ex->suspended)
        exchange_resume(ex);
}

void generation_sweep(struct server *s, int64_t now_ms)
{
    for (struct exchange *ex = s->exchanges; ex; ex = ex->next)
        if (ex->generation)
            generation_stream_sweep(ex->generation, now_ms);
}
