#include "rig.h"

#include "testlib.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- life ---- */

/* What waits for several jobs looks at each of them: nobody is told which one has news. */
static void ring(void *arg)
{
    struct rig *r = arg;
    pthread_mutex_lock(&r->lock);
    r->rings++;
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
}

static void open_engine(struct rig *r, const struct rig_options *o)
{
    struct err err;
    const struct engine_config config = {
        .model = r->model,
        .cache = r->cache,
        .pool = r->pool,
        .most_sequences = o->most_sequences ? o->most_sequences : 64,
        .most_queued = 1024,
        .step_tokens = o->step_tokens,
        .lookup = o->lookup,
        .itl_target_ms = o->itl_target_ms > 0 ? o->itl_target_ms : 100,
        .notify = ring,
        .notify_arg = r,
    };
    if (engine_create(&config, &r->engine, &err))
        fail_msg("%s", err.text);
}

void rig_open(struct rig *r, const struct rig_options *o)
{
    struct err err;
    const struct model_options options = {
        .path = o->path,
        .window = o->window ? o->window : -1,
        .kernels = "auto",
        .kv = kv_type_name(o->kv_type),
        .context = o->context,
        .threads = o->threads ? o->threads : 1,
    };
    *r = (struct rig){0};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->news, NULL);
    if (model_open(&options, &r->model, &err) || pool_create(options.threads, 0, &r->pool, &err) ||
        model_load(r->model, r->pool, NULL, NULL, &err))
        fail_msg("%s: %s", o->path, err.text);
    struct kv_config kv = model_plan(r->model)->kv;
    const struct model_plan *plan = model_plan(r->model);
    kv.share = !o->no_sharing;
    kv.arena_bytes = o->pool_tokens ? model_kv_bytes(plan, o->pool_tokens)
                                    : (size_t)plan->context * 64 * plan->kv_bytes_per_token;
    while (kv_create(&kv, &r->cache, &err) || !kv_fits(r->cache, o->pool_tokens)) {
        kv_destroy(r->cache);
        kv.arena_bytes += kv.arena_bytes / 32 + 64;
    }
    struct kv_stats st;
    kv_stats(r->cache, &st);
    r->all_blocks = st.blocks_free[0];
    open_engine(r, o);
}

void rig_close(struct rig *r)
{
    if (r->engine)
        rig_check_idle(r);
    engine_destroy(r->engine);
    kv_check(r->cache);
    kv_destroy(r->cache);
    model_destroy(r->model);
    pool_destroy(r->pool);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->news);
}

static uint64_t rings_of(struct rig *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t rings = r->rings;
    pthread_mutex_unlock(&r->lock);
    return rings;
}

