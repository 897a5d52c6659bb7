#include "kernels/attn_exp.h"
#include "kernels/attn_ops.h"
#include "plan.h"

#include <assert.h>

/* One worker's item on its way: rows are [kv head][query][query head of the group]. */
struct walk {
    const struct attn_plan *plan;
    const struct attn_ops *ops;
    const struct attn_item *item;
    const struct attn_tile *tile;
    int head_rows; /* rows of one kv head */
    struct attn_rows rows;
    /* The same memory as in `rows`, and the totals of the chunks before. */
    float *query, *mix, *slope, *total_mix, *total_top, *total_sum;
    int *position;
};

/* A state to merge into or from. */
struct state {
    float *top, *sum, *mix;
};

static float *take(float **at, size_t floats)
{
    float *p = *at;
    *at += floats;
    return p;
}

static void walk_init(struct walk *w, int worker)
{
    const struct attn_shape *s = w->plan->shape;
    size_t rows = (size_t)w->plan->sizes.rows, pad = (size_t)w->plan->layout.value_pad;
    float *at = (float *)(w->plan->workers + (size_t)worker * w->plan->sizes.worker);
    w->mix = take(&at, rows * pad);
    w->total_mix = take(&at, rows * pad);
    w->rows = (struct attn_rows){.mix = w->mix, .weight = take(&at, rows * ATTN_LANES)};
    w->rows.top = take(&at, rows);
    w->rows.sum = take(&at, rows);
    w->rows.rescale = take(&at, rows);
    w->total_top = take(&at, rows);
    w->total_sum = take(&at, rows);
    w->slope = take(&at, rows);
    w->position = (int *)take(&at, rows);
    w->query = take(&at, rows * (size_t)s->key_size);
    w->head_rows = w->tile->n * w->plan->group;
    w->rows.n = w->head_rows * (w->item->head1 - w->item->head0);
    assert(w->rows.n <= w->plan->sizes.rows);
    w->rows.query = w->query;
    w->rows.slope = s->slopes ? w->slope : NULL;
    w->rows.position = w->position;
    memset(w->total_sum, 0, rows * sizeof(float));
}

/* The query head of a row, and which query of the tile it is. */
static int row_head(const struct walk *w, int row)
{
    return (w->item->head0 + row / w->head_rows) * w->plan->group + row % w->plan->group;
}

static int row_query(const struct walk *w, int row)
{
    return row % w->head_rows / w->plan->group;
}

static void load_queries(struct walk *w)
{
    const struct attn_shape *s = w->plan->shape;
    const struct attn_span *span = w->tile->span;
    for (int r = 0; r < w->rows.n; r++) {
        int head = row_head(w, r), n = w->tile->first + row_query(w, r);
        const float *from = span->q + (size_t)n * span->q_stride + (size_t)head * s->key_size;
        float *to = w->query + (size_t)r * s->key_size;
        for (int d = 0; d < s->key_size; d++)
            to[d] = from[d] * s->scale;
        w->position[r] = span->position + n;
        w->slope[r] = s->slopes ? s->slopes[head] : 0.0f;
    }
}

/* ---- one block ---- */

static struct attn_rows rows_slice(const struct walk *w, int first, int n)
{
    struct attn_rows r = w->rows;
    r.n = n;
    r.query += (size_t)first * w->plan->shape->key_size;
    r.weight += (size_t)first * ATTN_LANES;
    r.mix += (size_t)first * w->plan->layout.value_pad;
    r.top += first;
    r.sum += first;
    r.rescale += first;
    r.position += first;
    if (r.slope)
        r.slope += first;
    return r;
}

/* Which queries of the tile see a block: [seen0, seen1) some of it, [full0, full1) all of it. */
struct sight {
    int seen0, seen1, full0, full1;
};

static int clamp(int64_t x, int low, int high)
{
    return x < low ? low : x > high ? high : (int)x;
}

static struct sight block_sight(const struct walk *w, int block)
{
    int64_t start = (int64_t)block * ATTN_LANES - (w->tile->span->position + w->tile->first);
    int window = w->plan->shape->window, n = w->tile->n;
    struct sight s;
    s.seen0 = clamp(start, 0, n);
    s.full0 = clamp(start + ATTN_LANES - 1, s.seen0, n);
    s.seen1 = window ? clamp(start + ATTN_LANES - 1 + window, s.seen0, n) : n;
    s.full1 = window ? clamp(start + window, s.seen0, s.seen1) : n;
    if (s.full0 >= s.full1)
        s.full0 = s.full1 = s.seen1;
    return s;
}

