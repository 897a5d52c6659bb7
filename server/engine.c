#include "engine_state.h"

#include "pool.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t engine_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- from any thread ---- */

static int check_prompts(const struct engine *e, const struct job_request *q, struct err *err)
{
    int room = q->max_tokens != 0;
    for (int i = 0; i < q->n_prompts; i++) {
        int n = q->prompts[i].n;
        if (n < 1)
            return err_set(err, ERR_ARG, "prompt %d is empty: there is no token to go on from", i);
        if (n + room > e->context)
            return err_set(err, ERR_LIMIT,
                           "prompt %d has %d tokens; the context holds %d, %d of them for the "
                           "answer at least",
                           i, n, e->context, room);
    }
    return 0;
}

int engine_submit(struct engine *e, struct job *j, struct err *err)
{
    if (check_prompts(e, &j->request, err))
        return err->code;
    pthread_mutex_lock(&e->lock);
    if (e->stop || e->queued >= e->config.most_queued) {
        pthread_mutex_unlock(&e->lock);
        return err_set(err, ERR_BUSY, "%d requests are waiting already", e->config.most_queued);
    }
    job_ref(j);
    j->times.submitted = engine_clock();
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

/* ---- the thread ---- */

static struct job *take_incoming(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (!e->stop && !e->poke && !e->incoming && !e->waiting && e->n_running == 0)
        pthread_cond_wait(&e->wake, &e->lock);
    e->poke = false;
    struct job *list = e->incoming;
    e->incoming = NULL;
    e->incoming_last = &e->incoming;
    pthread_mutex_unlock(&e->lock);
    return list;
}

static void accept_all(struct engine *e, struct job *list)
{
    while (list) {
        struct job *next = list->next;
        list->next = NULL;
        engine_accept(e, list);
        list = next;
    }
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
    for (struct request *r = e->waiting; r; r = r->next)
        r->finished = true;
    for (int i = 0; i < e->n_running; i++)
        e->running[i]->request->finished = true;
    engine_drop(e);
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    if (e->config.nice)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), e->config.nice);
    bool stop = false;
    while (!stop) {
        struct job *incoming = take_incoming(e);
        pthread_mutex_lock(&e->state_lock);
        kv_tick(e->config.cache, (double)engine_clock() * 1e-9);
        accept_all(e, incoming);
        stop = stopping(e);
        if (stop)
            cancel_all(e);
        engine_drop(e);
        engine_admit(e);
        if (e->begun)
            engine_publish(e); /* a request is always waiting, running or done for who asks */
        if (e->n_running)
            engine_step(e);
        engine_publish(e);
        pthread_mutex_unlock(&e->state_lock);
        engine_notify(e);
    }
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
    size_t vocab = (size_t)e->plan->vocabulary, n = (size_t)e->config.most_sequences,
           queued = (size_t)e->config.most_queued;
    e->running = calloc(2 * n, sizeof *e->running);
    e->views = calloc(2 * n, sizeof *e->views);
    e->items = calloc(n, sizeof *e->items);
    e->wants = calloc((size_t)e->config.step_tokens, sizeof *e->wants);
    e->claims = calloc(queued + n, sizeof *e->claims);
    e->slots = calloc(n, sizeof *e->slots);
    e->logits = mem_alloc(MODEL_LOGIT_ROWS * vocab, sizeof *e->logits);
    int rows = engine_logit_rows(pool_threads(e->config.pool));
    e->raw = mem_alloc((size_t)(rows - MODEL_LOGIT_ROWS) * vocab, sizeof *e->raw);
    bool all = e->running && e->views && e->items && e->wants && e->claims && e->slots &&
               e->logits && e->raw;
    return all ? 0 : ERR_NOMEM;
}

static void release(struct engine *e)
{
    free(e->running);
    free(e->views);
    free(e->items);
    free(e->wants);
    free(e->claims);
    free(e->slots);
    mem_free(e->logits);
    mem_free(e->raw);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->news_lock);
    pthread_mutex_destroy(&e->state_lock);
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

static struct engine *make(const struct engine_config *config)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->config = *config;
    e->plan = model_plan(config->model);
    e->tokenizer = model_tokenizer(config->model);
    if (!e->config.step_tokens || e->config.step_tokens > e->plan->batch_tokens)
        e->config.step_tokens = e->plan->batch_tokens;
    if (e->config.most_sequences > e->config.step_tokens)
        e->config.most_sequences = e->config.step_tokens;
    e->incoming_last = &e->incoming;
    e->waiting_last = &e->waiting;
    e->changes = 1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->news_lock, NULL);
    pthread_mutex_init(&e->state_lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->context = longest_context(config);
    return e;
}

int engine_create(const struct engine_config *config, struct engine **out, struct err *err)
{
    *out = NULL;
    struct engine *e = make(config);
    int rc = 0;
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the engine");
    engine_publish(e); /* the cache can be asked for its size at once */
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
    for (struct job *j = engine_next_news(e); j; j = engine_next_news(e)) {
        job_unref(j);
    }
    release(e);
}
