#include "runner.h"

#include "testlib.h"

#include <stdio.h>
#include <string.h>

void runner_open(struct runner *r, const struct model_options *options, size_t arena_bytes)
{
    struct err err;
    *r = (struct runner){0};
    if (model_open(options, &r->model, &err) || pool_create(options->threads, 0, &r->pool, &err) ||
        model_load(r->model, r->pool, NULL, NULL, &err))
        fail_msg("%s", err.text);
    struct kv_config kv = model_plan(r->model)->kv;
    kv.arena_bytes = arena_bytes;
    kv.share = false;
    if (kv_create(&kv, &r->cache, &err))
        fail_msg("%s", err.text);
    r->vocabulary = model_plan(r->model)->vocabulary;
}

void runner_close(struct runner *r)
{
    kv_destroy(r->cache);
    model_destroy(r->model);
    pool_destroy(r->pool);
}

struct kv_seq *runner_seq(struct runner *r, const int32_t *tokens, int n)
{
    struct kv_seq *s;
    struct kv_match match;
    struct err err;
    assert_int_equal(kv_seq_open(r->cache, 0, tokens, n, 0, &s, &match, &err), 0);
    return s;
}

/* Rows of the wanted tokens, in order; how many. */
static int list_wanted(const struct batch_item *items, int n_items, int *rows)
{
    int wanted = 0, row = 0;
    for (int i = 0; i < n_items; row += items[i++].n)
        for (int j = items[i].n - items[i].wanted; j < items[i].n; j++)
            rows[wanted++] = row + j;
    return wanted;
}

void runner_step(struct runner *r, const struct batch_item *items, int n_items, float *out)
{
    int total = 0;
    for (int i = 0; i < n_items; i++) {
        assert_int_equal(kv_seq_extend(items[i].seq, items[i].tokens, items[i].n), 0);
        total += items[i].n;
    }
    const struct batch batch = {.items = items, .n_items = n_items};
    assert_int_equal(model_step(r->model, &batch), 0);
    for (int i = 0; i < n_items; i++)
        kv_seq_commit(items[i].seq, items[i].position + items[i].n);
    int *rows = calloc((size_t)total, sizeof *rows);
    int wanted = list_wanted(items, n_items, rows);
    for (int at = 0; at < wanted; at += MODEL_LOGIT_ROWS) {
        int n = wanted - at < MODEL_LOGIT_ROWS ? wanted - at : MODEL_LOGIT_ROWS;
        model_logits(r->model, rows + at, n, out + (size_t)at * (size_t)r->vocabulary);
    }
    free(rows);
}