/* Softmax and mix for queries [q0, q1) of kv head `head`, which see the same lanes. */
static void mix_queries(const struct walk *w, struct attn_page *page, int base, int q0, int q1)
{
    int first = w->tile->span->position + w->tile->first + q0;
    int low = attn_first_seen(w->plan->shape, first) - page->position;
    int high = first - page->position + 1;
    page->first = low > 0 ? low : 0;
    page->last = high < ATTN_LANES ? high : ATTN_LANES;
    struct attn_rows rows = rows_slice(w, base + q0 * w->plan->group, (q1 - q0) * w->plan->group);
    w->ops->softmax(page, &rows);
    w->ops->mix[w->plan->shape->type](page, &rows);
}

static void attend_page(const struct walk *w, struct attn_page *page, const struct sight *s,
                        int base)
{
    int group = w->plan->group;
    struct attn_rows seen = rows_slice(w, base + s->seen0 * group, (s->seen1 - s->seen0) * group);
    w->ops->scores[w->plan->shape->type](page, &seen);
    for (int q = s->seen0; q < s->full0; q++)
        mix_queries(w, page, base, q, q + 1);
    if (s->full0 < s->full1)
        mix_queries(w, page, base, s->full0, s->full1);
    for (int q = s->full1; q < s->seen1; q++)
        mix_queries(w, page, base, q, q + 1);
}

static const uint8_t *page_at(const struct walk *w, int block, int head)
{
    const struct attn_span *span = w->tile->span;
    return (const uint8_t *)span->blocks[block] + span->offset +
           (size_t)head * w->plan->layout.head_bytes;
}

/* All heads of the item on one block; `next` is the block that follows (the same at the end). */
static void attend_block(const struct walk *w, int block, int next)
{
    const struct attn_shape *s = w->plan->shape;
    struct sight sight = block_sight(w, block);
    assert(sight.seen0 < sight.seen1);
    struct attn_page page = {.key_size = s->key_size,
                             .value_pad = w->plan->layout.value_pad,
                             .position = block * ATTN_LANES,
                             .cap = s->softcap,
                             .inv_cap = s->softcap > 0 ? 1.0f / s->softcap : 0.0f};
    for (int h = w->item->head0; h < w->item->head1; h++) {
        const uint8_t *key = page_at(w, block, h);
        const uint8_t *after = h + 1 < w->item->head1 ? page_at(w, block, h + 1)
                                                      : page_at(w, next, w->item->head0);
        page.key = key;
        page.value = key + w->plan->layout.key_bytes;
        page.next_key = after;
        page.next_value = after + w->plan->layout.key_bytes;
        attend_page(w, &page, &sight, (h - w->item->head0) * w->head_rows);
    }
}

/* ---- chunks ---- */

static void walk_chunk(struct walk *w, int chunk)
{
    int first = w->tile->span->position + w->tile->first, last = first + w->tile->n - 1;
    int block0 = attn_first_seen(w->plan->shape, first) / ATTN_LANES,
        block1 = last / ATTN_LANES + 1;
    int per_chunk = ATTN_CHUNK / ATTN_LANES;
    block0 = block0 < chunk * per_chunk ? chunk * per_chunk : block0;
    block1 = block1 > (chunk + 1) * per_chunk ? (chunk + 1) * per_chunk : block1;
    for (int r = 0; r < w->rows.n; r++) {
        w->rows.top[r] = -INFINITY;
        w->rows.sum[r] = 0.0f;
    }
    memset(w->mix, 0, (size_t)w->rows.n * w->plan->layout.value_pad * sizeof(float));
    for (int b = block0; b < block1; b++)
        attend_block(w, b, b + 1 < block1 ? b + 1 : b);
}

/* a becomes the state over a's and then b's positions. A sum of 0 means that nothing was seen: else
 * the greatest score alone has weight 1. */
static void state_merge(const struct attn_ops *ops, struct state a, struct state b, int pad)
{
    if (*b.sum == 0)
        return;
    if (*a.sum == 0) {
        *a.top = *b.top;
        *a.sum = *b.sum;
        memcpy(a.mix, b.mix, (size_t)pad * sizeof(float));
        return;
    }
    float top = *b.top > *a.top ? *b.top : *a.top;
    float scale_a = exp_one(*a.top - top), scale_b = exp_one(*b.top - top);
    ops->merge(a.mix, b.mix, scale_a, scale_b, pad);
    *a.sum = fmaf(*b.sum, scale_b, *a.sum * scale_a);
    *a.top = top;
}

