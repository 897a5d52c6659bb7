#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "buckets.h"
#include "strbuf.h"

#include <stdint.h>

/* What the loop thread counts; rendered by metrics_render in Prometheus' text form. */

struct exchange;
struct generation;
struct server;

#define METRICS_ROUTES 64 /* at most that many rows in routes.c, and one for no route */

enum metrics_histogram_id {
#define HISTOGRAM(id, name, help, bounds) METRICS_##id,
#include "metrics.def"
#undef HISTOGRAM
    METRICS_HISTOGRAMS
};

struct metrics_route {
    uint64_t by_class[5]; /* 1xx to 5xx */
    uint64_t bytes_in, bytes_out;
    struct buckets seconds;
};

struct metrics {
    struct buckets histograms[METRICS_HISTOGRAMS];
    struct metrics_route routes[METRICS_ROUTES];
    struct buckets http_seconds;
    uint64_t rejected_full, slow_readers;
    uint64_t answers, answer_tokens;
};

void metrics_exchange(struct metrics *m, const struct exchange *ex);    /* an exchange has ended */
void metrics_generation(struct metrics *m, const struct generation *g); /* so has a job */
void metrics_gap(struct metrics *m, double seconds, int n);             /* n gaps between tokens */
double metrics_mean_answer(const struct metrics *m);                    /* tokens per request */
void metrics_render(struct server *s, struct strbuf *out);

#endif
