#define _GNU_SOURCE /* accept4 */
#include "front.h"

#include "log.h"
#include "room.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Listening sockets of every kind end up as descriptors in one list. Clients are accepted here and
 * handed over, since libmicrohttpd takes only a few at a time. */

#define BACKLOG        1024
#define ACCEPTS_A_TURN 64
#define INHERITED_FD   3 /* systemd's first */

/* ---- opening ---- */

static void set_option(int fd, int level, int option, int value)
{
    setsockopt(fd, level, option, &value, sizeof value);
}

static int add(struct server *s, int fd, bool is_unix, struct err *err)
{
    if (s->n_listeners == FRONT_LISTENERS) {
        close(fd);
        return err_set(err, ERR_LIMIT, "more than %d listening sockets", FRONT_LISTENERS);
    }
    /* Set here, not when a client has come: the window is agreed on before. */
    if (s->config->receive_buffer_bytes)
        set_option(fd, SOL_SOCKET, SO_RCVBUF, (int)s->config->receive_buffer_bytes);
    s->listeners[s->n_listeners++] = (struct listener){.fd = fd, .is_unix = is_unix};
    return 0;
}

static int port_of(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n))
        return 0;
    if (a.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return a.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&a)->sin_port) : 0;
}

static int bind_socket(int family, const struct sockaddr *address, socklen_t bytes)
{
    const int on = 1, off = 0;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

/* The first address of the name that works: "::" serves IPv4, too, and where there is no IPv6 the
 * next one is 0.0.0.0. */
static int open_tcp(struct server *s, struct err *err)
{
    const char *host = s->config->host;
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", s->config->port);
    int failed = getaddrinfo(host, port, &hints, &list);
    if (failed)
        return err_set(err, ERR_ARG, "the address '%s' to serve at is not known: %s", host,
                       gai_strerror(failed));
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = bind_socket(a->ai_family, a->ai_addr, a->ai_addrlen);
    int reason = errno;
    freeaddrinfo(list);
    if (fd < 0 && strcmp(host, "::") == 0) {
        struct sockaddr_in any = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)s->config->port)};
        fd = bind_socket(AF_INET, (const struct sockaddr *)&any, sizeof any);
    }
    if (fd < 0)
        return err_set(err, ERR_IO, "port %d of '%s' cannot be served: %s", s->config->port, host,
                       strerror(reason));
    s->port = port_of(fd);
    return add(s, fd, false, err);
}

/* A socket file that nobody listens at any more is in the way of the next run. */
static void remove_stale(const struct sockaddr_un *address)
{
    struct stat info;
    if (stat(address->sun_path, &info) || !S_ISSOCK(info.st_mode))
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) && errno == ECONNREFUSED)
        unlink(address->sun_path);
    close(fd);
}

static int open_unix(struct server *s, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = s->config->unix_path;
    if (strlen(path) >= sizeof address.sun_path)
        return err_set(err, ERR_ARG, "the socket path '%s' is longer than %zu bytes", path,
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    remove_stale(&address);
    int fd = bind_socket(AF_UNIX, (const struct sockaddr *)&address, sizeof address);
    if (fd < 0)
        return err_set(err, ERR_IO, "the socket '%s' cannot be served: %s", path, strerror(errno));
    s->unix_bound = true;
    return add(s, fd, true, err);
}

static int open_inherited(struct server *s, struct err *err)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    int n = count ? atoi(count) : 0;
    if (!pid || atol(pid) != (long)getpid() || n <= 0)
        return 0;
    for (int fd = INHERITED_FD; fd < INHERITED_FD + n; fd++) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        int port = port_of(fd);
        s->port = s->port ? s->port : port;
        if (add(s, fd, port == 0, err))
            return err->code;
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    return 0;
}

int listen_open(struct server *s, struct err *err)
{
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->config->inherited && open_inherited(s, err))
        return err->code;
    if (s->n_listeners) /* whoever opened them has chosen the addresses */
        return 0;
    if (s->config->host && open_tcp(s, err))
        return err->code;
    if (s->config->unix_path && open_unix(s, err))
        return err->code;
    if (s->n_listeners == 0)
        return err_set(err, ERR_ARG, "there is no address to serve at");
    return 0;
}

/* ---- accepting ---- */

