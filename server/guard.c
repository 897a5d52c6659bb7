#include "front.h"

#include "routes.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What the headers say that matters here. */
struct seen {
    int hosts, lengths, encodings, origins;
    const char *host, *encoding, *length, *origin;
    bool waits; /* Expect: 100-continue */
};

static enum MHD_Result look(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct seen *seen = cls;
    (void)kind;
    const char *text = value ? value : "";
    if (strcasecmp(key, "Host") == 0) {
        seen->hosts++;
        seen->host = text;
    } else if (strcasecmp(key, "Content-Length") == 0) {
        seen->lengths++;
        seen->length = text;
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        seen->encodings++;
        seen->encoding = text;
    } else if (strcasecmp(key, "Origin") == 0) {
        seen->origins++;
        seen->origin = text;
    } else if (strcasecmp(key, "Expect") == 0) {
        seen->waits = strcasecmp(text, "100-continue") == 0;
    }
    return MHD_YES;
}

/* Two servers that read a message differently can be played against each other: what can be read in
 * two ways is refused, and the connection is closed. */
static int check_framing(struct exchange *ex, const struct seen *seen, const char *version)
{
    struct api_error *e = &ex->error;
    if (strcmp(version, "HTTP/1.1") && strcmp(version, "HTTP/1.0"))
        return api_refuse(e, 505, "http_version", NULL, "HTTP/1.1 and HTTP/1.0 are spoken here");
    if (seen->encodings > 1 || (seen->encoding && strcasecmp(seen->encoding, "chunked")))
        return api_refuse(e, 501, "transfer_encoding", NULL,
                          "the only Transfer-Encoding understood here is chunked");
    if (seen->lengths > 1 || (seen->lengths && seen->encodings))
        return api_refuse(e, 400, "ambiguous_length", NULL,
                          "a request may give its length once: one Content-Length, or chunked");
    if (seen->hosts > 1)
        return api_refuse(e, 400, "duplicate_host", NULL, "a request may have one Host header");
    bool bodyless = strcmp(ex->method, "GET") == 0 || ex->head;
    if (bodyless && (seen->encodings || (seen->length && strtoull(seen->length, NULL, 10))))
        return api_refuse(e, 400, "unexpected_body", NULL, "a %s request may not have a body",
                          ex->method);
    return 0;
}

static int check_browser(struct exchange *ex, const struct seen *seen)
{
    struct server *s = ex->server;
    if (!access_host_ok(s, seen->host))
        return api_refuse(&ex->error, 403, "host_not_allowed", NULL,
                          "this Host name is not one of this server's (see --allowed-hosts)");
    if (!seen->origin)
        return 0;
    if (seen->origins > 1 || !access_origin_ok(s, seen->origin, seen->host))
        return api_refuse(&ex->error, 403, "origin_not_allowed", NULL,
                          "pages of this Origin may not use this server (see --cors-origins)");
    ex->origin = strdup(
        s->config->cors_origins && strcmp(s->config->cors_origins, "*") == 0 ? "*" : seen->origin);
    return ex->origin ? 0 : api_no_memory(&ex->error);
}

static int check_key(struct exchange *ex)
{
    const struct server *s = ex->server;
    unsigned flags = ex->route->flags;
    bool open = (flags & ROUTE_PUBLIC) || ((flags & ROUTE_METRICS) && s->config->open_metrics);
    if (open || access_key_ok(s, ex))
        return 0;
    return api_refuse(&ex->error, 401, "invalid_api_key", NULL,
                      "a valid API key is needed: Authorization: Bearer KEY");
}

static int check_route(struct exchange *ex, const char *method)
{
    unsigned without = ex->server->config->page ? 0 : ROUTE_PAGE;
    ex->route = route_find(method, ex->path, without, ex->allow, sizeof ex->allow);
    if (ex->route)
        return 0;
    bool any = strcmp(ex->path, "*") == 0;
    if (strcmp(method, "OPTIONS") == 0 && (ex->allow[0] || any)) /* see route_preflight */
        return 0;
    if (ex->allow[0])
        return api_refuse(&ex->error, 405, "method_not_allowed", NULL,
                          "this method is not answered here, only %s", ex->allow);
    return api_refuse(&ex->error, 404, "not_found", NULL, "there is nothing at this path");
}

static int check_length(struct exchange *ex, const struct seen *seen)
{
    size_t most = ex->server->config->body_bytes;
    uint64_t length = seen->length ? strtoull(seen->length, NULL, 10) : 0;
    if (length <= most)
        return 0;
    ex->error.close = length / 4 > most; /* too much even to read and drop */
    return api_refuse(&ex->error, 413, "request_too_large", NULL,
                      "the body has %llu bytes, %zu are the most that is accepted",
                      (unsigned long long)length, most);
}

static void check(struct exchange *ex, const struct seen *seen, const char *method,
                  const char *version)
{
    if (check_framing(ex, seen, version)) {
        ex->error.close = true;
        return;
    }
    if (check_browser(ex, seen) || check_route(ex, method))
        return;
    if (ex->route && check_key(ex))
        return;
    check_length(ex, seen);
}

bool guard_check(struct exchange *ex, const char *method, const char *version)
{
    struct seen seen = {0};
    MHD_get_connection_values(ex->mhd, MHD_HEADER_KIND, look, &seen);
    check(ex, &seen, method, version);
    if (!ex->error.status)
        return false;
    return ex->error.close || seen.waits;
}
