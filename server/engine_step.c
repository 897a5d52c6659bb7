#include "engine_state.h"

#include <assert.h>
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
        .rank = s->rank,
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
    int rc;
    while ((rc = kv_seq_extend(s->kv, tokens, e->views[i].grant)) == ERR_BUSY) {
        if (s->guessed)
            e->views[i].grant -= s->guessed, s->guessed = 0;
        else if (e->views[i].grant > KV_BLOCK_TOKENS)
            e->views[i].grant = KV_BLOCK_TOKENS;
        else if (!preempt(e, i, n))
            return false;
    }
    if (rc)
        engine_fail_memory(s->request);
    return rc == 0;
}

static int count_decoders(const struct engine *e, int n)
{
    int decoders = 0;
    for (int i = 0; i < n; i++)
        decoders += e->views[i].decoding;
    return decoders;
}

/* What the logits behind token j of its chunk will be read for. */
static enum want_kind want_of(const struct sequence *s, int j)
{
    int next = s->position + j + 1;
    if (next < s->prompt_n && s->scored < s->prompt_n && next >= s->scored)
        return WANT_SCORE;
    if (s->most <= 0)
        return WANT_NONE;
    return next == s->n ? WANT_DRAW : s->guessed && next > s->n ? WANT_GUESSED : WANT_NONE;
}

/* Of its last so many tokens. */
static int wanted(const struct sequence *s)
{
    int first = 0;
    while (first < s->grant && want_of(s, first) == WANT_NONE)
        first++;
    return s->grant - first;
}

/* In line, so that whoever is preempted has not been put into the batch. */
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
            .wanted = wanted(s),
        };
    }
    return items;
}

/* ---- what comes of it ---- */

/* Sends one prompt token with its log-probability; rc: what came of working that out. */
static void score_token(struct engine *e, struct sequence *s, struct job_token *token, int rc)
{
    struct job_event *event = engine_event(JOB_PROMPT, s->choice);
    if (!event)
        rc = ERR_NOMEM;
    if (rc == 0) {
        struct stream one;
        stream_init(&one, &(struct stream_stops){0});
        stream_push(&one, token, "", 0, false);
        stream_take(&one, true, event);
        rc = one.failed ? ERR_NOMEM : 0;
        stream_finish(&one);
    } else {
        free(token->top);
    }
    s->scored++;
    if (rc == 0) {
        engine_send(e, s->request->job, event);
    } else {
        job_event_destroy(event);
        engine_fail_memory(s->request);
    }
}

/* Nothing predicts it. */
static void score_first(struct engine *e, struct sequence *s)
{
    struct job_token token = {.id = s->tokens[0], .logprob = NAN};
    score_token(e, s, &token, 0);
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

static void note_corruption(struct engine *e, const struct sequence *s)
{
    e->now.corrupted += !s->request->corrupted;
    s->request->corrupted = true;
}

/* False: the answer has ended, and with it the sequence. */
static bool use_drawn(struct engine *e, struct want *want)
{
    struct sequence *s = want->s;
    enum job_finish finish = FINISH_NONE;
    int rc = want->rc;
    int32_t id = want->token.id;
    if (want->corrupted)
        note_corruption(e, s);
    if (s->request->job->times.first_token == 0)
        s->request->job->times.first_token = engine_clock();
    e->now.generated_tokens++;
    if (rc == 0)
        rc = sequence_accept(s, e->tokenizer, &want->token, &finish);
    if (rc) {
        engine_fail_memory(s->request);
    } else if (finish != FINISH_NONE) {
        engine_finish(e, s, finish);
        return false;
    } else {
        engine_guess_drawn(s, want->position, id);
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
static bool use_row(struct engine *e, struct want *wants, int i)
{
    struct want *want = &wants[i];
    struct sequence *s = want->s;
    if (want->kind == WANT_SCORE) {
        assert(want->position + 1 == s->scored);
        score_token(e, s, &want->token, want->rc);
        return true;
    }
    if (want->kind == WANT_GUESSED && !engine_guess_holds(s, want->position))
        return true;
    engine_choose_late(e, wants, i);
    return use_drawn(e, want);
}

/* Rows of a sequence that is no more. */
static void forget(struct engine *e, int from, int n, const struct sequence *ended)
{
    for (int i = from; i < n && e->wants[i].s == ended; i++) {
        assert(!e->wants[i].chosen); /* an answer ends with a draw: guesses came behind it */
        e->wants[i].s = NULL;
    }
}

static int list_wants(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        for (int j = 0; j < s->grant; j++) {
            enum want_kind kind = want_of(s, j);
            if (kind != WANT_NONE)
                e->wants[n++] = (struct want){
                    .s = s, .row = s->first_row + j, .position = s->position + j, .kind = kind};
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
        score_first(e, s);
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
        struct want *wants = e->wants + at;
        int rows[MODEL_LOGIT_ROWS], m = n - at < MODEL_LOGIT_ROWS ? n - at : MODEL_LOGIT_ROWS;
        for (int i = 0; i < m; i++)
            rows[i] = wants[i].row;
        pthread_mutex_unlock(&e->state_lock);
        model_logits(e->config.model, rows, m, e->logits);
        engine_choose(e, wants, m);
        pthread_mutex_lock(&e->state_lock);
        for (int i = 0; i < m; i++) {
            struct sequence *s = wants[i].s;
            if (s && !use_row(e, wants, i))
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

/* Every request fits alone (engine_submit), and the first in line takes from the others what it
 * needs (sched_victim): it can always go on, unless the heap is exhausted, by which it fails. */
static bool somebody_failed(const struct engine *e)
{
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->request->finished)
            return true;
    return false;
}

void engine_step(struct engine *e)
{
    int items = build_batch(e);
    if (items == 0) {
        assert(somebody_failed(e));
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
