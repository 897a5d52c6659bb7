#include "engine.h"

#include "log.h"
#include "schedule.h"
#include "sequence.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAST_PROMPT_BUDGET 32

/* A row of the step whose logits are wanted: to draw the next token, or to score a prompt token. */
struct want {
    struct sequence *s;
    int row, position;
};

struct engine {
    struct engine_config config;
    const struct model_plan *plan;
    const struct tokenizer *tokenizer;
    int context;
    pthread_t thread;
    /* from any thread, under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *incoming, **incoming_last;
    int queued; /* jobs accepted that have not begun */
    bool stop, poke;
    struct engine_stats stats;
    /* news, under `news_lock` */
    pthread_mutex_t news_lock;
    struct job *news;
    bool has_news;
    /* engine thread only */
    struct request *waiting, **waiting_last;
    struct sequence **running;
    int n_running;
    uint64_t arrivals;
    struct sched_seq *views;
    struct batch_item *items;
    struct want *wants;
    float *logits, *raw;
    double prompt_ms_per_token, decode_ms;
    struct engine_stats now;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- news to the front end ---- */

static void send_event(struct engine *e, struct job *j, struct job_event *event)
{
    job_put(j, event);
    pthread_mutex_lock(&e->news_lock);
    if (!j->listed) {
        j->listed = true;
        job_ref(j);
        j->next_news = e->news;
        e->news = j;
    }
    e->has_news = true;
    pthread_mutex_unlock(&e->news_lock);
}

struct job *engine_take_news(struct engine *e)
{
    pthread_mutex_lock(&e->news_lock);
    struct job *list = e->news;
    e->news = NULL;
    e->has_news = false;
    for (struct job *j = list; j; j = j->next_news)
        j->listed = false;
    pthread_mutex_unlock(&e->news_lock);
    return list;
}

static void notify(struct engine *e)
{
    pthread_mutex_lock(&e->news_lock);
    bool news = e->has_news;
    pthread_mutex_unlock(&e->news_lock);
    if (news && e->config.notify)
        e->config.notify(e->config.notify_arg);
}

static void publish_stats(struct engine *e)
{
    e->now.running = e->n_running;
    kv_stats(e->config.cache, &e->now.kv);
    if (e->now.kv.block_bytes_total)
        e->now.kv_usage = (double)e->now.kv.bytes_used / (double)e->now.kv.block_bytes_total;
    e->now.tokens_per_second_prefill = e->prompt_ms_per_token > 0 ? 1e3 / e->prompt_ms_per_token
                                                                  : 0;
    e->now.tokens_per_second_decode = e->decode_ms > 0 ? 1e3 / e->decode_ms : 0;
    pthread_mutex_lock(&e->lock);
    e->now.waiting = e->queued;
    e->stats = e->now;
    pthread_mutex_unlock(&e->lock);
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting = e->queued;
    pthread_mutex_unlock(&e->lock);
}

int engine_context(const struct engine *e)
{
    return e->context;
}

/* ---- requests ---- */

static struct job_event *new_event(enum job_event_kind kind, int choice)
{
    struct job_event *event = calloc(1, sizeof *event);
    if (event) {
        event->kind = kind;
        event->choice = choice;
        event->stop_token = -1;
    }
    return event;
}

/* Sends JOB_DONE and lets go of the job. */
static void end_request(struct engine *e, struct request *r)
{
    r->job->times.finished = now_ns();
    send_event(e, r->job, r->done);
    job_unref(r->job);
    free(r);
}

/* The request cannot go on: its error is told with JOB_DONE. The choices that run are dropped by
 * the caller. */
static void fail_request(struct request *r, int code, const char *text)
{
    r->finished = true;
    if (r->done->error)
        return;
    r->done->error = code;
    r->done->text = strdup(text);
    r->done->text_bytes = r->done->text ? strlen(text) : 0;
}

static void accept_job(struct engine *e, struct job *j)
{
    struct request *r = calloc(1, sizeof *r);
    struct job_event *done = new_event(JOB_DONE, 0);
    if (!r || !done) {
        /* Without memory even for this the front end would wait for ever; there is nothing left to
         * do but say so. */
        log_error("out of memory: request %llu is lost", (unsigned long long)j->id);
        free(r);
        free(done);
        job_unref(j);
        return;
    }
    r->job = j;
    r->done = done;
    r->arrival = ++e->arrivals;
    r->choices = j->request.n_prompts * j->request.candidates;
    *e->waiting_last = r;
    e->waiting_last = &r->next;
}

static void take_incoming(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->stop && !e->poke && !e->incoming && !e->waiting && e->n_running == 0)
        pthread_cond_wait(&e->wake, &e->lock);
    e->poke = false;
    struct job *list = e->incoming;
    e->incoming = NULL;
    e->incoming_last = &e->incoming;
    pthread_mutex_unlock(&e->lock);
    while (list) {
        struct job *next = list->next;
        list->next = NULL;
        accept_job(e, list);
        list = next;
    }
}