/* Until the engine has told something since `rings` was read. */
static void wait_ring(struct rig *r, uint64_t rings)
{
    pthread_mutex_lock(&r->lock);
    while (r->rings == rings)
        pthread_cond_wait(&r->news, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static void drop_news(struct rig *r)
{
    for (struct job *j = engine_next_news(r->engine); j; j = engine_next_news(r->engine)) {
        job_unref(j);
    }
}

struct engine_stats rig_stats(struct rig *r)
{
    struct engine_stats st;
    engine_stats(r->engine, &st);
    return st;
}

void rig_wait(struct rig *r, bool (*holds)(const struct engine_stats *stats))
{
    for (;;) {
        uint64_t rings = rings_of(r);
        struct engine_stats st = rig_stats(r);
        if (holds(&st))
            return;
        wait_ring(r, rings);
    }
}

/* The stats are told before the bell that the last events ring. */
static bool is_idle(const struct engine_stats *st)
{
    return st->running == 0 && st->waiting == 0;
}

void rig_wait_ring(struct rig *r)
{
    uint64_t rings = rings_of(r);
    struct engine_stats st = rig_stats(r);
    if (!is_idle(&st))
        wait_ring(r, rings);
}

void rig_check_idle(struct rig *r)
{
    rig_wait(r, is_idle);
    struct engine_stats st = rig_stats(r);
    int groups = model_plan(r->model)->kv.groups;
    kv_check(r->cache);
    for (int g = 0; g < groups; g++)
        assert_true(st.kv.blocks_held[g] == 0 && st.kv.blocks_shared[g] == 0);
    if (groups == 1)
        assert_int_equal(st.kv.blocks_free[0] + st.kv.blocks_cached[0], r->all_blocks);
    assert_int_equal(st.kv.bytes_free + st.kv.bytes_cached, st.kv.block_bytes_total);
    assert_int_equal(st.prompt_tokens, st.prompt_cached_tokens + st.prompt_computed_tokens);
}

/* ---- asking ---- */

struct job *rig_submit(struct rig *r, const struct rig_ask *ask)
{
    struct job *j = job_create();
    struct err err;
    assert_non_null(j);
    struct job_request *q = &j->request;
    q->n_prompts = 1;
    q->prompts = mem_arena_alloc(&j->arena, sizeof *q->prompts);
    int32_t *ids = mem_arena_alloc(&j->arena, (size_t)ask->n * sizeof *ids);
    assert_true(q->prompts && ids);
    memcpy(ids, ask->tokens, (size_t)ask->n * sizeof *ids);
    q->prompts[0] = (struct tok_ids){ids, ask->n, ask->n};
    q->candidates = ask->candidates ? ask->candidates : 1;
    q->sampling = sampler_params_default;
    q->sampling.temperature = ask->temperature;
    q->sampling.top_p = ask->top_p > 0 ? ask->top_p : 1;
    q->sampling.repetition_penalty = ask->repetition_penalty > 0 ? ask->repetition_penalty : 1;
    q->sampling.seed = ask->seed;
    q->max_tokens = ask->max_tokens;
    q->ignore_eos = true;
    q->special = true;
    q->logprobs = ask->logprobs;
    q->prompt_logprobs = ask->prompt_logprobs;
    q->salt = ask->salt;
    q->tenant = ask->tenant;
    q->priority = ask->priority;
    q->shift = ask->shift;
    q->keep = ask->keep;
    if (engine_submit(r->engine, j, &err))
        fail_msg("%s", err.text);
    return j;
}

static void add_token(struct strbuf *out, const struct job_token *t)
{
    strbuf_add(out, (const char *)&t->id, sizeof t->id);
    strbuf_add(out, (const char *)&t->logprob, sizeof t->logprob);
    for (int i = 0; i < t->n_top; i++) {
        strbuf_add(out, (const char *)&t->top[i].id, sizeof t->top[i].id);
        strbuf_add(out, (const char *)&t->top[i].logprob, sizeof t->top[i].logprob);
    }
}

static void note_time(const struct job *j, struct rig_answer *a, int64_t now)
{
    now -= j->times.submitted;
    if (a->first_ns == 0)
        a->first_ns = now;
    else if (now - a->last_ns > a->gap_ns)
        a->gap_ns = now - a->last_ns;
    a->last_ns = now;
}

static void read_event(const struct job *j, const struct job_event *e, struct rig_answer *a,
                       int64_t now)
{
    if (e->kind == JOB_STARTED) {
        a->cached = e->cached_tokens;
        a->miss = e->miss;
        return;
    }
    for (int i = 0; i < e->n_tokens; i++)
        add_token(e->kind == JOB_PROMPT ? &a->prompt : &a->tokens, &e->tokens[i]);
    if (e->kind == JOB_PROMPT)
        return;
    a->ids = realloc(a->ids, (size_t)(a->n_tokens + e->n_tokens + 1) * sizeof *a->ids);
    for (int i = 0; i < e->n_tokens; i++)
        a->ids[a->n_tokens++] = e->tokens[i].id;
    if (e->n_tokens)
        note_time(j, a, now);
    strbuf_add(&a->text, e->text ? e->text : "", e->text_bytes);
    if (e->kind == JOB_FINISH)
        a->finish = e->finish;
}

bool rig_read(struct job *j, struct rig_answer *answers)
{
    bool done = false;
    int64_t now = now_ns();
    struct job_event *next;
    for (struct job_event *e = job_take(j); e; e = next) {
        next = e->next;
        if (e->kind != JOB_DONE)
            read_event(j, e, &answers[e->choice], now);
        else
            answers[0].error = e->error;
        done |= e->kind == JOB_DONE;
        job_event_destroy(e);
    }
    return done;
}

void rig_finish(struct rig *r, struct job *j, struct rig_answer *answers)
{
    for (;;) {
        uint64_t rings = rings_of(r);
        if (rig_read(j, answers))
            break;
        wait_ring(r, rings);
    }
    job_unref(j);
    drop_news(r);
}

void rig_ask(struct rig *r, const struct rig_ask *asks, int n, struct rig_answer *answers)
{
    struct job **jobs = calloc((size_t)n, sizeof *jobs);
    for (int i = 0; i < n; i++)
        jobs[i] = rig_submit(r, &asks[i]);
    for (int i = 0; i < n; i++) {
        rig_finish(r, jobs[i], answers);
        answers += asks[i].candidates ? asks[i].candidates : 1;
    }
    free(jobs);
}

void rig_answer_finish(struct rig_answer *a)
{
    strbuf_finish(&a->prompt);
    strbuf_finish(&a->tokens);
    strbuf_finish(&a->text);
    free(a->ids);
    *a = (struct rig_answer){0};
}

static bool same_bytes(const struct strbuf *a, const struct strbuf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

bool rig_answer_equal(const struct rig_answer *a, const struct rig_answer *b)
{
    return a->n_tokens == b->n_tokens && a->finish == b->finish && a->error == b->error &&
           same_bytes(&a->prompt, &b->prompt) && same_bytes(&a->tokens, &b->tokens) &&
           same_bytes(&a->text, &b->text);
}
