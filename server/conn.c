#include "front.h"

#include "generation.h"
#include "log.h"
#include "routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

void conn_address_text(const struct sockaddr *address, char *out, size_t bytes)
{
    const void *bits = NULL;
    int family = address->sa_family;
    if (family == AF_INET) {
        bits = &((const struct sockaddr_in *)address)->sin_addr;
    } else if (family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
        bits = six;
        if (IN6_IS_ADDR_V4MAPPED(six)) {
            bits = six->s6_addr + 12;
            family = AF_INET;
        }
    }
    if (!bits || !inet_ntop(family, bits, out, (socklen_t)bytes))
        snprintf(out, bytes, "unix");
}

/* How long a client that has closed its side may take to have its request understood. */
#define LEFT_MS 500

static void watch(struct conn *c, int operation)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    epoll_ctl(c->server->gone_epoll, operation, c->fd, &event);
}

static void conn_begin(struct server *s, struct MHD_Connection *mhd, void **context)
{
    struct conn *c = calloc(1, sizeof *c);
    *context = c;
    if (!c)
        return; /* its requests are refused */
    c->server = s;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    conn_await(c, s->config->header_seconds);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info && info->client_addr)
        conn_address_text(info->client_addr, c->address, sizeof c->address);
    c->next = s->conns;
    c->link = &s->conns;
    if (c->next)
        c->next->link = &c->next;
    s->conns = c;
    s->n_conns++;
    watch(c, EPOLL_CTL_ADD);
}

void conn_notify(void *cls, struct MHD_Connection *mhd, void **context,
                 enum MHD_ConnectionNotificationCode code)
{
    struct server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        conn_begin(s, mhd, context);
        return;
    }
    s->pump_rerun = true;
    struct conn *c = *context;
    if (!c)
        return;
    watch(c, EPOLL_CTL_DEL);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    s->n_conns--;
    free(c);
    *context = NULL;
}

void conn_await(struct conn *c, double seconds)
{
    c->deadline = front_now_ms() + (c->left ? LEFT_MS : (int64_t)(seconds * 1000));
}

void conn_kill(struct conn *c)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    shutdown(c->fd, SHUT_RDWR);
    c->deadline = 0;
}

void conn_sweep(struct server *s, int64_t now_ms)
{
    for (struct conn *c = s->conns; c; c = c->next) {
        if (!c->deadline || now_ms < c->deadline)
            continue;
        log_debug("http: %s took too long to send a request", c->address);
        c->deadline = 0;
        shutdown(c->fd, SHUT_RDWR);
    }
}

int conn_count_address(const struct server *s, const char *address)
{
    int n = 0;
    for (const struct conn *c = s->conns; c; c = c->next)
        n += strcmp(c->address, address) == 0;
    return n;
}

/* ---- clients that leave ---- */

/* libmicrohttpd does not look at suspended connections, nor at what follows a request that it has
 * read half, so every socket is watched here for the other side's closing. A client that closes
 * only its sending side counts as gone, too, once it waits for a generation. */
static void conn_left(struct conn *c)
{
    struct exchange *ex = c->exchange;
    c->left = true;
    if (ex && ex->dispatched) {
        if (ex->route && (ex->route->flags & ROUTE_GENERATES))
            generation_gone(ex);
        return;
    }
    int64_t soon = front_now_ms() + LEFT_MS; /* the rest of a request may still be on its way */
    if (!c->deadline || soon < c->deadline)
        c->deadline = soon;
}

/* No connection is freed while a batch of events is handled: that happens in the pump after it. */
static void on_gone(uv_poll_t *handle, int status, int poll_events)
{
    (void)status;
    (void)poll_events;
    struct server *s = handle->data;
    struct epoll_event events[64];
    int n;
    do {
        n = epoll_wait(s->gone_epoll, events, 64, 0);
        for (int i = 0; i < n; i++)
            conn_left(events[i].data.ptr);
    } while (n == 64);
    httpd_pump(s);
}

int conn_watch_start(struct server *s, struct err *err)
{
    s->gone_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (s->gone_epoll < 0 || uv_poll_init(&s->loop, &s->gone_poll, s->gone_epoll))
        return err_set(err, ERR_IO, "an epoll descriptor could not be had: %s", strerror(errno));
    s->gone_poll.data = s;
    uv_poll_start(&s->gone_poll, UV_READABLE, on_gone);
    return 0;
}

void conn_watch_stop(struct server *s)
{
    front_close((uv_handle_t *)&s->gone_poll);
    if (s->gone_epoll >= 0)
        close(s->gone_epoll);
    s->gone_epoll = -1;
}
