#include "front.h"

#include "generation.h"
#include "log.h"

/* From the first signal to the end:
 *
 *   DRAIN_FINISHING  new and queued requests are refused, running answers finish
 *   DRAIN_CUT        what still runs has been told so; a moment to send that
 *   DRAIN_CLOSING    everything that is left is killed; then the loop ends
 *
 * The listeners stay open until the loop ends, so that probes get an answer. */

static void fail_all(struct server *s, bool queued_only)
{
    struct api_error e = {0};
    api_refuse(&e, 503, "server_shutting_down", NULL, "the server is shutting down");
    e.retry_seconds = 5;
    for (struct exchange *ex = s->exchanges; ex; ex = ex->next) {
        struct generation *g = ex->generation;
        if (g && g->submitted && !(queued_only && g->started))
            generation_fail(g, &e);
    }
}

static void enter(struct server *s, enum drain_state state, double seconds)
{
    s->drain = state;
    s->drain_deadline = front_now_ms() + (int64_t)(seconds * 1000);
}

static void cut(struct server *s)
{
    enter(s, DRAIN_CUT, s->config->flush_seconds);
    fail_all(s, false);
}

static void close_all(struct server *s)
{
    enter(s, DRAIN_CLOSING, 1);
    for (struct exchange *ex = s->exchanges; ex; ex = ex->next)
        if (ex->dispatched)
            generation_gone(ex);
    for (struct conn *c = s->conns; c; c = c->next)
        if (!c->exchange || !c->exchange->suspended)
            conn_kill(c);
}

void drain_check(struct server *s)
{
    if (!drain_begun(s))
        return;
    bool quiet = s->n_dispatched == 0 && s->n_working == 0;
    bool late = front_now_ms() >= s->drain_deadline;
    if (quiet) {
        uv_stop(&s->loop);
    } else if (late && s->drain == DRAIN_FINISHING) {
        log_info("running requests are cut off after %g seconds", s->config->drain_seconds);
        cut(s);
        httpd_wake(s);
    } else if (late && s->drain == DRAIN_CUT) {
        close_all(s);
        httpd_wake(s);
    }
}

static void on_stop_signal(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;
    (void)number;
    if (s->drain == DRAIN_NOT) {
        log_info("shutting down: %d requests in progress", s->n_dispatched);
        enter(s, DRAIN_FINISHING, s->config->drain_seconds);
        fail_all(s, true);
    } else if (s->drain == DRAIN_FINISHING) {
        cut(s);
    }
    httpd_wake(s);
    httpd_pump(s);
    drain_check(s);
}

static void on_hangup(uv_signal_t *handle, int number)
{
    (void)number;
    access_reload(handle->data);
}

static int watch(struct server *s, uv_signal_t *handle, uv_signal_cb cb, int number)
{
    if (uv_signal_init(&s->loop, handle))
        return -1;
    handle->data = s;
    return uv_signal_start(handle, cb, number);
}

int drain_start(struct server *s, struct err *err)
{
    if (watch(s, &s->term, on_stop_signal, SIGTERM) ||
        watch(s, &s->interrupt, on_stop_signal, SIGINT) || watch(s, &s->hangup, on_hangup, SIGHUP))
        return err_set(err, ERR_IO, "signals cannot be watched");
    return 0;
}

void drain_stop(struct server *s)
{
    front_close((uv_handle_t *)&s->term);
    front_close((uv_handle_t *)&s->interrupt);
    front_close((uv_handle_t *)&s->hangup);
}
