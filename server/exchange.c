#define _GNU_SOURCE /* memmem */
#include "front.h"

#include "api.h"
#include "generation.h"
#include "json_in.h"
#include "log.h"
#include "room.h"
#include "routes.h"

#include <stdlib.h>
#include <string.h>

/* Bodies over the limit are read and dropped up to this many times the limit, since a client that
 * only writes would never see an early answer. */
#define SWALLOW 4

/* ---- suspending ---- */

void exchange_suspend(struct exchange *ex)
{
    if (ex->suspended)
        return;
    ex->suspended = true;
    MHD_suspend_connection(ex->mhd);
}

void exchange_resume(struct exchange *ex)
{
    if (!ex->suspended || !ex->mhd)
        return;
    ex->suspended = false;
    MHD_resume_connection(ex->mhd);
    httpd_wake(ex->server);
}

/* ---- answering ---- */

const char *exchange_header(const struct exchange *ex, const char *name)
{
    return ex->mhd ? MHD_lookup_connection_value(ex->mhd, MHD_HEADER_KIND, name) : NULL;
}

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value && *value)
        MHD_add_response_header(r, name, value);
}

static void add_headers(const struct exchange *ex, struct MHD_Response *r, const char *type)
{
    char seconds[16] = "";
    add_header(r, "Content-Type", type);
    add_header(r, "X-Request-Id", ex->id);
    add_header(r, "Allow", ex->allow);
    if (ex->origin && !ex->route && ex->status == 204) {
        add_header(r, "Access-Control-Allow-Methods", ex->allow);
        add_header(r, "Access-Control-Allow-Headers",
                   "Authorization, Content-Type, X-Api-Key, X-Request-Id");
        add_header(r, "Access-Control-Max-Age", "600");
    }
    if (ex->origin) {
        add_header(r, "Access-Control-Allow-Origin", ex->origin);
        add_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
        add_header(r, "Vary", "Origin");
    }
    if (ex->status == 401)
        add_header(r, "WWW-Authenticate", "Bearer");
    if (ex->error.retry_seconds > 0)
        snprintf(seconds, sizeof seconds, "%d", ex->error.retry_seconds);
    add_header(r, "Retry-After", seconds);
    if (ex->error.close || drain_begun(ex->server))
        add_header(r, "Connection", "close");
}

static void answer_with(struct exchange *ex, int status, struct MHD_Response *r)
{
    if (r) {
        MHD_queue_response(ex->mhd, (unsigned)status, r);
        MHD_destroy_response(r);
    } else {
        ex->gone = true; /* no memory for an answer: the handler ends the connection */
    }
    exchange_resume(ex);
}

void exchange_answer(struct exchange *ex, int status, const char *type, struct strbuf *body)
{
    size_t bytes = body->len;
    char *text = strbuf_take(body);
    if (ex->answered || !ex->mhd) {
        free(text);
        return;
    }
    ex->answered = true;
    ex->status = text ? status : 500;
    ex->bytes_out = text ? bytes : 0;
    struct MHD_Response *r = MHD_create_response_from_buffer(
        text ? bytes : 0, text ? text : "", text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (r)
        add_headers(ex, r, type);
    else
        free(text);
    answer_with(ex, ex->status, r);
}

void exchange_answer_json(struct exchange *ex, int status, struct strbuf *body)
{
    exchange_answer(ex, status, "application/json", body);
}

void exchange_answer_fixed(struct exchange *ex, int status, const void *data, size_t bytes,
                           const struct header *more)
{
    if (ex->answered || !ex->mhd)
        return;
    ex->answered = true;
    ex->status = status;
    ex->bytes_out = bytes;
    struct MHD_Response *r = MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)data,
                                                             MHD_RESPMEM_PERSISTENT);
    if (r)
        add_headers(ex, r, NULL);
    for (; r && more->name; more++)
        add_header(r, more->name, more->value);
    answer_with(ex, status, r);
}

