#include "routes.h"

#include "api.h"

#include <stdio.h>
#include <string.h>

const struct route routes[] = {
    {"POST", "/v1/completions", ROUTE_GENERATES | ROUTE_PROMPT, completions_work,
     generation_answer},
    {"POST", "/v1/chat/completions", ROUTE_GENERATES, chat_work, generation_answer},
    {"GET", "/v1/models", 0, NULL, models_answer},
    {"GET", "/v1/models/", ROUTE_PREFIX, NULL, model_answer},
    {"POST", "/tokenize", 0, tokenize_work, native_answer},
    {"POST", "/detokenize", 0, detokenize_work, native_answer},
    {"GET", "/health", ROUTE_PUBLIC | ROUTE_PROBE, NULL, health_answer},
    {"GET", "/v1/health", ROUTE_PUBLIC | ROUTE_PROBE, NULL, health_answer},
    {"GET", "/readyz", ROUTE_PUBLIC | ROUTE_PROBE, NULL, ready_answer},
    {"GET", "/debug/kv", 0, debug_kv_work, native_answer},
    {"GET", "/metrics", ROUTE_METRICS | ROUTE_PROBE, NULL, metrics_answer},
    {"GET", "/", ROUTE_PUBLIC | ROUTE_PAGE, NULL, page_answer},
    {"GET", "/page/", ROUTE_PUBLIC | ROUTE_PAGE | ROUTE_PREFIX, NULL, page_answer},
};
const int routes_count = sizeof routes / sizeof *routes;

static bool path_is(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    if (r->flags & ROUTE_PREFIX)
        return strncmp(path, r->path, n) == 0 && path[n];
    return strcmp(path, r->path) == 0;
}

const struct route *route_find(const char *method, const char *path, unsigned without, char *allow,
                               size_t allow_bytes)
{
    allow[0] = '\0';
    for (int i = 0; i < routes_count; i++) {
        const struct route *r = &routes[i];
        if ((r->flags & without) || !path_is(r, path))
            continue;
        bool get = strcmp(r->method, "GET") == 0;
        if (strcmp(r->method, method) == 0 || (get && strcmp(method, "HEAD") == 0)) {
            allow[0] = '\0';
            return r;
        }
        size_t used = strlen(allow);
        snprintf(allow + used, allow_bytes - used, "%s%s, ", r->method, get ? ", HEAD" : "");
    }
    if (allow[0])
        strncat(allow, "OPTIONS", allow_bytes - strlen(allow) - 1);
    return NULL;
}

void route_preflight(struct exchange *ex)
{
    struct strbuf empty = {0};
    exchange_answer(ex, 204, NULL, &empty);
}
