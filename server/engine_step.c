#include "engine_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A step: every running sequence's next token and chunks of prompts, in one batch. */

#define LEAST_PROMPT_BUDGET 8

/* ---- the batch ---- */

static void view(struct sequence *s, struct sched_seq *v)
{
    bool decoding = sequence_decodes(s);
    if (!decoding && kv_seq_ready(s->kv) == kv_seq_length(s->kv))
        kv_seq_rematch(s->kv, s->tokens, s->n, sequence_reusable(s));
    *v = (struct sched_seq){
        .left = sequence_left(s),
        .decoding = decoding,
        .waiting = !decoding && kv_seq_producer(s->kv) != NULL,
        .holds = true,
        .tenant = s->request->job->request.tenant,
        .turn = s->turn,
        .serial = s->serial,
        .tag = s,
    };
}

static void lend_turns(struct engine *e, int n)
{
    for (int i = 0; i < n; i++) {
        const struct sequence *waiter = e->views[i].tag;
        const struct kv_seq *producer = e->views[i].waiting ? kv_seq_producer(waiter->kv) : NULL;
        for (int j = 0; producer && j < n; j++)
            if (((const struct sequence *)e->views[j].tag)->kv == producer)
                sched_lend(e->views, i, j);
    }
}

static int list_views(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        e->running[i]->grant = 0;
        e->running[i]->decoded = false;
        e->running[i]->guessed = 0;
        if (e->running[i]->kv)
            view(e->running[i], &e->views[n++]);
    }
    lend_turns(e, n);
    return n;
}

/* Takes the cache away from the last in line that comes after `needy`; false: there is none. */
static bool preempt(struct engine *e, int needy, int n)
{
    int victim = sched_victim(e->views, n, needy);
    if (victim < 0)
        return false;
    engine_park(e, e->views[victim].tag);
    e->views[victim].grant = 0;
    e->views[victim].holds = false;
    e->now.preemptions++;
    return true;
}

/* Room for the granted tokens: a shorter chunk will do; if even that finds none, somebody later in
 * line gives way. */
static bool extend(struct engine *e, int i, int n)
{
    struct sequence *s = e->views[i].tag;
    const int32_t *tokens = s->tokens + kv_seq_length(s->kv);
    while (kv_seq_extend(s->kv, tokens, e->views[i].grant)) {
        if (s->guessed)
            e->views[i].grant -= s->guessed, s->guessed = 0;
        else if (e->views[i].grant > KV_BLOCK_TOKENS)
            e->views[i].grant = KV_BLOCK_TOKENS;
        else if (!preempt(e, i, n))
            return false;
    }
    return true;
}

static int count_decoders(const struct engine *e, int n)
{
    int decoders = 0;
    for (int i = 0; i < n; i++)
        decoders += e->views[i].decoding;
    return decoders;
}

/* In the order of turns, so that whoever is preempted has not been put into the batch. */
static int build_batch(struct engine *e)
{
    int n = list_views(e), items = 0, row = 0;
    const struct sched_limits limits = {
        .step_tokens = e->config.step_tokens,
        .prompt_tokens = sched_prompt_budget(e->config.itl_target_ms, e->decode_ms,
                                             e->prompt_ms_per_token, LEAST_PROMPT_BUDGET,
                                             e->config.step_tokens),
    };
    int spare = limits.step_tokens - sched_plan(e->views, n, &limits);
    int decoders = count_decoders(e, n);
    for (int i = 0; i < n; i++) {
        struct sequence *s = e->views[i].tag;
        if (e->views[i].grant == 0 || !s->kv)
            continue;
        s->position = kv_seq_length(s->kv);
        if (e->views[i].decoding)
            e->views[i].grant += engine_guess(e, s, decoders, spare);
        if (!extend(e, i, n))
            continue;
        spare -= s->guessed;
        s->grant = e->views[i].grant;
        s->decoded = e->views[i].decoding;
        s->first_row = row;
        row += s->grant;
        e->items[items++] = (struct batch_item){
            .seq = s->kv,
            .tokens = s->tokens + s->position,
            .n = s->grant,
            .position = s->position,
            .variant = s->variant,
        };
    }
    return items;
}

