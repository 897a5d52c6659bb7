#include "forward_state.h"

#include <assert.h>

/* Values of tokens that are worth handing over to another worker. */
#define LEAST_VALUES 2048

/* From so many tokens on, the last few are computed after all others. */
enum { MANY_TOKENS = 64, LAST_TOKENS = 16 };

struct product product_of(const struct linear *l, float *out)
{
    return (struct product){l, out, (size_t)l->matrix.rows, 0};
}

struct rows chunk_rows(const struct matrix *m, int chunk, int size)
{
    int first = chunk * size;
    return (struct rows){first, first + size < m->rows ? first + size : m->rows};
}

static void add_bias(const struct product *pr, struct rows rows, int t0, int t1)
{
    for (int t = t0; t < t1; t++)
        for (int r = rows.first; r < rows.last; r++)
            pr->out[(size_t)t * pr->stride + (size_t)(r - pr->row0)] += pr->linear->bias[r];
}

void multiply_rows(const struct forward *f, int worker, const struct packed *from,
                   const struct product *pr, struct rows rows, int t0, int t1)
{
    const struct matrix *m = &pr->linear->matrix;
    const struct matrix_job job = {
        .act = from->act[matrix_act_kind(m->format, m->how, from->tokens)],
        .tokens = from->tokens,
        .t0 = t0,
        .t1 = t1,
        .out = pr->out,
        .out_stride = pr->stride,
        .out_row = pr->row0,
        .scratch = f->worker_scratch + (size_t)worker * f->worker_bytes,
    };
    matrix_mul(m, &job, rows.first, rows.last);
    if (pr->linear->bias)
        add_bias(pr, rows, t0, t1);
}

/* ---- one matrix, and what becomes of its tokens ---- */

/* Some tokens, whose product is there when its chunks of rows are done. */
struct block {
    int t0, t1;
    struct latch rows;
};

struct product_phase {
    struct forward *f;
    const struct packed *from;
    const struct product *product;
    const struct joining *join;
    int chunk, chunks; /* rows at a time, and how often for a block */
    struct block blocks[2];
    int n_blocks;
    int piece; /* tokens that join at a time */
};

static void multiply_chunk(struct product_phase *ph, int worker, int which)
{
    struct block *b = &ph->blocks[which];
    int chunk = shares_take(ph->f->shares[which], ph->f->threads, worker);
    multiply_rows(ph->f, worker, ph->from, ph->product,
                  chunk_rows(&ph->product->linear->matrix, chunk, ph->chunk), b->t0, b->t1);
    latch_count(&b->rows, 1);
}

static void join_piece(struct product_phase *ph, int worker, int piece)
{
    int t0 = piece * ph->piece, t1 = t0 + ph->piece;
    t1 = t1 < ph->from->tokens ? t1 : ph->from->tokens;
    for (int i = 0; i < ph->n_blocks; i++)
        if (ph->blocks[i].t0 < t1 && t0 < ph->blocks[i].t1)
            pool_wait(ph->f->pool, worker, &ph->blocks[i].rows);
    join_tokens(ph->f, ph->join, t0, t1);
}

static void product_items(void *arg, int worker, int64_t first, int64_t last)
{
    struct product_phase *ph = arg;
    int products = ph->n_blocks * ph->chunks;
    for (int i = (int)first; i < (int)last; i++) {
        if (i < products)
            multiply_chunk(ph, worker, i / ph->chunks);
        else
            join_piece(ph, worker, i - products);
    }
}

/* Of many tokens, all but the last few are complete while those are computed: who is through with
 * its rows joins them, and finds the last ones complete when it comes to them. */
static void cut_tokens(struct product_phase *ph)
{
    int tokens = ph->from->tokens, tile = matrix_tile(&ph->product->linear->matrix, tokens);
    int border = (tokens - LAST_TOKENS) / tile * tile;
    bool two = ph->join && tokens >= MANY_TOKENS && ph->f->threads > 1;
    ph->n_blocks = 1 + two;
    ph->blocks[0] = (struct block){.t1 = two ? border : tokens};
    ph->blocks[1] = (struct block){.t0 = border, .t1 = tokens};
    for (int i = 0; i < ph->n_blocks; i++) {
        latch_set(&ph->blocks[i].rows, ph->chunks);
        shares_set(ph->f->shares[i], ph->f->threads, ph->chunks);
    }
}

