#include "plan.h"

#include "kernels/attn_ops.h"
#include "mem.h"

#include <stdlib.h>

#define TILE_ROWS        64 /* enough to use a key often, few enough to stay in cache */
#define ITEMS_PER_THREAD 4
#define LEAST_WORK       (1 << 17) /* multiply-adds of an item that is worth a hand-over */
#define PLAN_BYTES       ((sizeof(struct attn_plan) + MEM_LINE - 1) / MEM_LINE * MEM_LINE)

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- sizes ---- */

static int group_of(const struct attn_shape *s)
{
    return s->heads / s->kv_heads;
}

/* Contexts are only cut while tiles are scarce, so states of this many queries are enough. */
static size_t part_rows(const struct attn_shape *s, int tokens, int threads)
{
    return threads > 1 ? (size_t)min_int(tokens, threads) * (size_t)s->heads : 0;
}

static size_t chunks_of(int context)
{
    return (size_t)context / ATTN_CHUNK + 1;
}

static bool items_bytes(struct attn_sizes *z, const struct attn_shape *s, int tokens, int context,
                        int threads)
{
    size_t items, cut;
    if (!mem_mul((size_t)min_int(tokens, threads), chunks_of(context), &cut) ||
        !mem_add(cut, (size_t)tokens, &items) || !mem_mul(items, (size_t)s->kv_heads, &items) ||
        !mem_mul(items, sizeof(struct attn_item), &z->items) ||
        !mem_mul((size_t)tokens, sizeof(struct attn_tile), &z->tiles))
        return false;
    return z->items < SIZE_MAX / 8 && z->tiles < SIZE_MAX / 8;
}

/* Queries, weights, two mixes, and seven numbers of each row. */
static size_t worker_bytes(const struct attn_shape *s, const struct attn_layout *l, size_t rows)
{
    return rows * ((size_t)s->key_size + ATTN_LANES + 2 * (size_t)l->value_pad + 7) * sizeof(float);
}

bool attn_sizes_of(struct attn_sizes *z, const struct attn_shape *s, int tokens, int context,
                   int threads)
{
    struct attn_layout l = attn_layout(s);
    size_t part, workers;
    z->rows = (int)mem_round_up((size_t)max_int(TILE_ROWS, group_of(s)), 16);
    z->worker = mem_round_up(worker_bytes(s, &l, (size_t)z->rows), MEM_LINE);
    if (!items_bytes(z, s, tokens, context, threads) ||
        !mem_mul(part_rows(s, tokens, threads), chunks_of(context), &part) ||
        !mem_mul(part, attn_part_floats(&l) * sizeof(float), &z->parts) ||
        !mem_mul(z->worker, (size_t)threads, &workers) || z->parts > SIZE_MAX / 8 ||
        workers > SIZE_MAX / 8)
        return false;
    z->tiles = mem_round_up(z->tiles, MEM_LINE);
    z->items = mem_round_up(z->items, MEM_LINE);
    z->total = PLAN_BYTES + z->tiles + z->items + z->parts + workers;
    return true;
}

size_t attn_scratch_bytes(const struct attn_shape *s, int tokens, int context, int threads)
{
    struct attn_sizes z;
    if (tokens < 1 || context < 0 || threads < 1 || attn_check(s, NULL))
        return 0;
    return attn_sizes_of(&z, s, tokens, context, threads) ? z.total : 0;
}

/* ---- tiles ---- */

static int64_t tile_work(const struct attn_plan *p, const struct attn_tile *t)
{
    const struct attn_shape *s = p->shape;
    int first = t->span->position + t->first, last = first + t->n - 1;
    int64_t length = last - attn_first_seen(s, first) + 1;
    return length * t->n * s->heads * (s->key_size + s->value_size);
}

static void add_tile(struct attn_plan *p, const struct attn_span *span, int first, int n)
{
    int position = span->position + first;
    struct attn_tile *t = &p->tiles[p->n_tiles++];
    t->span = span;
    t->first = first;
    t->n = n;
    t->chunk0 = attn_first_seen(p->shape, position) / ATTN_CHUNK;
    t->chunk1 = (position + n - 1) / ATTN_CHUNK + 1;
    t->head_ranges = t->pieces = 1;
    t->parts = NULL;
}

/* Late tiles of a span see the most and come first: big work should not be left for the end. */
static void add_tiles(struct attn_plan *p, const struct attn_span *span)
{
    int size = max_int(1, TILE_ROWS / p->group);
    for (int end = span->n; end > 0;) {
        int first = max_int(0, end - size);
        add_tile(p, span, first, end - first);
        end = first;
    }
}

/* ---- cutting ---- */