void exchange_refuse(struct exchange *ex)
{
    struct strbuf body = {0};
    api_error_write(&ex->error, &body);
    exchange_answer_json(ex, ex->error.status, &body);
}

void exchange_stream(struct exchange *ex, const char *type, MHD_ContentReaderCallback read)
{
    if (ex->answered || !ex->mhd)
        return;
    ex->answered = true;
    ex->status = 200;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read, ex,
                                                               NULL);
    if (r) {
        add_headers(ex, r, type);
        add_header(r, "Cache-Control", "no-cache");
        add_header(r, "X-Accel-Buffering", "no");
    }
    answer_with(ex, 200, r);
}

/* ---- work in the pool ---- */

static void on_work(uv_work_t *work)
{
    struct exchange *ex = work->data;
    ex->work_run(ex);
}

static void on_worked(uv_work_t *work, int status)
{
    struct exchange *ex = work->data;
    struct server *s = ex->server;
    (void)status;
    s->n_working--;
    room_leave(ex);
    if (ex->mhd && !ex->gone)
        ex->work_done(ex);
    exchange_unref(ex);
    httpd_pump(s);
    drain_check(s);
}

void exchange_work(struct exchange *ex, void (*run)(struct exchange *ex),
                   void (*done)(struct exchange *ex))
{
    ex->work_run = run;
    ex->work_done = done;
    ex->work.data = ex;
    ex->references++;
    ex->server->n_working++;
    uv_queue_work(&ex->server->loop, &ex->work, on_work, on_worked);
}

/* What a body costs until its request is made: the values of its JSON, and copies of its text as
 * the template and the tokenizer see it. */
#define COPIES 6

static void work_body(struct exchange *ex)
{
    size_t bytes = json_in_weight(ex->body.data, ex->body.len) + COPIES * ex->body.len;
    bool tools = ex->body.len && memmem(ex->body.data, ex->body.len, "\"arguments\"", 11);
    if (tools) /* their arguments are JSON in a string */
        bytes += json_in_weight_inside(ex->body.data, ex->body.len);
    if (ex->route->flags & ROUTE_PROMPT)
        completions_weigh(ex);
    if (!ex->error.status && room_enter(ex, bytes))
        ex->route->work(ex);
}

/* ---- life ---- */

void exchange_unref(struct exchange *ex)
{
    if (--ex->references > 0)
        return;
    room_leave(ex);
    generation_destroy(ex->made);
    strbuf_finish(&ex->body);
    strbuf_finish(&ex->reply);
    free(ex->path);
    free(ex->origin);
    free(ex);
}

static const char *known_method(const char *method)
{
    static const char *const methods[] = {"GET", "HEAD",   "POST", "OPTIONS",
                                          "PUT", "DELETE", "PATCH"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(method, methods[i]) == 0)
            return methods[i];
    return "other";
}

