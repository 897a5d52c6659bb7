#define _GNU_SOURCE
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An engine for tests of the front end. What a job does is written at the head of its prompt:
 *
 *     @pace=50 prefill=300 fail=3 text=abc;rest
 *
 *   pace=MS      between steps (0: none)          prefill=MS  before the first token
 *   fail=N       error after N tokens (0: at once) fit=1       refused at submit, as too long
 *   text=WORD    what is said, again and again     cached=N    cached tokens
 *   late=MS      before the job is even started    burst=N     tokens of a step
 *   raw=1        says bytes as they come, whole characters or not
 *
 * Without it the prompt's own text is said back. Notes go to standard error, with nanoseconds of
 * CLOCK_MONOTONIC, for tests to read: "fake: submit|start|cancel|done ID TIME". */

#define CONTEXT 4096

struct script {
    int pace, prefill, fail, fit, cached, late, burst, raw;
    char text[1 << 12];
    size_t text_bytes;
};

struct run {
    struct job *job;
    struct script script;
    int64_t next_ns;
    int made; /* tokens of each choice */
    bool started, prompted;
    struct run *next;
};

struct engine {
    struct engine_config config;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    uint64_t ids;
    struct run *runs; /* guarded by lock; the thread alone removes */
    struct job *news;
    struct engine_stats stats;
    struct job_event *batch_unused;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note(const char *what, const struct job *j)
{
    if (getenv("FAKE_QUIET"))
        return;
    fprintf(stderr, "fake: %s %llu %lld\n", what, (unsigned long long)j->id, (long long)now_ns());
}

/* ---- the script ---- */

static void read_option(struct script *s, const char *name, const char *value)
{
    static const struct {
        const char *name;
        size_t offset;
    } options[] = {
        {"pace", offsetof(struct script, pace)},     {"prefill", offsetof(struct script, prefill)},
        {"fail", offsetof(struct script, fail)},     {"fit", offsetof(struct script, fit)},
        {"cached", offsetof(struct script, cached)}, {"late", offsetof(struct script, late)},
        {"burst", offsetof(struct script, burst)},   {"raw", offsetof(struct script, raw)},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strcmp(options[i].name, name) == 0)
            *(int *)((char *)s + options[i].offset) = atoi(value);
    if (strcmp(name, "text") == 0) {
        s->text_bytes = strlen(value);
        memcpy(s->text, value, s->text_bytes + 1);
    }
}

/* Chat puts "user: " and the like before it. */
static void read_script(const struct job *j, struct script *s)
{
    char head[1 << 12];
    size_t n = 0;
    const struct tok_ids *p = &j->request.prompts[0];
    *s = (struct script){.fail = -1, .burst = 1};
    for (int i = 0; i < p->n && n < sizeof head - 1; i++)
        if (p->ids[i] < 256 && p->ids[i])
            head[n++] = (char)p->ids[i];
    head[n] = '\0';
    char *at = strchr(head, '@'), *end = at ? strchr(at, ';') : NULL, *save = NULL;
    if (!end) {
        memcpy(s->text, head, n + 1);
        s->text_bytes = n;
    } else {
        *end = '\0';
        for (char *word = strtok_r(at + 1, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
            char *value = strchr(word, '=');
            if (value) {
                *value = '\0';
                read_option(s, word, value + 1);
            }
        }
    }
    if (!s->text_bytes)
        read_option(s, "text", "abcdefghij");
}

/* ---- events ---- */

static void emit(struct engine *e, struct job *j, struct job_event *event)
{
    pthread_mutex_lock(&e->lock);
    pthread_mutex_lock(&j->lock);
    event->next = NULL;
    *j->last = event;
    j->last = &event->next;
    pthread_mutex_unlock(&j->lock);
    if (!j->listed) {
        j->listed = true;
        job_ref(j);
        j->next_news = e->news;
        e->news = j;
    }
    pthread_mutex_unlock(&e->lock);
}

static struct job_event *event_create(enum job_event_kind kind, int choice)
{
    struct job_event *e = calloc(1, sizeof *e);
    if (!e)
        abort();
    e->kind = kind;
    e->choice = choice;
    e->stop_token = -1;
    return e;
}

static float logprob_of(int32_t id)
{
    return -0.125f * (float)(id % 37) - 0.1f;
}

/* n tokens with `tops` alternatives each, in one allocation. */
static void set_tokens(struct job_event *e, const int32_t *ids, int n, int tops, bool first_null)
{
    int count = tops == -1 ? 259 : tops < 0 ? 0 : tops;
    e->tokens = malloc((size_t)n * (sizeof *e->tokens + (size_t)count * sizeof *e->tokens->top));
    struct token_logprob *top = (struct token_logprob *)(e->tokens + n);
    e->n_tokens = n;
    for (int i = 0; i < n; i++, top += count) {
        e->tokens[i] = (struct job_token){ids[i], logprob_of(ids[i]), 1, count, top};
        for (int k = 0; k < count; k++)
            top[k] = (struct token_logprob){(ids[i] + k) % 259, logprob_of(ids[i]) - (float)k};
        if (first_null && i == 0)
            e->tokens[i].logprob = NAN, e->tokens[i].n_top = 0;
    }
}

static void start(struct engine *e, struct run *r)
{
    struct job *j = r->job;
    const struct job_request *q = &j->request;
    r->started = true;
    j->times.started = now_ns();
    note("start", j);
    pthread_mutex_lock(&e->lock);
    e->stats.waiting--;
    e->stats.running++;
    pthread_mutex_unlock(&e->lock);
    for (int p = 0; p < q->n_prompts; p++) {
        struct job_event *event = event_create(JOB_STARTED, p * q->candidates);
        event->cached_tokens = r->script.cached;
        emit(e, j, event);
    }
    r->next_ns = now_ns() + (int64_t)r->script.prefill * 1000000;
}

static void say_prompts(struct engine *e, struct run *r)
{
    const struct job_request *q = &r->job->request;
    r->prompted = true;
    if (q->prompt_logprobs == JOB_NO_LOGPROBS)
        return;
    for (int p = 0; p < q->n_prompts; p++) {
        int n = q->prompts[p].n, half = n / 2; /* in two events, to see them joined */
        struct job_event *first = event_create(JOB_PROMPT, p * q->candidates);
        set_tokens(first, q->prompts[p].ids, half, q->prompt_logprobs, half > 0);
        emit(e, r->job, first);
        struct job_event *second = event_create(JOB_PROMPT, p * q->candidates);
        set_tokens(second, q->prompts[p].ids + half, n - half, q->prompt_logprobs, half == 0);
        emit(e, r->job, second);
    }
}

static size_t character(const char *s)
{
    unsigned char c = (unsigned char)*s;
    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* One token is one byte; a character's text comes with its last one. */
static void say(struct engine *e, struct run *r, int choice, int from, int n, bool last)
{
    struct job *j = r->job;
    struct script *s = &r->script;
    struct job_event *event = event_create(last ? JOB_FINISH : JOB_TEXT, choice);
    char text[4096];
    int32_t ids[1024];
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)(from + i) % s->text_bytes, begin = at;
        ids[i] = (unsigned char)s->text[at];
        while (!s->raw && begin > 0 && ((unsigned char)s->text[begin] & 0xc0) == 0x80)
            begin--;
        size_t len = s->raw ? 1 : character(s->text + begin);
        if (at + 1 == begin + len && bytes + len < sizeof text) {
            memcpy(text + bytes, s->text + begin, len);
            bytes += len;
        }
    }
    if (bytes) {
        event->text = malloc(bytes);
        memcpy(event->text, text, bytes);
        event->text_bytes = bytes;
    }
    if (n)
        set_tokens(event, ids, n, j->request.logprobs, false);
    event->finish = FINISH_LENGTH;
    event->completion_tokens = from + n;
    event->logprob_sum = -1.0 * (choice + 1) * (from + n); /* the first candidate is the best */
    emit(e, j, event);
}

static void finish(struct engine *e, struct run *r, int error, const char *text)
{
    struct job_event *event = event_create(JOB_DONE, 0);
    event->error = error;
    if (text) {
        event->text = strdup(text);
        event->text_bytes = strlen(text);
    }
    r->job->times.finished = now_ns();
    note("done", r->job);
    pthread_mutex_lock(&e->lock);
    if (r->started)
        e->stats.running--;
    else
        e->stats.waiting--;
    e->stats
        .finished[error || atomic_load(&r->job->cancelled) ? FINISH_CANCELLED : FINISH_LENGTH]++;
    pthread_mutex_unlock(&e->lock);
    emit(e, r->job, event);
}

static int most_tokens(const struct job *j)
{
    return j->request.max_tokens < 0 ? 64 : j->request.max_tokens;
}

/* True when the job is over. */
static bool step(struct engine *e, struct run *r)
{
    struct job *j = r->job;
    const struct job_request *q = &j->request;
    int most = most_tokens(j), n = r->script.burst;
    if (!r->prompted)
        say_prompts(e, r);
    if (r->script.fail >= 0 && r->made >= r->script.fail) {
        finish(e, r, ERR_IO, "the fake engine failed as it was told");
        return true;
    }
    n = n > most - r->made ? most - r->made : n;
    if (r->made == 0)
        j->times.first_token = now_ns();
    for (int c = 0; c < q->n_prompts * q->candidates; c++)
        say(e, r, c, r->made, n, r->made + n >= most);
    r->made += n;
    pthread_mutex_lock(&e->lock);
    e->stats.generated_tokens += (uint64_t)n;
    pthread_mutex_unlock(&e->lock);
    r->next_ns = now_ns() + (int64_t)r->script.pace * 1000000;
    if (r->made < most)
        return false;
    finish(e, r, 0, NULL);
    return true;
}

/* ---- the thread ---- */

static bool advance(struct engine *e, struct run *r, int64_t now)
{
    if (atomic_load(&r->job->cancelled)) {
        finish(e, r, 0, NULL);
        return true;
    }
    if (now < r->next_ns)
        return false;
    if (!r->started && e->stats.running >= e->config.most_sequences)
        return false;
    if (!r->started) {
        start(e, r);
        return false;
    }
    return step(e, r);
}

static int64_t run_all(struct engine *e)
{
    int64_t next = INT64_MAX;
    bool news;
    for (struct run **at = &e->runs; *at;) {
        struct run *r = *at;
        pthread_mutex_unlock(&e->lock);
        bool over = advance(e, r, now_ns());
        pthread_mutex_lock(&e->lock);
        if (over) {
            while (*at != r) /* others may have come before it */
                at = &(*at)->next;
            *at = r->next;
            job_unref(r->job);
            free(r);
        } else {
            bool blocked = !r->started && e->stats.running >= e->config.most_sequences;
            if (!blocked && r->next_ns < next)
                next = r->next_ns;
            at = &r->next;
        }
    }
    news = e->news != NULL;
    if (news && e->config.notify) {
        pthread_mutex_unlock(&e->lock);
        e->config.notify(e->config.notify_arg);
        pthread_mutex_lock(&e->lock);
    }
    return next;
}

static void *thread(void *arg)
{
    struct engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        int64_t next = run_all(e);
        int64_t wait = next == INT64_MAX ? 1000000000 : next - now_ns();
        if (wait <= 0)
            continue;
        struct timespec until = {.tv_sec = (now_ns() + wait) / 1000000000,
                                 .tv_nsec = (now_ns() + wait) % 1000000000};
        if (!e->stop)
            pthread_cond_timedwait(&e->wake, &e->lock, &until);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- the public face ---- */

int engine_create(const struct engine_config *config, struct engine **out, struct err *err)
{
    struct engine *e = calloc(1, sizeof *e);
    pthread_condattr_t monotonic;
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory");
    e->config = *config;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&e->thread, NULL, thread, e))
        abort();
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
    while (e->runs) {
        struct run *r = e->runs;
        e->runs = r->next;
        finish(e, r, 0, NULL);
        job_unref(r->job);
        free(r);
    }
    for (struct job *j = engine_next_news(e); j; j = engine_next_news(e)) {
        job_unref(j);
    }
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    free(e);
}