/* ---- what comes of it ---- */

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
    struct job_event *event = engine_event(JOB_PROMPT, s->choice);
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
        engine_send(e, s->request->job, event);
    } else {
        job_event_destroy(event);
        engine_fail_memory(s->request);
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
        engine_fail_memory(s->request);
        return;
    }
    *event = text;
    engine_send(e, s->request->job, event);
}

/* A state that is no number makes every logit none. */
static void note_corruption(struct engine *e, const struct sequence *s, const float *logits)
{
    if (!isnan(logits[0]) || s->request->corrupted)
        return;
    s->request->corrupted = true;
    e->now.corrupted++;
}

/* False: the answer has ended, and with it the sequence. */
static bool draw_token(struct engine *e, struct sequence *s, int position, float *logits)
{
    const struct job_request *q = &s->request->job->request;
    struct job_token token = {0};
    enum job_finish finish = FINISH_NONE;
    bool wants_logprob = q->logprobs != JOB_NO_LOGPROBS || q->candidates > 1;
    int rc = 0;
    if (wants_logprob)
        memcpy(e->raw, logits, (size_t)e->plan->vocabulary * sizeof *logits);
    note_corruption(e, s, logits);
    int32_t id = sampler_pick(s->sampler, logits, e->plan->vocabulary);
    token.id = id;
    if (wants_logprob)
        rc = fill_token(e, e->raw, id, q->logprobs == JOB_NO_LOGPROBS ? 0 : q->logprobs, &token);
    if (s->request->job->times.first_token == 0)
        s->request->job->times.first_token = engine_clock();
    e->now.generated_tokens++;
    if (rc == 0)
        rc = sequence_accept(s, e->tokenizer, &token, &finish);
    if (rc) {
        engine_fail_memory(s->request);
    } else if (finish != FINISH_NONE) {
        engine_finish(e, s, finish);
        return false;
    } else {
        engine_guess_drawn(s, position, id);
        send_text(e, s);
    }
    return true;
}

/* The prompt has been computed: now it is known how much of it came from the cache. Others may
 * share it from now on, and need less room. */
static void announce(struct engine *e, struct sequence *s)
{
    if (sequence_cached(s) >= s->prompt_n - 1)
        s->miss = KV_MISS_NONE;
    engine_count_prompt(e, s);
    s->announced = true;
    e->changes++;
    if (s->choice % s->request->job->request.candidates != 0)
        return; /* what it found was computed for the first candidate */
    struct job_event *event = engine_event(JOB_STARTED, s->choice);
    if (!event) {
        engine_fail_memory(s->request);
        return;
    }
    event->cached_tokens = sequence_cached(s);
    event->miss = s->miss;
    engine_send(e, s->request->job, event);
}

/* False: the sequence has ended. */
static bool use_logits(struct engine *e, const struct want *want, float *logits)
{
    struct sequence *s = want->s;
    if (want->position + 1 == s->scored && s->scored < s->prompt_n)
        score_token(e, s, logits);
    else if (want->position + 1 == s->n && (!s->guessed || engine_guess_holds(s, want->position)))
        return draw_token(e, s, want->position, logits);
    return true;
}

/* Rows of a sequence that is no more. */
static void forget(struct engine *e, int from, int n, const struct sequence *ended)
{
    for (int i = from; i < n && e->wants[i].s == ended; i++)
        e->wants[i].s = NULL;
}

static int list_wants(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        for (int j = 0; j < s->grant; j++) {
            int next = s->position + j + 1;
            bool scores = next < s->prompt_n && s->scored < s->prompt_n && next >= s->scored;
            bool draws = s->most > 0 && (next == s->n || (s->guessed && next > s->n));
            if (scores || draws)
                e->wants[n++] = (struct want){s, s->first_row + j, s->position + j};
        }
    }
    return n;
}

