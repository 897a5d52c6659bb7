#ifndef SERVER_HTTP_CLIENT_H
#define SERVER_HTTP_CLIENT_H

#include "err.h"
#include "strbuf.h"

#include <stdbool.h>

/* As much of an HTTP client as asking a server on this or the next machine takes: one request a
 * connection, no encryption, no redirections. Blocking; any thread. */

struct http_address {
    const char *unix_path; /* not NULL: a unix socket; not owned */
    char host[256];
    int port;
    char prefix[128]; /* of every path: "" or "/something" */
};

/* http://HOST[:PORT][/PREFIX] or HOST:PORT, HOST a name, an IPv4 address or [IPv6]. A prefix that
 * ends with /v1 loses it, so that what people call the base URL is taken, too. */
int http_address_parse(const char *text, struct http_address *out, struct err *err);

/* A socket whose every call takes that long at most; -1 with errno. */
int http_connect(const struct http_address *a, int seconds);

struct http_answer {
    int status;
    const char *body; /* inside of the bytes parsed */
    size_t bytes;
};

/* Takes a whole answer apart, in place: chunks are put together. ERR_FORMAT for what is none or
 * has been cut. */
int http_answer_parse(char *bytes, size_t n, struct http_answer *out, struct err *err);

/* body NULL: GET, else POST of JSON. `raw` holds the answer until the caller finishes it. */
struct http_request {
    const char *path, *body;
    int seconds; /* without a byte */
};
int http_ask(const struct http_address *a, const struct http_request *q, struct strbuf *raw,
             struct http_answer *out, struct err *err);

#endif