/* Room for the states of a tile's chunks, while there is some. */
static bool take_parts(struct attn_plan *p, struct attn_tile *t, size_t *used)
{
    size_t rows = (size_t)t->n * (size_t)p->shape->heads * (size_t)(t->chunk1 - t->chunk0);
    size_t floats = rows * attn_part_floats(&p->layout);
    if (*used + floats > p->sizes.parts / sizeof(float))
        return false;
    t->parts = p->parts + *used;
    *used += floats;
    return true;
}

/* Into items of about `quota` work. Chunks are cut before heads: a page of all heads is one run of
 * memory. */
static void cut_tile(struct attn_plan *p, struct attn_tile *t, int64_t quota, size_t *used)
{
    int kv_heads = p->shape->kv_heads;
    int most_heads = max_int(1, min_int(kv_heads, TILE_ROWS / (t->n * p->group)));
    int ranges = (int)divide_up(kv_heads, most_heads);
    int64_t wanted = divide_up(tile_work(p, t), quota);
    int64_t pieces = divide_up(wanted, ranges);
    if (pieces > t->chunk1 - t->chunk0)
        pieces = t->chunk1 - t->chunk0;
    if (pieces > 1 && take_parts(p, t, used))
        t->pieces = (int)pieces;
    int64_t more = divide_up(wanted, t->pieces);
    t->head_ranges = more < ranges ? ranges : more > kv_heads ? kv_heads : (int)more;
}

static void add_items(struct attn_plan *p, struct attn_tile *t)
{
    int chunks = t->chunk1 - t->chunk0, kv_heads = p->shape->kv_heads, n = 0;
    int64_t work = tile_work(p, t) / (t->pieces * t->head_ranges);
    for (int c = 0; c < t->pieces; c++) {
        for (int h = 0; h < t->head_ranges; h++, n++)
            p->items[p->n_items++] = (struct attn_item){
                .tile = t,
                .head0 = (int)((int64_t)kv_heads * h / t->head_ranges),
                .head1 = (int)((int64_t)kv_heads * (h + 1) / t->head_ranges),
                .chunk0 = t->chunk0 + (int)((int64_t)chunks * c / t->pieces),
                .chunk1 = t->chunk0 + (int)((int64_t)chunks * (c + 1) / t->pieces),
                .work = work,
            };
    }
    atomic_init(&t->left, n);
}

static int more_work_first(const void *a, const void *b)
{
    int64_t x = ((const struct attn_item *)a)->work, y = ((const struct attn_item *)b)->work;
    return (x < y) - (x > y);
}

static void sort_items(struct attn_plan *p)
{
    for (int i = 1; i < p->n_items; i++) {
        if (p->items[i - 1].work < p->items[i].work) {
            qsort(p->items, (size_t)p->n_items, sizeof *p->items, more_work_first);
            return;
        }
    }
}

static void cut_tiles(struct attn_plan *p, int threads)
{
    int64_t total = 0;
    size_t used = 0;
    for (int i = 0; i < p->n_tiles; i++)
        total += tile_work(p, &p->tiles[i]);
    int64_t quota = threads > 1 ? divide_up(total, (int64_t)threads * ITEMS_PER_THREAD) : total;
    if (quota < LEAST_WORK)
        quota = LEAST_WORK;
    for (int i = 0; i < p->n_tiles; i++) {
        cut_tile(p, &p->tiles[i], quota, &used);
        add_items(p, &p->tiles[i]);
    }
    sort_items(p);
}

struct attn_plan *attn_plan_make(const struct attn_shape *s, const struct attn_span *spans,
                                 int n_spans, int threads, void *scratch)
{
    struct attn_plan *p = scratch;
    int tokens = 0, context = 0;
    for (int i = 0; i < n_spans; i++) {
        tokens += spans[i].n;
        context = max_int(context, spans[i].position + spans[i].n);
    }
    *p = (struct attn_plan){.shape = s, .layout = attn_layout(s), .group = group_of(s)};
    attn_sizes_of(&p->sizes, s, tokens, context, threads);
    uint8_t *at = (uint8_t *)scratch + PLAN_BYTES;
    p->tiles = (struct attn_tile *)at;
    p->items = (struct attn_item *)(at += p->sizes.tiles);
    p->parts = (float *)(at += p->sizes.items);
    p->workers = at + p->sizes.parts;
    for (int i = 0; i < n_spans; i++)
        add_tiles(p, &spans[i]);
    cut_tiles(p, threads);
    return p;
}

int attn_items(const struct attn_plan *p)
{
    return p->n_items;
}

struct attn_heads attn_item_heads(const struct attn_plan *p, int item)
{
    return (struct attn_heads){p->items[item].head0, p->items[item].head1};
}