/* Closing a socket on which data still comes resets it, and the client may lose the answer: the
 * last few stay half open for a moment. */
static void linger(struct server *s, int fd)
{
    int *slot = &s->refused[s->n_refused++ % FRONT_REFUSED];
    if (*slot >= 0)
        close(*slot);
    *slot = fd;
}

void listen_sweep(struct server *s)
{
    for (int i = 0; i < FRONT_REFUSED; i++) {
        if (s->refused[i] >= 0)
            close(s->refused[i]);
        s->refused[i] = -1;
    }
}

static void refuse_client(struct server *s, int fd)
{
    static const char body[] = "{\"error\":{\"message\":\"too many connections\","
                               "\"type\":\"overloaded_error\",\"param\":null,"
                               "\"code\":\"too_many_connections\"}}";
    char text[400], dropped[4096];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s",
                     sizeof body - 1, body);
    /* What has come is read, or closing would reset the connection before the answer is. */
    while (recv(fd, dropped, sizeof dropped, MSG_DONTWAIT) > 0)
        ;
    ssize_t ignored = send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
    shutdown(fd, SHUT_WR);
    linger(s, fd);
}

static void set_options(const struct server *s, int fd, bool is_unix)
{
    const struct server_config *c = s->config;
    if (c->send_buffer_bytes)
        set_option(fd, SOL_SOCKET, SO_SNDBUF, (int)c->send_buffer_bytes);
    if (is_unix)
        return;
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(c->vanish_seconds * 1000));
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

static bool has_room(const struct server *s, const struct sockaddr *address)
{
    char text[FRONT_ADDRESS_BYTES];
    if (s->n_conns >= s->config->most_connections || !room_for(s, 2 * s->config->header_bytes))
        return false;
    if (!s->config->most_per_address || address->sa_family == AF_UNIX)
        return true;
    conn_address_text(address, text, sizeof text);
    return conn_count_address(s, text) < s->config->most_per_address;
}

static void take_client(struct server *s, int fd, const struct sockaddr *address, socklen_t bytes,
                        bool is_unix)
{
    if (!has_room(s, address)) {
        refuse_client(s, fd);
        return;
    }
    set_options(s, fd, is_unix);
    if (MHD_add_connection(s->daemon, fd, address, bytes) != MHD_YES)
        log_debug("http: a connection could not be taken"); /* it has closed fd */
    httpd_wake(s);
}

/* Out of descriptors: the spare one makes room to tell one client, instead of spinning. */
static bool refuse_with_spare(struct server *s, int listener)
{
    if (s->spare_fd < 0)
        return false;
    close(s->spare_fd);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0)
        refuse_client(s, fd);
    listen_sweep(s); /* no descriptor may stay */
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

static bool accept_one(struct server *s, const struct listener *l)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    int fd = accept4(l->fd, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        take_client(s, fd, (const struct sockaddr *)&address, bytes, l->is_unix);
        return true;
    }
    if (errno == EMFILE || errno == ENFILE)
        return refuse_with_spare(s, l->fd);
    return errno == ECONNABORTED || errno == EINTR;
}

static void on_client(uv_poll_t *handle, int status, int events)
{
    struct server *s = handle->data;
    const struct listener *l = (const struct listener *)handle; /* its first member */
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN && accept_one(s, l); i++)
        ;
    httpd_pump(s);
}

int listen_start(struct server *s, struct err *err)
{
    for (int i = 0; i < s->n_listeners; i++) {
        struct listener *l = &s->listeners[i];
        if (uv_poll_init(&s->loop, &l->poll, l->fd))
            return err_set(err, ERR_IO, "a listening socket cannot be watched");
        l->poll.data = s;
        uv_poll_start(&l->poll, UV_READABLE, on_client);
    }
    return 0;
}

void listen_stop(struct server *s)
{
    for (int i = 0; i < s->n_listeners; i++)
        front_close((uv_handle_t *)&s->listeners[i].poll);
}

void listen_close(struct server *s)
{
    listen_sweep(s);
    for (int i = 0; i < s->n_listeners; i++)
        close(s->listeners[i].fd);
    if (s->unix_bound)
        unlink(s->config->unix_path);
    s->unix_bound = false;
    if (s->spare_fd >= 0)
        close(s->spare_fd);
    s->spare_fd = -1;
    s->n_listeners = 0;
}
