#include "terminal.h"

#include <time.h>

void terminal_init(struct terminal *t)
{
    pthread_condattr_t clock; /* one that nobody sets */
    *t = (struct terminal){0};
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &clock);
    pthread_condattr_destroy(&clock);
}

void terminal_finish(struct terminal *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
}

void terminal_notify(void *arg)
{
    struct terminal *t = arg;
    pthread_mutex_lock(&t->lock);
    t->news = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Waits for news, but no longer than it takes to notice Ctrl-C. */
static void wait_for_news(struct terminal *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 50000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&t->lock);
    if (!t->news)
        pthread_cond_timedwait(&t->wake, &t->lock, &until);
    t->news = false;
    pthread_mutex_unlock(&t->lock);
}

static void drop_news(struct engine *e)
{
    for (struct job *j = engine_next_news(e); j; j = engine_next_news(e)) {
        job_unref(j);
    }
}

/* True when the event was the last. */
static bool use_event(struct terminal_answer *a, const struct job_event *e, struct err *err)
{
    if (e->kind == JOB_DONE) {
        if (e->error)
            err_set(err, e->error, "%s", e->text ? e->text : "the request failed");
        return true;
    }
    if (e->choice != 0)
        return false;
    if (e->kind == JOB_STARTED)
        a->cached_tokens = e->cached_tokens;
    if (e->text && (e->kind == JOB_TEXT || e->kind == JOB_FINISH))
        a->text(a->arg, e->text, e->text_bytes);
    if (e->kind == JOB_FINISH) {
        a->finish = e->finish;
        a->completion_tokens = e->completion_tokens;
    }
    return false;
}

int terminal_run(struct terminal *t, struct job *j, struct terminal_answer *a, struct err *err)
{
    bool done = false, cancelled = false;
    err->code = 0;
    a->prompt_tokens = j->request.prompts[0].n;
    int rc = engine_submit(t->engine, j, err);
    if (rc)
        return rc;
    while (!done) {
        wait_for_news(t);
        drop_news(t->engine);
        if (a->interrupted && *a->interrupted && !cancelled) {
            engine_cancel(t->engine, j);
            cancelled = true;
        }
        struct job_event *next;
        for (struct job_event *e = job_take(j); e; e = next) {
            next = e->next;
            done = use_event(a, e, err) || done;
            job_event_destroy(e);
        }
    }
    a->seconds_to_first = (double)(j->times.first_token - j->times.submitted) * 1e-9;
    a->seconds = (double)(j->times.finished - j->times.submitted) * 1e-9;
    return err->code;
}