int engine_submit(struct engine *e, struct job *j, struct err *err)
{
    const struct job_request *q = &j->request;
    for (int i = 0; i < q->n_prompts; i++)
        if (q->prompts[i].n < 1 || q->prompts[i].n + (q->max_tokens != 0) > e->context)
            return err_set(err, ERR_LIMIT, "prompt %d has %d tokens; the context holds %d", i,
                           q->prompts[i].n, e->context);
    pthread_mutex_lock(&e->lock);
    if (e->stop || e->queued >= e->config.most_queued) {
        pthread_mutex_unlock(&e->lock);
        return err_set(err, ERR_BUSY, "%d requests are waiting already", e->config.most_queued);
    }
    job_ref(j);
    j->times.submitted = now_ns();
    j->next = NULL;
    *e->incoming_last = j;
    e->incoming_last = &j->next;
    e->queued++;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void engine_cancel(struct engine *e, struct job *j)
{
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&e->lock);
    e->poke = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

/* ---- sequences ---- */

static void count_begun(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->queued--;
    pthread_mutex_unlock(&e->lock);
}

static void remove_running(struct engine *e, struct sequence *s)
{
    int i = 0;
    while (e->running[i] != s)
        i++;
    memmove(e->running + i, e->running + i + 1,
            (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
}

/* Ends a choice: the rest of its text, JOB_FINISH, and JOB_DONE with the last one. */
static void finish_sequence(struct engine *e, struct sequence *s, enum job_finish finish)
{
    struct request *r = s->request;
    struct job_event *event = new_event(JOB_FINISH, s->choice);
    if (event) {
        stream_take(&s->stream, true, event);
        event->finish = finish;
        event->stop_string = s->stop_string;
        event->stop_token = s->stop_token;
        event->completion_tokens = s->generated;
        event->logprob_sum = s->logprob_sum;
        send_event(e, r->job, event);
    } else {
        fail_request(r, ERR_NOMEM, "the server is out of memory");
    }
    e->now.finished[finish]++;
    if (s->kv && kv_seq_ready(s->kv) == kv_seq_length(s->kv))
        kv_seq_mark(s->kv);
    remove_running(e, s);
    sequence_destroy(s);
    r->live--;
    if (r->live == 0 && (r->finished || r->started == r->choices))
        end_request(e, r);
}

static bool should_drop(const struct request *r)
{
    return r->finished || atomic_load(&r->job->cancelled);
}

static void drop_waiting(struct engine *e)
{
    struct request **at = &e->waiting;
    while (*at) {
        struct request *r = *at;
        if (!should_drop(r)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (r->started == 0)
            count_begun(e);
        r->finished = true;
        if (r->live == 0)
            end_request(e, r);
    }
    e->waiting_last = at;
}

static bool out_of_time(const struct sequence *s, int64_t now)
{
    const struct job *j = s->request->job;
    return j->request.max_seconds > 0 &&
           (double)(now - j->times.submitted) * 1e-9 >= j->request.max_seconds;
}

/* Cancelled, failed and overdue choices leave. */
static void drop_running(struct engine *e)
{
    int64_t now = now_ns();
    for (int i = e->n_running - 1; i >= 0; i--) {
        struct sequence *s = e->running[i];
        if (should_drop(s->request))
            finish_sequence(e, s, FINISH_CANCELLED);
        else if (out_of_time(s, now))
            finish_sequence(e, s, FINISH_LENGTH);
    }
}

static void announce(struct engine *e, struct sequence *s, const struct kv_match *match)
{
    if (s->announced)
        return;
    s->announced = true;
    e->now.prompt_tokens += (uint64_t)s->prompt_n;
    e->now.prompt_cached_tokens += (uint64_t)match->tokens;
    struct job_event *event = new_event(JOB_STARTED, s->choice);
    if (!event) {
        fail_request(s->request, ERR_NOMEM, "the server is out of memory");
        return;
    }
    event->cached_tokens = match->tokens;
    event->miss = match->miss;
    send_event(e, s->request->job, event);
}

/* Room for the tokens that it has, without taking anything from a running sequence. */
static bool has_room(struct engine *e, const struct sequence *s)
{
    struct kv_stats st;
    kv_stats(e->config.cache, &st);
    return model_kv_bytes(e->plan, s->n + 1) <= st.bytes_free + st.bytes_cached;
}

static bool others_hold_memory(const struct engine *e)
{
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->kv)
            return true;
    return false;
}

/* Gives a sequence its place in the cache; false: it has to wait. */
static bool open_sequence(struct engine *e, struct sequence *s)
{
    struct err err;
    struct kv_match match;
    if (others_hold_memory(e) && !has_room(e, s))
        return false;
    int rc = kv_seq_open(e->config.cache, s->request->job->request.salt, s->tokens, s->n,
                         sequence_reusable(s), &s->kv, &match, &err);
    if (rc) {
        fail_request(s->request, rc, err.text);
        return true;
    }
    announce(e, s, &match);
    return true;
}

/* Begins the next choice of the first waiting request. */
static void begin_choice(struct engine *e)
{
    struct request *r = e->waiting;
    struct sequence *s;
    struct err err;
    if (r->started == 0) {
        count_begun(e);
        r->job->times.started = now_ns();
    }
    int rc = sequence_create(r, e->tokenizer, e->context, &s, &err);
    if (rc) {
        fail_request(r, rc, err.text);
    } else {
        e->running[e->n_running++] = s;
        r->live++;
    }
    r->started++;
    if (r->started < r->choices && !r->finished)
        return;
    e->waiting = r->next;
    if (!e->waiting)
        e->waiting_last = &e->waiting;
    if (r->live == 0)
        end_request(e, r);
}

static void admit(struct engine *e)
{
    while (e->waiting && e->n_running < e->config.most_sequences)
        begin_choice(e);
    for (int i = 0; i < e->n_running; i++)
        if (!e->running[i]->kv && !open_sequence(e, e->running[i]))
            break; /* nobody overtakes: the first in line gets the room that comes free */
}

/* ---- a step ---- */

static void view(struct sequence *s, struct sched_seq *v)
{
    *v = (struct sched_seq){
        .left = sequence_left(s),
        .decoding = s->generated > 0 && sequence_left(s) == 1,
        .waiting = kv_seq_ready(s->kv) < kv_seq_length(s->kv),
        .priority = s->request->job->request.priority,
        .arrival = (s->request->arrival << 20) + (uint64_t)s->choice,
        .holds = true,
        .tag = s,
    };
}

/* Takes the cache away from the last in line that comes after `needy`; false: there is none. */
static bool preempt(struct engine *e, int needy, int n)
{
    int victim = sched_victim(e->views, n, needy);
    if (victim < 0)
        return false;
    struct sequence *s = e->views[victim].tag;
    kv_seq_close(s->kv);
    s->kv = NULL;
    e->views[victim].grant = 0;
    e->views[victim].holds = false;
    e->now.preemptions++;
    return true;
}

static bool extend(struct engine *e, int i, int n)
{
    struct sequence *s = e->views[i].tag;
    int at = kv_seq_length(s->kv);
    while (kv_seq_extend(s->kv, s->tokens + at, e->views[i].grant))
        if (!preempt(e, i, n))
            return false;
    return true;
}

/* Grants, then items: in the order of the views, so that whoever is preempted has not been put into
 * the batch. */
static int build_batch(struct engine *e)
{
    int n = 0, items = 0, row = 0;
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        if (!s->kv)
            continue;
        if (sequence_left(s) > 1)
            kv_seq_rematch(s->kv, s->tokens, s->n, sequence_reusable(s));
        view(s, &e->views[n++]);
    }
    const struct sched_limits limits = {
        .step_tokens = e->config.step_tokens,
        .prompt_tokens = sched_prompt_budget(e->config.itl_target_ms, e->decode_ms,
                                             e->prompt_ms_per_token, LEAST_PROMPT_BUDGET,
                                             e->config.step_tokens),
    };
    sched_plan(e->views, n, &limits);
    for (int i = 0; i < n; i++) {
        struct sequence *s = e->views[i].tag;
        s->grant = 0;
        if (e->views[i].grant == 0 || !s->kv)
            continue;
        s->position = kv_seq_length(s->kv);
        if (!extend(e, i, n))
            continue;
        s->grant = e->views[i].grant;
        s->first_row = row;
        row += s->grant;
        e->items[items++] = (struct batch_item){
            .seq = s->kv,
            .tokens = s->tokens + s->position,
            .n = s->grant,
            .position = s->position,
        };
    }
    return items;
}

static int list_wants(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        for (int j = 0; j < s->grant; j++) {
            int next = s->position + j + 1;
            bool scores = next < s->prompt_n && s->scored < s->prompt_n && next >= s->scored;
            bool draws = next == s->n && s->most > 0;
            if (scores || draws)
                e->wants[n++] = (struct want){s, s->first_row + j, s->position + j};
        }
    }
    return n;
}

static int fill_token(struct engine *e, const float *logits, int32_t id, int top,
                      struct job_token *out)
{
    int vocab = e->plan->vocabulary;
    double log_sum;
    int k = top < 0 ? vocab : top;
    *out = (struct job_token){.id = id};
    if (k > 0) {
        out->top = malloc((size_t)k * sizeof *out->top);
        if (!out->top)
            return ERR_NOMEM;
        out->n_top = logprobs_top(logits, vocab, top, out->top, &log_sum);
    } else {
        log_sum = logits_log_sum(logits, vocab);
    }
    out->logprob = logits_logprob(logits[id], log_sum);
    return 0;
}

/* Sends one prompt token with its log-probability; `logits` NULL for the first, which nothing
 * predicts. */
static void score_token(struct engine *e, struct sequence *s, const float *logits)
{
    struct job_token token = {.id = s->tokens[s->scored], .logprob = NAN};
    struct job_event *event = new_event(JOB_PROMPT, s->choice);
    int rc = event ? 0 : ERR_NOMEM;
    if (rc == 0 && logits)
        rc = fill_token(e, logits, token.id, s->request->job->request.prompt_logprobs, &token);
    if (rc == 0) {
        struct stream one;
        stream_init(&one, &(struct stream_stops){0});
        stream_push(&one, &token, "", 0, false);
        stream_take(&one, true, event);
        rc = one.failed ? ERR_NOMEM : 0;
        stream_finish(&one);
    }
    s->scored++;
    if (rc == 0) {
        send_event(e, s->request->job, event);
    } else {
        job_event_destroy(event);
        fail_request(s->request, rc, "the server is out of memory");
    }
}

static void send_text(struct engine *e, struct sequence *s)
{
    struct job_event text = {.kind = JOB_TEXT, .choice = s->choice, .stop_token = -1};
    if (!stream_take(&s->stream, false, &text))
        return;
    struct job_event *event = malloc(sizeof *event);
    if (!event) {
        free(text.text);
        free(text.tokens);
        fail_request(s->request, ERR_NOMEM, "the server is out of memory");
        return;
    }
    *event = text;
    send_event(e, s->request->job, event);
}

static void draw_token(struct engine *e, struct sequence *s, float *logits)
{
    const struct job_request *q = &s->request->job->request;
    struct job_token token = {0};
    enum job_finish finish = FINISH_NONE;
    bool wants_logprob = q->logprobs != JOB_NO_LOGPROBS || q->candidates > 1;
    int rc = 0;
    if (wants_logprob)
        memcpy(e->raw, logits, (size_t)e->plan->vocabulary * sizeof *logits);
    int32_t id = sampler_pick(s->sampler, logits, e->plan->vocabulary);
    token.id = id;
    if (wants_logprob)
        rc = fill_token(e, e->raw, id, q->logprobs == JOB_NO_LOGPROBS ? 0 : q->logprobs, &token);
    if (s->generated == 0 && s->request->job->times.first_token == 0)
        s->request->job->times.first_token = now_ns();
    e->now.generated_tokens++;
    if (rc == 0)
        rc = sequence_accept(s, e->tokenizer, &token, &finish);
    if (rc)
        fail_request(s->request, rc, "the server is out of memory");
    else if (finish != FINISH_NONE)
        finish_sequence(e, s, finish);
    else
        send_text(e, s);
}

static void use_logits(struct engine *e, const struct want *want, float *logits)
{
    struct sequence *s = want->s;
    if (want->position + 1 == s->n)
        draw_token(e, s, logits);
    else if (want->position + 1 == s->scored)
        score_token(e, s, logits);
}

/* After the step: the cache learns what is stored, rows that matter become tokens. */
static void use_step(struct engine *e)
{
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        if (!s->grant)
            continue;
        kv_seq_commit(s->kv, s->position + s->grant);
        if (s->position + s->grant == s->prompt_n)
            kv_seq_mark(s->kv);
        if (s->scored == 0 && s->prompt_n > 0)
            score_token(e, s, NULL);
    }
    int n = list_wants(e);
    for (int at = 0; at < n; at += MODEL_LOGIT_ROWS) {
        int rows[MODEL_LOGIT_ROWS], m = n - at < MODEL_LOGIT_ROWS ? n - at : MODEL_LOGIT_ROWS;
        for (int i = 0; i < m; i++)
            rows[i] = e->wants[at + i].row;
        model_logits(e->config.model, rows, m, e->logits);
        for (int i = 0; i < m; i++)
            use_logits(e, &e->wants[at + i], e->logits + (size_t)i * (size_t)e->plan->vocabulary);
    }
}

