#ifndef TESTS_RUNNER_H
#define TESTS_RUNNER_H

#include "model/model.h"

/* A loaded model with a cache that shares nothing: what a test needs to compute logits. Failures
 * fail the test. */
struct runner {
    struct model *model;
    struct kv_cache *cache;
    struct pool *pool;
    int vocabulary;
};

void runner_open(struct runner *r, const struct model_options *options, size_t arena_bytes);
void runner_close(struct runner *r);

struct kv_seq *runner_seq(struct runner *r, const int32_t *tokens, int n);

/* One step over chunks of several sequences; the logits that they want, in order, to out. */
void runner_step(struct runner *r, const struct batch_item *items, int n_items, float *out);

#endif
