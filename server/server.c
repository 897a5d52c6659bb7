#include "server.h"

#include "front.h"
#include "generation.h"
#include "heap.h"
#include "json_in.h"
#include "log.h"
#include "room.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#define SWEEP_MS     250
#define SOCKET_BYTES ((size_t)8 << 10) /* measured, rounded up */
#define SPARE_FILES  64                /* descriptors that are not for clients */

const struct server_config server_config_default = {
    .host = "127.0.0.1",
    .port = 8080,
    .inherited = true,
    .page = true,
    .max_logprobs = 20,
    .most_connections = 4096,
    .most_queued = 1024,
    .most_queued_tokens = 4 << 20,
    .most_choices = 2048,
    .body_bytes = 4 << 20,
    .header_bytes = 16 << 10,
    .send_buffer_bytes = 16 << 10,
    .receive_buffer_bytes = 16 << 10,
    .stream_pending_bytes = 256 << 10,
    .header_seconds = 10,
    .body_seconds = 10,
    .idle_seconds = 60,
    .hold_seconds = 2,
    .ping_seconds = 10,
    .vanish_seconds = 30,
    .drain_seconds = 25,
    .flush_seconds = 1,
};

/* ---- small things that everyone needs ---- */

int64_t front_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t front_now_ms(void)
{
    return front_now_ns() / 1000000;
}

void front_random(void *out, size_t bytes)
{
    /* Up to 256 bytes never come short once the system's source is ready. */
    ssize_t got = getrandom(out, bytes, 0);
    if (got < 0 || (size_t)got != bytes)
        abort();
}

void front_random_hex(char *out, int digits)
{
    static const char hex[] = "0123456789abcdef";
    unsigned char bytes[64];
    front_random(bytes, (size_t)digits);
    for (int i = 0; i < digits; i++)
        out[i] = hex[bytes[i] & 15];
    out[digits] = '\0';
}

const char *front_model_name(const struct server *s)
{
    const struct server_config *c = s->config;
    for (int i = 0; i < c->n_served_names; i++)
        if (strcmp(c->served_names[i], "*"))
            return c->served_names[i];
    return model_plan(c->model)->name;
}

void front_close(uv_handle_t *h)
{
    if (h->loop && !uv_is_closing(h))
        uv_close(h, NULL);
}

size_t server_connection_bytes(const struct server_config *c)
{
    return 2 * (c->send_buffer_bytes + c->receive_buffer_bytes) + SOCKET_BYTES;
}

/* ---- the loop ---- */

static void on_bell(uv_async_t *handle)
{
    struct server *s = handle->data;
    if (s->engine)
        generation_news(s);
    httpd_pump(s);
    drain_check(s);
}

static void on_sweep(uv_timer_t *handle)
{
    struct server *s = handle->data;
    int64_t now = front_now_ms();
    listen_sweep(s);
    if (!s->conns && !drain_begun(s))
        return;
    conn_sweep(s, now);
    generation_sweep(s, now);
    heap_trim();
    drain_check(s);
    httpd_pump(s);
}

void server_notify(void *arg)
{
    struct server *s = arg;
    uv_async_send(&s->bell);
}

int server_port(const struct server *s)
{
    return s->port;
}

/* As many descriptors as the system allows, and no more connections than that. */
static void raise_limits(const struct server *s)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < (rlim_t)s->config->most_connections + SPARE_FILES)
        log_warning("the system allows %llu open files; fewer than the %d connections asked for",
                    (unsigned long long)files.rlim_max, s->config->most_connections);
}

static int loop_init(struct server *s, struct err *err)
{
    if (uv_loop_init(&s->loop))
        return err_set(err, ERR_NOMEM, "the event loop could not be made");
    uv_async_init(&s->loop, &s->bell, on_bell);
    uv_timer_init(&s->loop, &s->pump_timer);
    uv_timer_init(&s->loop, &s->sweep_timer);
    uv_idle_init(&s->loop, &s->pump_again);
    s->bell.data = s->pump_timer.data = s->sweep_timer.data = s->pump_again.data = s;
    return 0;
}

int server_create(const struct server_config *config, struct server **out, struct err *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for the server");
    s->own_config = *config;
    s->config = &s->own_config;
    s->gone_epoll = s->spare_fd = s->access_fd = -1;
    for (int i = 0; i < FRONT_REFUSED; i++)
        s->refused[i] = -1;
    s->tokenizer = model_tokenizer(config->model);
    s->chat_template = model_chat_template(config->model, &s->template_error);
    s->created = (int64_t)time(NULL);
    front_random(s->salt_key, sizeof s->salt_key);
    snprintf(s->fingerprint, sizeof s->fingerprint, "ropewalk-%.30s",
             config->version ? config->version : "0");
    signal(SIGPIPE, SIG_IGN);
    json_in_setup(model_plan(config->model)->context);
    raise_limits(s);
    if (loop_init(s, err) || access_start(s, err) || tls_read(s, err) || listen_open(s, err)) {
        server_destroy(s);
        return err->code;
    }
    *out = s;
    return 0;
}

static void announce(const struct server *s)
{
    char address[160];
    const struct server_config *c = s->config;
    if (c->host)
        snprintf(address, sizeof address, strchr(c->host, ':') ? "[%s]:%d" : "%s:%d", c->host,
                 s->port);
    else
        snprintf(address, sizeof address, "%s", c->unix_path ? c->unix_path : "inherited sockets");
    if (c->ready)
        c->ready(c->ready_arg, address);
}

static void stop(struct server *s)
{
    uv_timer_stop(&s->sweep_timer);
    listen_stop(s);
    httpd_stop(s);
    conn_watch_stop(s);
    drain_stop(s);
}

int server_run(struct server *s, struct engine *engine, struct err *err)
{
    s->engine = engine;
    if (conn_watch_start(s, err) || httpd_start(s, err) || drain_start(s, err) ||
        listen_start(s, err)) {
        stop(s);
        return err->code;
    }
    room_open(s, s->config->room_bytes);
    uv_timer_start(&s->sweep_timer, on_sweep, SWEEP_MS, SWEEP_MS);
    announce(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    stop(s);
    s->engine = NULL;
    return 0;
}

void server_destroy(struct server *s)
{
    if (!s)
        return;
    if (s->bell.loop) {
        front_close((uv_handle_t *)&s->bell);
        front_close((uv_handle_t *)&s->pump_timer);
        front_close((uv_handle_t *)&s->sweep_timer);
        front_close((uv_handle_t *)&s->pump_again);
        while (uv_run(&s->loop, UV_RUN_DEFAULT))
            ;
        uv_loop_close(&s->loop);
    }
    listen_close(s);
    access_stop(s);
    tls_forget(s);
    strbuf_finish(&s->unknown_fields);
    free(s);
}
