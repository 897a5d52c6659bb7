#include "commands.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* `ropewalk health`: asks a running server's /health, for containers that have no curl. */

#define SECONDS 5

static void set_deadline(int fd)
{
    const struct timeval limit = {.tv_sec = SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int connect_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return -1;
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    set_deadline(fd);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A server that listens on all addresses is asked on this machine's own. */
static const char *reachable(const char *host)
{
    if (!strcmp(host, "0.0.0.0"))
        return "127.0.0.1";
    return strcmp(host, "::") ? host : "::1";
}

static int connect_tcp(const char *host, int port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[8];
    int fd = -1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(reachable(host), service, &hints, &list))
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0)
            continue;
        set_deadline(fd);
        if (connect(fd, a->ai_addr, a->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* The status of the answer, or -1. */
static int ask(int fd)
{
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char answer[64] = "";
    size_t n = 0;
    int status = -1;
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)sizeof request - 1)
        return -1;
    while (n < 12) {
        ssize_t got = recv(fd, answer + n, sizeof answer - 1 - n, 0);
        if (got <= 0)
            return -1;
        n += (size_t)got;
    }
    return sscanf(answer, "HTTP/1.%*d %d", &status) == 1 ? status : -1;
}

int command_health(const struct settings *s)
{
    int fd = s->unix_socket ? connect_unix(s->unix_socket) : connect_tcp(s->host, s->port);
    if (fd < 0) {
        if (s->unix_socket)
            fprintf(stderr, "ropewalk: nobody answers on %s: %s\n", s->unix_socket,
                    strerror(errno));
        else
            fprintf(stderr, "ropewalk: nobody answers on %s port %d: %s\n", reachable(s->host),
                    s->port, strerror(errno));
        return 1;
    }
    int status = ask(fd);
    close(fd);
    if (status == 200) {
        puts("ok");
        return 0;
    }
    fprintf(stderr, "ropewalk: the server is not well: %s\n",
            status < 0 ? "no answer in time" : "its status is not 200");
    return 1;
}
