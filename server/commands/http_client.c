#include "http_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- where ---- */

static int address_refuse(const char *text, struct err *err)
{
    return err_set(err, ERR_ARG,
                   "\"%s\" is not the address of a server; expected is http://HOST:PORT", text);
}

/* HOST[:PORT] of n bytes. */
static bool host_parse(const char *s, size_t n, struct http_address *out)
{
    bool brackets = n && *s == '[';
    const char *end = s + n;
    const char *host_end = memchr(s, brackets ? ']' : ':', n);
    const char *rest = host_end ? host_end + brackets : end;
    if ((brackets && !host_end) || (rest != end && *rest != ':'))
        return false;
    s += brackets;
    size_t bytes = (size_t)((host_end ? host_end : end) - s);
    if (bytes == 0 || bytes >= sizeof out->host)
        return false;
    memcpy(out->host, s, bytes);
    out->host[bytes] = '\0';
    if (rest == end)
        return true;
    char *stop;
    long port = strtol(rest + 1, &stop, 10);
    out->port = (int)port;
    return stop == end && stop > rest + 1 && port > 0 && port < 65536;
}

int http_address_parse(const char *text, struct http_address *out, struct err *err)
{
    static const char scheme[] = "http://";
    *out = (struct http_address){.port = 80};
    if (!strncasecmp(text, "https://", 8))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: there is no encryption here; give the http:// address", text);
    const char *s = text;
    if (!strncasecmp(s, scheme, sizeof scheme - 1))
        s += sizeof scheme - 1;
    else if (strstr(s, "://"))
        return address_refuse(text, err);
    size_t n = strcspn(s, "/"), prefix = strlen(s + n);
    if (!host_parse(s, n, out) || strpbrk(s, " \r\n?#@"))
        return address_refuse(text, err);
    while (prefix && s[n + prefix - 1] == '/')
        prefix--;
    if (prefix >= 3 && !strncmp(s + n + prefix - 3, "/v1", 3))
        prefix -= 3;
    if (prefix >= sizeof out->prefix)
        return address_refuse(text, err);
    memcpy(out->prefix, s + n, prefix);
    return 0;
}

/* ---- there ---- */

static void set_deadline(int fd, int seconds)
{
    const struct timeval limit = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int connect_unix(const char *path, int seconds)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    set_deadline(fd, seconds);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int connect_tcp(const struct http_address *address, int seconds)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[8];
    int fd = -1, why = EHOSTUNREACH, one = 1;
    snprintf(service, sizeof service, "%d", address->port);
    if (getaddrinfo(address->host, service, &hints, &list) == 0) {
        for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
            fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
            if (fd < 0)
                continue;
            set_deadline(fd, seconds);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            if (connect(fd, a->ai_addr, a->ai_addrlen)) {
                why = errno;
                close(fd);
                fd = -1;
            }
        }
        freeaddrinfo(list);
    }
    errno = why;
    return fd;
}

int http_connect(const struct http_address *a, int seconds)
{
    return a->unix_path ? connect_unix(a->unix_path, seconds) : connect_tcp(a, seconds);
}

/* ---- the answer ---- */

static int answer_cut(struct err *err)
{
    return err_set(err, ERR_FORMAT, "the answer ended before it was complete");
}

/* The value of a header field, or NULL. `head` ends with an empty line. */
static const char *field(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = strchr(head, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (!strncasecmp(line, name, n) && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " \t");
    }
    return NULL;
}

/* Chunks of [from, end) become one piece that begins at `from`. */
static int join_chunks(char *from, char *end, size_t *bytes, struct err *err)
{
    char *to = from, *at = from;
    for (;;) {
        char *stop;
        unsigned long n = strtoul(at, &stop, 16);
        char *line = memchr(at, '\n', (size_t)(end - at));
        if (stop == at || !line || stop > line)
            return answer_cut(err);
        at = line + 1;
        if (n == 0)
            break;
        if (n > (size_t)(end - at) || (size_t)(end - at) - n < 2)
            return answer_cut(err);
        memmove(to, at, n);
        to += n;
        at += n + 2;
    }
    *bytes = (size_t)(to - from);
    return 0;
}

int http_answer_parse(char *bytes, size_t n, struct http_answer *out, struct err *err)
{
    char *end = bytes + n; /* a zero byte stands there */
    char *head_end = n ? strstr(bytes, "\r\n\r\n") : NULL;
    if (!head_end || sscanf(bytes, "HTTP/1.%*d %d", &out->status) != 1)
        return err_set(err, ERR_FORMAT, "what came back is not HTTP");
    char *body = head_end + 4;
    out->body = body;
    out->bytes = (size_t)(end - body);
    *head_end = '\0';
    const char *coding = field(bytes, "Transfer-Encoding");
    const char *length = field(bytes, "Content-Length");
    if (coding && !strncasecmp(coding, "chunked", 7))
        return join_chunks(body, end, &out->bytes, err);
    if (!length)
        return 0;
    size_t said = strtoul(length, NULL, 10);
    if (said > out->bytes)
        return answer_cut(err);
    out->bytes = said;
    return 0;
}

/* ---- asking ---- */

static int send_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        bytes += sent;
        n -= (size_t)sent;
    }
    return 0;
}

/* Until the server closes. */
static int receive_all(int fd, struct strbuf *raw)
{
    for (;;) {
        char piece[16384];
        ssize_t got = recv(fd, piece, sizeof piece, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return (int)got;
        strbuf_add(raw, piece, (size_t)got);
    }
}

static void write_request(const struct http_address *a, const struct http_request *q,
                          struct strbuf *out)
{
    bool v6 = strchr(a->host, ':');
    strbuf_addf(out, "%s %s%s HTTP/1.1\r\nHost: ", q->body ? "POST" : "GET", a->prefix, q->path);
    if (a->unix_path)
        strbuf_adds(out, "localhost");
    else
        strbuf_addf(out, "%s%s%s:%d", v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
    strbuf_adds(out, "\r\nConnection: close\r\n");
    if (q->body)
        strbuf_addf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                    strlen(q->body));
    strbuf_adds(out, "\r\n");
    if (q->body)
        strbuf_adds(out, q->body);
}

int http_ask(const struct http_address *a, const struct http_request *q, struct strbuf *raw,
             struct http_answer *out, struct err *err)
{
    struct strbuf request = {0};
    int fd = http_connect(a, q->seconds), rc = 0;
    if (fd < 0)
        return err_set(err, ERR_IO, "nobody answers: %s", strerror(errno));
    write_request(a, q, &request);
    if (request.failed)
        rc = err_set(err, ERR_NOMEM, "no memory for a request");
    else if (send_all(fd, request.data, request.len) || receive_all(fd, raw))
        rc = err_set(err, ERR_IO, "the connection broke: %s", strerror(errno));
    else if (raw->failed)
        rc = err_set(err, ERR_NOMEM, "no memory for an answer");
    else
        rc = http_answer_parse(raw->data, raw->len, out, err);
    close(fd);
    strbuf_finish(&request);
    return rc;
}
