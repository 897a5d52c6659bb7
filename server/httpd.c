#include "front.h"

#include "log.h"

#include <string.h>

/* libmicrohttpd in external epoll mode: its epoll descriptor is watched by the loop, and the loop
 * thread makes every call. Nothing tells us of a pending resume, one run calls the content reader
 * and the next one sends, and client sockets are edge-triggered, so that unread input shows only as
 * a timeout of 0: hence the pump. */

#define PUMP_RUNS 4

static void on_again(uv_idle_t *handle);
static void on_timer(uv_timer_t *handle);

static void pump(struct server *s)
{
    MHD_UNSIGNED_LONG_LONG wait = 0;
    enum MHD_Result timed = MHD_NO;
    bool again = true;
    if (!s->daemon)
        return;
    for (int i = 0; again && i < PUMP_RUNS; i++) {
        s->pump_rerun = false;
        s->pump_wanted = false;
        MHD_run(s->daemon);
        timed = MHD_get_timeout(s->daemon, &wait);
        again = s->pump_rerun || s->pump_wanted || (timed == MHD_YES && wait == 0);
    }
    if (again) /* let others have a turn, then go on */
        uv_idle_start(&s->pump_again, on_again);
    else
        uv_idle_stop(&s->pump_again);
    if (!again && timed == MHD_YES)
        uv_timer_start(&s->pump_timer, on_timer, wait, 0);
    else
        uv_timer_stop(&s->pump_timer);
    drain_check(s);
}

static void on_again(uv_idle_t *handle)
{
    pump(handle->data);
}

static void on_timer(uv_timer_t *handle)
{
    pump(handle->data);
}

static void on_readable(uv_poll_t *handle, int status, int events)
{
    (void)status;
    (void)events;
    pump(handle->data);
}

void httpd_wake(struct server *s)
{
    s->pump_wanted = true;
}

void httpd_pump(struct server *s)
{
    if (s->pump_wanted)
        pump(s);
}

/* Paths are matched as they come, so that %00 cannot cut one short. */
static size_t keep_escapes(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text);
}

static void on_message(void *cls, const char *format, va_list args)
{
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\r\n")] = '\0';
    log_debug("http: %s", line);
}

static int daemon_start(struct server *s, struct err *err)
{
    const struct server_config *c = s->config;
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls_certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     MHD_USE_NO_LISTEN_SOCKET | (s->tls_key ? MHD_USE_TLS : 0u);
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, exchange_handler, s, MHD_OPTION_EXTERNAL_LOGGER, on_message, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->most_connections + 8,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, c->header_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(c->idle_seconds < 1 ? 1 : c->idle_seconds), MHD_OPTION_NOTIFY_COMPLETED,
        exchange_completed, s, MHD_OPTION_NOTIFY_CONNECTION, conn_notify, s,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY, s->tls_key ? tls : tls + 2,
        MHD_OPTION_END);
    if (!s->daemon)
        return err_set(err, ERR_IO, "libmicrohttpd did not start%s",
                       s->tls_key ? ": are the certificate and its key good?" : "");
    return 0;
}

int httpd_start(struct server *s, struct err *err)
{
    if (daemon_start(s, err))
        return err->code;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || uv_poll_init(&s->loop, &s->mhd_poll, info->epoll_fd))
        return err_set(err, ERR_IO, "libmicrohttpd's epoll descriptor cannot be watched");
    s->mhd_poll.data = s;
    uv_poll_start(&s->mhd_poll, UV_READABLE, on_readable);
    return 0;
}

void httpd_stop(struct server *s)
{
    if (!s->daemon)
        return;
    front_close((uv_handle_t *)&s->mhd_poll);
    uv_idle_stop(&s->pump_again);
    uv_timer_stop(&s->pump_timer);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