static struct state row_state(const struct walk *w, int row)
{
    size_t at = (size_t)row * w->plan->layout.value_pad;
    return (struct state){w->rows.top + row, w->rows.sum + row, w->mix + at};
}

static struct state total_state(const struct walk *w, int row)
{
    size_t at = (size_t)row * w->plan->layout.value_pad;
    return (struct state){w->total_top + row, w->total_sum + row, w->total_mix + at};
}

/* Where the state of a chunk is kept for the merge, by row of the whole tile. */
static struct state part_state(const struct attn_plan *p, const struct attn_tile *t, int chunk,
                               int row)
{
    size_t rows = (size_t)t->n * p->shape->heads;
    float *part = t->parts +
                  ((size_t)(chunk - t->chunk0) * rows + row) * attn_part_floats(&p->layout);
    return (struct state){part, part + 1, part + ATTN_PART_MIX};
}

static void keep_chunk(const struct walk *w, int chunk)
{
    int pad = w->plan->layout.value_pad, first = w->item->head0 * w->head_rows;
    for (int r = 0; r < w->rows.n; r++) {
        struct state from = row_state(w, r);
        if (!w->tile->parts) {
            state_merge(w->ops, total_state(w, r), from, pad);
            continue;
        }
        struct state to = part_state(w->plan, w->tile, chunk, first + r);
        *to.top = *from.top;
        *to.sum = *from.sum;
        memcpy(to.mix, from.mix, (size_t)pad * sizeof(float));
    }
}

/* ---- results ---- */

/* The sink joins the sum, then the mix is divided by it. */
static void state_output(const struct attn_shape *s, struct state a, int head, float *out)
{
    float scale = 1.0f, sum = *a.sum;
    if (s->sinks) {
        float top = s->sinks[head] > *a.top ? s->sinks[head] : *a.top;
        scale = exp_one(*a.top - top);
        sum = fmaf(sum, scale, exp_one(s->sinks[head] - top));
    }
    scale = scale / sum;
    for (int c = 0; c < s->value_size; c++)
        out[c] = a.mix[c] * scale;
}

static float *output_at(const struct attn_plan *p, const struct attn_tile *t, int query, int head)
{
    const struct attn_span *span = t->span;
    return span->out + (size_t)(t->first + query) * span->out_stride +
           (size_t)head * p->shape->value_size;
}

static void output_totals(const struct walk *w)
{
    for (int r = 0; r < w->rows.n; r++) {
        int head = row_head(w, r);
        float *out = output_at(w->plan, w->tile, row_query(w, r), head);
        state_output(w->plan->shape, total_state(w, r), head, out);
    }
}

/* All chunks of the tile are there: whoever came last puts them together, in order. */
static void output_parts(const struct walk *w)
{
    const struct attn_plan *p = w->plan;
    const struct attn_tile *t = w->tile;
    int rows = t->n * p->shape->heads;
    for (int r = 0; r < rows; r++) {
        struct state total = part_state(p, t, t->chunk0, r);
        for (int c = t->chunk0 + 1; c < t->chunk1; c++)
            state_merge(w->ops, total, part_state(p, t, c, r), p->layout.value_pad);
        int head = r / w->head_rows * p->group + r % p->group;
        state_output(p->shape, total, head, output_at(p, t, r % w->head_rows / p->group, head));
    }
}

struct attn_outputs attn_run_item(struct attn_plan *p, int i, int worker)
{
    struct attn_item *item = &p->items[i];
    struct attn_tile *t = item->tile;
    struct walk w = {.plan = p, .ops = attn_ops(), .item = item, .tile = t};
    walk_init(&w, worker);
    load_queries(&w);
    for (int c = item->chunk0; c < item->chunk1; c++) {
        walk_chunk(&w, c);
        keep_chunk(&w, c);
    }
    if (!t->parts)
        output_totals(&w);
    if (atomic_fetch_sub(&t->left, 1) != 1)
        return (struct attn_outputs){0};
    if (t->parts)
        output_parts(&w);
    return (struct attn_outputs){output_at(p, t, 0, 0), t->n};
}

static void run_items(void *arg, int worker, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++)
        attn_run_item(arg, (int)i, worker);
}

void attn_run(struct pool *pool, const struct attn_shape *s, const struct attn_span *spans,
              int n_spans, void *scratch)
{
    struct attn_plan *p = attn_plan_make(s, spans, n_spans, pool_threads(pool), scratch);
    pool_run(pool, run_items, p, p->n_items, 1);
}