static void commit(struct engine *e, struct sequence *s)
{
    int end = s->position + s->grant - s->guessed; /* guesses must prove right first */
    kv_seq_commit(s->kv, end);
    e->now.recomputed_tokens += (uint64_t)(sequence_store(s, end) - s->guessed);
    if (s->scored == 0)
        score_token(e, s, NULL);
    if (end >= s->prompt_n && !s->announced) {
        kv_seq_mark(s->kv);
        announce(e, s);
    }
}

static void use_step(struct engine *e)
{
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->grant)
            commit(e, e->running[i]);
    int n = list_wants(e);
    for (int at = 0; at < n; at += MODEL_LOGIT_ROWS) {
        int rows[MODEL_LOGIT_ROWS], m = n - at < MODEL_LOGIT_ROWS ? n - at : MODEL_LOGIT_ROWS;
        for (int i = 0; i < m; i++)
            rows[i] = e->wants[at + i].row;
        pthread_mutex_unlock(&e->state_lock);
        model_logits(e->config.model, rows, m, e->logits);
        pthread_mutex_lock(&e->state_lock);
        for (int i = 0; i < m; i++) {
            struct sequence *s = e->wants[at + i].s;
            if (s && !use_logits(e, &e->wants[at + i],
                                 e->logits + (size_t)i * (size_t)e->plan->vocabulary))
                forget(e, at + i + 1, n, s);
        }
    }
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->guessed)
            engine_guess_settle(e, e->running[i]);
}

/* Its next token would be encoded otherwise than those before it: it begins again. */
static bool outgrows_variant(const struct engine *e, const struct sequence *s)
{
    return s->kv && !s->shifted && model_variant(e->plan, s->n) != s->variant;
}

/* Prompts that were only to be scored end here; what has filled the context ends or shifts. */
static void end_full(struct engine *e)
{
    for (int i = e->n_running - 1; i >= 0; i--) {
        struct sequence *s = e->running[i];
        if (s->most <= 0 && s->kv && sequence_left(s) == 0)
            engine_finish(e, s, FINISH_LENGTH);
        else if (s->n >= e->context && s->generated < s->most)
            engine_shift(e, s);
        else if (outgrows_variant(e, s))
            engine_park(e, s);
    }
}

/* ---- speed ---- */

static const double step_bounds[] = ENGINE_STEP_BOUNDS;

/* What turns out slower than thought is believed sooner than what turns out faster: a step that is
 * too long is felt, one that is too short is not. */
static double smooth(double old, double now)
{
    double weight = now > old ? 0.5 : 0.1;
    return old > 0 ? old + weight * (now - old) : now;
}

/* A step of decodes alone tells their cost; what a step with prompts takes longer is the prompts'.
 */
static void measure(struct engine *e, int64_t ns)
{
    int decodes = 0, prompt = 0;
    double ms = (double)ns * 1e-6;
    for (int i = 0; i < e->n_running; i++) {
        const struct sequence *s = e->running[i];
        if (s->decoded)
            decodes++;
        else
            prompt += s->grant;
    }
    if (prompt == 0 && decodes)
        e->decode_ms = smooth(e->decode_ms, ms);
    double rest = decodes ? ms - e->decode_ms : ms;
    if (prompt >= LEAST_PROMPT_BUDGET / 2 && rest > 0)
        e->prompt_ms_per_token = smooth(e->prompt_ms_per_token, rest / prompt);
    e->now.steps++;
    e->now.step_tokens += (uint64_t)(decodes + prompt);
    buckets_add(&e->now.step_sizes, step_bounds, decodes + prompt, 1);
}

void engine_step(struct engine *e)
{
    int items = build_batch(e);
    if (items == 0) {
        /* engine_create checked that every request fits alone, so the first in line can always go
         * on. */
        if (!e->running[0]->request->finished)
            engine_fail(e->running[0]->request, ERR_LIMIT,
                        "the cache has no room for this request");
        return;
    }
    const struct batch batch = {.items = e->items, .n_items = items};
    int64_t start = engine_clock();
    pthread_mutex_unlock(&e->state_lock);
    model_step(e->config.model, &batch);
    pthread_mutex_lock(&e->state_lock);
    measure(e, engine_clock() - start);
    use_step(e);
    end_full(e);
}