int engine_submit(struct engine *e, struct job *job, struct err *err)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(err, ERR_NOMEM, "no memory");
    read_script(job, &r->script);
    if (r->script.fit) {
        free(r);
        return err_set(err, ERR_LIMIT, "it can never fit");
    }
    job_ref(job);
    r->job = job;
    job->times.submitted = now_ns();
    r->next_ns = now_ns() + (int64_t)r->script.late * 1000000;
    pthread_mutex_lock(&e->lock);
    job->id = ++e->ids;
    note("submit", job);
    struct run **last = &e->runs;
    while (*last)
        last = &(*last)->next;
    *last = r;
    e->stats.waiting++;
    for (int p = 0; p < job->request.n_prompts; p++)
        e->stats.prompt_tokens += (uint64_t)job->request.prompts[p].n;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

void engine_cancel(struct engine *e, struct job *job)
{
    pthread_mutex_lock(&e->lock);
    if (!atomic_exchange(&job->cancelled, true))
        note("cancel", job);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

struct job *engine_next_news(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    struct job *j = e->news;
    if (j) {
        e->news = j->next_news;
        j->listed = false;
    }
    pthread_mutex_unlock(&e->lock);
    return j;
}

int engine_context(const struct engine *e)
{
    (void)e;
    return CONTEXT;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->tokens_per_second_prefill = 1000;
    out->tokens_per_second_decode = 100;
    pthread_mutex_unlock(&e->lock);
}

json_t *engine_debug(struct engine *e, bool texts)
{
    (void)e;
    return json_pack("{s:b}", "texts", texts);
}
