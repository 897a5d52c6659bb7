#include "forward_state.h"

/* A layer's first phase. Its items, in order: chunks of rows of k, v and q; pieces of storing (some
 * kv heads of some tokens), which wait for the rows of their heads; items of attention, which wait
 * for all keys and values of theirs. Chunks of the three matrices take turns, so that heads become
 * complete one after the other. */

/* Values of queries and keys that are worth handing over to another worker. */
#define LEAST_VALUES      1024
#define PIECES_PER_THREAD 4

struct attend_phase {
    struct forward *f;
    const struct layer *layer;
    struct product products[3]; /* k, v, q */
    int n_products;             /* 2: without queries */
    int chunk[3];               /* rows at a time */
    int ranges, parts;          /* of kv heads and of tokens: pieces are ranges x parts */
    struct attn_plan *plan;     /* NULL: nobody asks */
    int chunks, pieces, items;
    int tile;   /* of mixed tokens */
    bool alone; /* all but the products is left to the caller, after the phase */
};

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* The range that has kv head h, and the heads of a range. */
static int range_of(const struct attend_phase *ph, int h)
{
    return h * ph->ranges / ph->layer->attn.kv_heads;
}

static struct attn_heads range_heads(const struct attend_phase *ph, int range)
{
    int heads = ph->layer->attn.kv_heads, n = ph->ranges;
    return (struct attn_heads){(heads * range + n - 1) / n, (heads * (range + 1) + n - 1) / n};
}

/* Rows of a product that belong to a kv head. */
static int head_rows(const struct attend_phase *ph, int which)
{
    return ph->products[which].linear->matrix.rows / ph->layer->attn.kv_heads;
}

/* ---- items ---- */

/* The packed tokens of a tile lie among each other: one worker packs them, who brings the last. */
static void pack_mixed(const struct attend_phase *ph, int t0, int t1)
{
    const struct forward *f = ph->f;
    for (int i = t0 / ph->tile; i * ph->tile < t1; i++) {
        int first = i * ph->tile, last = least(first + ph->tile, f->mid.tokens);
        if (latch_count(&f->mixed_left[i], least(last, t1) - most(first, t0)))
            pack_tokens(f, &f->mid, f->mixed, first, last);
    }
}

static void attend_item(struct attend_phase *ph, int worker, int item)
{
    struct forward *f = ph->f;
    struct attn_heads heads = attn_item_heads(ph->plan, item);
    for (int r = range_of(ph, heads.first); r <= range_of(ph, heads.last - 1); r++)
        pool_wait(f->pool, worker, &f->stored[r]);
    struct attn_outputs done = attn_run_item(ph->plan, item, worker);
    if (done.n == 0)
        return;
    int first = (int)((done.out - f->mixed) / f->mid.cols);
    pack_mixed(ph, first, first + done.n);
}

static void store_piece(struct attend_phase *ph, int worker, int piece)
{
    struct forward *f = ph->f;
    int range = piece / ph->parts, part = piece % ph->parts, tokens = f->in.tokens;
    pool_wait(f->pool, worker, &f->computed[range]);
    store_tokens(f, ph->layer, ph->n_products == 3, range_heads(ph, range),
                 (int)((int64_t)tokens * part / ph->parts),
                 (int)((int64_t)tokens * (part + 1) / ph->parts));
    latch_count(&f->stored[range], 1);
}

static void project_chunk(struct attend_phase *ph, int worker)
{
    struct forward *f = ph->f;
    struct turn turn = f->turns[shares_take(f->shares[0], f->threads, worker)];
    const struct product *pr = &ph->products[turn.which];
    struct rows rows = chunk_rows(&pr->linear->matrix, turn.chunk, ph->chunk[turn.which]);
    multiply_rows(f, worker, &f->in, pr, rows, 0, f->in.tokens);
    if (ph->alone)
        return;
    int of_head = head_rows(ph, turn.which), last = range_of(ph, (rows.last - 1) / of_head);
    for (int r = range_of(ph, rows.first / of_head); r <= last; r++)
        latch_count(&f->computed[r], 1);
}