/* Prompts that were only to be scored, or had no room for an answer, end here. */
static void finish_scored(struct engine *e)
{
    for (int i = e->n_running - 1; i >= 0; i--) {
        struct sequence *s = e->running[i];
        if (s->most <= 0 && s->kv && sequence_left(s) == 0)
            finish_sequence(e, s, FINISH_LENGTH);
    }
}

static double smooth(double old, double now)
{
    return old > 0 ? 0.8 * old + 0.2 * now : now;
}

/* A step of decodes alone tells their cost; what a step with prompts takes longer is the prompts'.
 */
static void measure(struct engine *e, int items, int64_t ns)
{
    int tokens = 0;
    for (int i = 0; i < items; i++)
        tokens += e->items[i].n;
    double ms = (double)ns * 1e-6;
    int prompt = tokens - items;
    if (prompt == 0)
        e->decode_ms = smooth(e->decode_ms, ms);
    else if (prompt >= LEAST_PROMPT_BUDGET / 2)
        e->prompt_ms_per_token = smooth(e->prompt_ms_per_token, ms / tokens);
    e->now.steps++;
    e->now.step_tokens += (uint64_t)tokens;
    e->now.prompt_computed_tokens += (uint64_t)prompt;
}

static void run_step(struct engine *e)
{
    int items = build_batch(e);
    if (items == 0) {
        /* admit() checked that every request fits alone, so the first in line can always go on. */
        if (!should_drop(e->running[0]->request))
            fail_request(e->running[0]->request, ERR_LIMIT,
                         "the cache has no room for this request");
        return;
    }
    const struct batch batch = {.items = e->items, .n_items = items};
    int64_t start = now_ns();
    model_step(e->config.model, &batch);
    use_step(e);
    finish_scored(e);
    measure(e, items, now_ns() - start);
}