/* A caller's own id is kept when it is short and plain. */
static void take_id(struct exchange *ex)
{
    const char *given = exchange_header(ex, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    bool plain = n > 0 && n < sizeof ex->id;
    for (size_t i = 0; plain && i < n; i++)
        plain = given[i] > ' ' && given[i] < 127;
    if (plain)
        memcpy(ex->id, given, n + 1);
    else
        front_random_hex(ex->id, 32);
}

static struct exchange *exchange_create(struct server *s, struct MHD_Connection *mhd,
                                        const char *url, const char *method)
{
    struct conn *c =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    struct exchange *ex = c ? calloc(1, sizeof *ex) : NULL;
    char *path = ex ? strdup(url) : NULL;
    if (!path) {
        free(ex);
        return NULL;
    }
    *ex = (struct exchange){.server = s, .conn = c, .mhd = mhd, .references = 1, .path = path};
    ex->method = known_method(method);
    ex->head = strcmp(method, "HEAD") == 0;
    ex->began = front_now_ns();
    ex->next = s->exchanges;
    ex->link = &s->exchanges;
    if (ex->next)
        ex->next->link = &ex->next;
    s->exchanges = ex;
    c->exchange = ex;
    conn_await(c, s->config->body_seconds);
    take_id(ex);
    return ex;
}

static enum MHD_Result exchange_begin(struct server *s, struct MHD_Connection *mhd, const char *url,
                                      const char *method, const char *version, void **state)
{
    struct exchange *ex = exchange_create(s, mhd, url, method);
    if (!ex)
        return MHD_NO;
    *state = ex;
    if (guard_check(ex, method, version)) {
        ex->error.close = true;
        exchange_refuse(ex);
    }
    return ex->gone ? MHD_NO : MHD_YES;
}

static enum MHD_Result exchange_body(struct exchange *ex, const char *data, size_t *bytes)
{
    const struct server_config *c = ex->server->config;
    ex->body_seen += *bytes;
    ex->conn->deadline += (int64_t)*bytes * 1000 / 32768;
    if (ex->body_seen > c->body_bytes) {
        api_refuse(&ex->error, 413, "request_too_large", NULL,
                   "the body has more than %zu bytes, the most that is accepted", c->body_bytes);
        if (ex->body_seen / SWALLOW > c->body_bytes)
            return MHD_NO;
    }
    size_t more = *bytes + ex->body.cap; /* it may have to grow to twice its size */
    if (!ex->error.status && !room_for(ex->server, more))
        room_refuse(ex->server, more, &ex->error);
    if (!ex->error.status)
        strbuf_add(&ex->body, data, *bytes);
    else
        strbuf_finish(&ex->body);
    if (ex->body.failed)
        api_no_memory(&ex->error);
    *bytes = 0;
    return MHD_YES;
}

static void work_finished(struct exchange *ex)
{
    if (ex->error.status)
        exchange_refuse(ex);
    else if (ex->route->answer)
        ex->route->answer(ex);
}

static void dispatch(struct exchange *ex)
{
    const struct route *r = ex->route;
    ex->conn->deadline = 0;
    ex->dispatched = true;
    ex->server->n_dispatched++;
    bool generates = r && (r->flags & ROUTE_GENERATES);
    if (generates && ex->conn->left) {
        ex->gone = true;
        return;
    }
    if (!ex->error.status && generates)
        generation_admit(ex);
    if (ex->error.status) {
        exchange_refuse(ex);
    } else if (!r) {
        route_preflight(ex);
    } else if (r->work) {
        exchange_suspend(ex);
        exchange_work(ex, work_body, work_finished);
    } else {
        r->answer(ex);
    }
}

enum MHD_Result exchange_handler(void *cls, struct MHD_Connection *mhd, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_bytes, void **state)
{
    struct exchange *ex = *state;
    if (!ex)
        return exchange_begin(cls, mhd, url, method, version, state);
    if (ex->gone)
        return MHD_NO;
    if (*upload_bytes)
        return exchange_body(ex, upload, upload_bytes);
    if (!ex->dispatched && !ex->answered)
        dispatch(ex);
    return ex->gone && !ex->suspended ? MHD_NO : MHD_YES;
}

void exchange_completed(void *cls, struct MHD_Connection *mhd, void **state,
                        enum MHD_RequestTerminationCode code)
{
    struct exchange *ex = *state;
    struct server *s = cls;
    (void)mhd;
    (void)code;
    if (!ex)
        return;
    *state = NULL;
    generation_detach(ex);
    metrics_exchange(&s->metrics, ex);
    access_log(ex);
    *ex->link = ex->next;
    if (ex->next)
        ex->next->link = ex->link;
    s->n_dispatched -= ex->dispatched;
    ex->conn->exchange = NULL;
    conn_await(ex->conn, s->config->idle_seconds);
    ex->conn = NULL;
    ex->mhd = NULL;
    exchange_unref(ex);
    s->pump_rerun = true;
}
