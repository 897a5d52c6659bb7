#include "commands.h"
#include "http_client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* `ropewalk health`: asks a running server's /health, for containers that have no curl. */

#define SECONDS 5

/* A server that listens on all addresses is asked on this machine's own. */
static const char *reachable(const char *host)
{
    if (!strcmp(host, "0.0.0.0"))
        return "127.0.0.1";
    return strcmp(host, "::") ? host : "::1";
}

/* The status of the answer, or -1. Its first line is all that is waited for. */
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
    struct http_address a = {.unix_path = s->unix_socket, .port = s->port};
    snprintf(a.host, sizeof a.host, "%s", reachable(s->host));
    int fd = http_connect(&a, SECONDS);
    if (fd < 0) {
        if (s->unix_socket)
            fprintf(stderr, "ropewalk: nobody answers on %s: %s\n", s->unix_socket,
                    strerror(errno));
        else
            fprintf(stderr, "ropewalk: nobody answers on %s port %d: %s\n", a.host, s->port,
                    strerror(errno));
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