/* Tokens that join at a time: some pieces for every worker, none of them too small. */
static int piece_tokens(const struct forward *f, int tokens)
{
    int least = LEAST_VALUES / f->p->width + 1, share = tokens / (4 * f->threads);
    share = share < FEW_TOKENS ? share : FEW_TOKENS;
    return share > least ? share : least;
}

void multiply(struct forward *f, const struct packed *from, const struct linear *l, float *out,
              const struct joining *join)
{
    const struct product product = product_of(l, out);
    struct product_phase ph = {.f = f, .from = from, .product = &product, .join = join};
    ph.chunk = matrix_chunk(&l->matrix, from->tokens, f->threads);
    ph.chunks = (l->matrix.rows + ph.chunk - 1) / ph.chunk;
    cut_tokens(&ph);
    ph.piece = piece_tokens(f, from->tokens);
    int pieces = join ? (from->tokens + ph.piece - 1) / ph.piece : 0;
    bool alone = pieces == 1;
    pool_run(f->pool, product_items, &ph, ph.n_blocks * ph.chunks + (alone ? 0 : pieces), 1);
    if (alone)
        join_tokens(f, join, 0, from->tokens);
}

/* ---- gate and up: rows of both, and what becomes of them ---- */

struct gate_phase {
    struct forward *f;
    const struct layer *layer;
    int chunk;
};

/* gate = activation(gate) * up, packed: a few tokens at a time, which stay in the nearest cache. */
static void activate_rows(const struct forward *f, const struct product *gate, const float *up,
                          struct rows rows)
{
    void (*const activate)(float *, const float *, int) = f->p->arch->activation == ACTIVATION_SILU
                                                              ? f->vec->silu_mul
                                                              : f->vec->gelu_mul;
    int tokens = f->wide.tokens;
    for (int t0 = 0, t1; t0 < tokens; t0 = t1) {
        t1 = t0 + FEW_TOKENS < tokens ? t0 + FEW_TOKENS : tokens;
        for (size_t t = (size_t)t0; t < (size_t)t1; t++)
            activate(gate->out + t * gate->stride, up + t * gate->stride, rows.last - rows.first);
        pack_range(f, &f->wide, gate->out, gate->stride,
                   &(struct act_range){t0, t1, rows.first, rows.last});
    }
}

/* What the two matrices say stays with the worker: its memory is small enough for a cache. */
static void gate_chunks(void *arg, int worker, int64_t first, int64_t last)
{
    const struct gate_phase *ph = arg;
    struct forward *f = ph->f;
    int tokens = f->in.tokens;
    float *at = (float *)(f->worker_scratch + (size_t)worker * f->worker_bytes + f->matrix_bytes);
    struct product gate = {&ph->layer->gate, at, (size_t)ph->chunk, 0};
    struct product up = {&ph->layer->up, at + tokens * ph->chunk, (size_t)ph->chunk, 0};
    for (int64_t i = first; i < last; i++) {
        int chunk = shares_take(f->shares[0], f->threads, worker);
        struct rows rows = chunk_rows(&ph->layer->gate.matrix, chunk, ph->chunk);
        gate.row0 = up.row0 = rows.first;
        multiply_rows(f, worker, &f->in, &gate, rows, 0, tokens);
        multiply_rows(f, worker, &f->in, &up, rows, 0, tokens);
        activate_rows(f, &gate, up.out, rows);
    }
}

void multiply_gate(struct forward *f, const struct layer *l)
{
    int tokens = f->in.tokens;
    struct gate_phase ph = {f, l, matrix_chunk(&l->gate.matrix, tokens, f->threads)};
    int chunks = (f->p->ffn + ph.chunk - 1) / ph.chunk;
    assert(2 * sizeof(float) * (size_t)(tokens * ph.chunk) <= f->worker_bytes - f->matrix_bytes);
    f->wide.tokens = tokens;
    shares_set(f->shares[0], f->threads, chunks);
    pool_run(f->pool, gate_chunks, &ph, chunks, 1);
}