static void attend_items(void *arg, int worker, int64_t first, int64_t last)
{
    struct attend_phase *ph = arg;
    for (int i = (int)first; i < (int)last; i++) {
        if (i < ph->chunks)
            project_chunk(ph, worker);
        else if (i < ph->chunks + ph->pieces)
            store_piece(ph, worker, i - ph->chunks);
        else
            attend_item(ph, worker, i - ph->chunks - ph->pieces);
    }
}

/* ---- setting up ---- */

/* Whichever matrix has come least far is next. */
static void take_turns(struct forward *f, const int *chunks, int n)
{
    int taken[3] = {0}, total = 0;
    for (int i = 0; i < n; i++)
        total += chunks[i];
    for (int t = 0; t < total; t++) {
        int next = 0;
        for (int i = 1; i < n; i++)
            if (taken[i] * chunks[next] < taken[next] * chunks[i])
                next = i;
        f->turns[t] = (struct turn){next, taken[next]++};
    }
}

static void cut_products(struct attend_phase *ph)
{
    struct forward *f = ph->f;
    int chunks[3];
    for (int i = 0; i < ph->n_products; i++) {
        const struct matrix *m = &ph->products[i].linear->matrix;
        ph->chunk[i] = matrix_chunk(m, f->in.tokens, f->threads);
        chunks[i] = (m->rows + ph->chunk[i] - 1) / ph->chunk[i];
        ph->chunks += chunks[i];
    }
    take_turns(f, chunks, ph->n_products);
    shares_set(f->shares[0], f->threads, ph->chunks);
}

static void cut_stores(struct attend_phase *ph)
{
    const struct forward *f = ph->f;
    const struct attn_shape *a = &ph->layer->attn;
    int64_t values = (int64_t)f->in.tokens * (a->heads + a->kv_heads) * a->key_size;
    int64_t enough = (int64_t)f->threads * PIECES_PER_THREAD, wanted = values / LEAST_VALUES;
    wanted = f->threads == 1 || wanted < 1 ? 1 : wanted < enough ? wanted : enough;
    ph->ranges = least((int)wanted, a->kv_heads);
    ph->parts = least(((int)wanted + ph->ranges - 1) / ph->ranges, f->in.tokens);
    ph->pieces = ph->ranges * ph->parts;
}

static void cut_attention(struct attend_phase *ph, int n_spans)
{
    struct forward *f = ph->f;
    const struct layer *l = ph->layer;
    ph->plan = attn_plan_make(&l->attn, f->spans, n_spans, f->threads, f->attn_scratch);
    ph->items = attn_items(ph->plan);
    ph->tile = matrix_tile(&l->o.matrix, f->mid.tokens);
    for (int t = 0; t < f->mid.tokens; t += ph->tile)
        latch_set(&f->mixed_left[t / ph->tile], least(ph->tile, f->mid.tokens - t));
}

static void set_latches(const struct attend_phase *ph)
{
    const struct forward *f = ph->f;
    for (int r = 0; r < ph->ranges; r++) {
        struct attn_heads heads = range_heads(ph, r);
        int chunks = 0;
        for (int i = 0; i < ph->n_products; i++) {
            int rows = head_rows(ph, i);
            chunks += (heads.last * rows - 1) / ph->chunk[i] - heads.first * rows / ph->chunk[i];
        }
        latch_set(&f->computed[r], ph->alone ? 0 : chunks + ph->n_products);
        latch_set(&f->stored[r], ph->parts);
    }
}

void attend(struct forward *f, const struct layer *l, int n_spans)
{
    struct attend_phase ph = {.f = f, .layer = l, .n_products = n_spans ? 3 : 2};
    ph.products[0] = product_of(&l->k, f->k);
    ph.products[1] = product_of(&l->v, f->v);
    ph.products[2] = product_of(&l->q, f->q);
    cut_products(&ph);
    cut_stores(&ph);
    if (n_spans)
        cut_attention(&ph, n_spans);
    ph.alone = ph.pieces == 1 && ph.items <= 1;
    set_latches(&ph);
    int all = ph.chunks + ph.pieces + ph.items;
    pool_run(f->pool, attend_items, &ph, ph.alone ? ph.chunks : all, 1);
    if (ph.alone)
        attend_items(&ph, 0, ph.chunks, all);
}
