#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "front.h"

enum {
    ROUTE_PUBLIC = 1,    /* needs no key */
    ROUTE_METRICS = 2,   /* needs no key with open_metrics */
    ROUTE_PREFIX = 4,    /* the path goes on after `path` */
    ROUTE_GENERATES = 8, /* counts in admission; refused while draining */
    ROUTE_PROBE = 16,    /* answered while draining */
    ROUTE_PAGE = 32,     /* not there without the page */
    ROUTE_PROMPT = 64,   /* its prompt may be token ids: counted before the body is parsed */
};

/* One endpoint. `work` runs in the work pool on the complete body and may set ex->error; then
 * `answer` runs on the loop. Either may be NULL. */
struct route {
    const char *method; /* "GET" serves HEAD, too */
    const char *path;
    unsigned flags;
    void (*work)(struct exchange *ex);
    void (*answer)(struct exchange *ex);
};

/* Answers OPTIONS: what a path can do, and a browser's question before it asks. */
void route_preflight(struct exchange *ex);

extern const struct route routes[];
extern const int routes_count;

/* The route of this method and path that has none of the flags `without`, or NULL with the methods
 * that the path has in *allow ("GET, HEAD, OPTIONS"; empty: no such path). */
const struct route *route_find(const char *method, const char *path, unsigned without, char *allow,
                               size_t allow_bytes);

#endif