static bool stopping(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool stop = e->stop;
    pthread_mutex_unlock(&e->lock);
    return stop;
}

static void cancel_all(struct engine *e)
{
    take_incoming(e);
    for (struct request *r = e->waiting; r; r = r->next)
        r->finished = true;
    for (int i = 0; i < e->n_running; i++)
        e->running[i]->request->finished = true;
    drop_running(e);
    drop_waiting(e);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    while (!stopping(e)) {
        take_incoming(e);
        drop_waiting(e);
        drop_running(e);
        admit(e);
        if (e->n_running)
            run_step(e);
        publish_stats(e);
        notify(e);
    }
    cancel_all(e);
    publish_stats(e);
    notify(e);
    return NULL;
}

/* ---- life ---- */

/* The longest sequence that the cache holds when it is alone. */
static int longest_context(const struct engine_config *c)
{
    int low = 0, high = model_plan(c->model)->context;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (kv_fits(c->cache, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int allocate(struct engine *e)
{
    size_t vocab = (size_t)e->plan->vocabulary, n = (size_t)e->config.most_sequences;
    e->running = calloc(n, sizeof *e->running);
    e->views = calloc(n, sizeof *e->views);
    e->items = calloc(n, sizeof *e->items);
    e->wants = calloc((size_t)e->config.step_tokens, sizeof *e->wants);
    e->logits = mem_alloc(MODEL_LOGIT_ROWS * vocab, sizeof *e->logits);
    e->raw = mem_alloc(vocab, sizeof *e->raw);
    return e->running && e->views && e->items && e->wants && e->logits && e->raw ? 0 : ERR_NOMEM;
}

static void release(struct engine *e)
{
    free(e->running);
    free(e->views);
    free(e->items);
    free(e->wants);
    mem_free(e->logits);
    mem_free(e->raw);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->news_lock);
    pthread_cond_destroy(&e->wake);
    free(e);
}

static int start_thread(struct engine *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int engine_create(const struct engine_config *config, struct engine **out, struct err *err)
{
    *out = NULL;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the engine");
    e->config = *config;
    e->plan = model_plan(config->model);
    e->tokenizer = model_tokenizer(config->model);
    if (!e->config.step_tokens || e->config.step_tokens > e->plan->batch_tokens)
        e->config.step_tokens = e->plan->batch_tokens;
    if (e->config.most_sequences > e->config.step_tokens)
        e->config.most_sequences = e->config.step_tokens;
    e->incoming_last = &e->incoming;
    e->waiting_last = &e->waiting;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->news_lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->context = longest_context(config);
    int rc = 0;
    if (e->context < KV_BLOCK_TOKENS)
        rc = err_set(
            err, ERR_LIMIT,
            "the memory for keys and values holds %d tokens, too few to serve; raise --memory",
            e->context);
    else if (allocate(e))
        rc = err_set(err, ERR_NOMEM, "no memory for the engine's buffers");
    else if (start_thread(e))
        rc = err_set(err, ERR_IO, "cannot start the engine's thread");
    if (rc) {
        release(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    struct job *next;
    for (struct job *j = engine_take_news(e); j; j = next) {
        next = j->next_news;
        job_unref(j);
    }
    release(e);
}
