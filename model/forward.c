#include "forward_state.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* Phases that go token by token: values that are worth handing over to another worker, some 2 us
 * of norms and rotations, and most tokens to take at a time. */
#define LEAST_VALUES 2048
#define MOST_TOKENS  16

static int most(int a, int b)
{
    return a > b ? a : b;
}

/* ---- phases that go token by token ---- */

struct token_phase {
    struct forward *f;
    const struct layer *layer;
    const struct norm *norm; /* NULL: none */
    float *from;             /* rows to pack */
    int width;
    struct packed *to;
    const struct norm *post; /* norm of y before it joins the residual stream */
};

static void norm_row(const struct forward *f, const struct norm *n, const float *x, float *out)
{
    const struct plan *p = f->p;
    if (p->arch->norm == NORM_RMS)
        f->vec->rms_norm(out, x, n->weight, p->width, p->eps);
    else
        f->vec->layer_norm(out, x, n->weight, n->bias, p->width, p->eps);
}

/* from[t * stride]: the range's first value of token t. */
static void pack_range(const struct forward *f, const struct packed *to, const float *from,
                       size_t stride, const struct act_range *range)
{
    for (int kind = 0; kind < ACT_KINDS; kind++) {
        struct act_shape s = {(enum act_kind)kind, f->p->how.isa, to->cols, f->tokens};
        if (to->needed[kind])
            act_pack_range(&s, to->act[kind], from, stride, range);
    }
}

static void pack_tokens(const struct forward *f, const struct packed *to, const float *from, int t0,
                        int t1)
{
    pack_range(f, to, from, (size_t)to->cols, &(struct act_range){t0, t1, 0, to->cols});
}

/* values: of a token, times what is done with each (a norm: 1). Few tokens are done by the caller
 * alone, without a barrier. */
static void run_tokens(struct forward *f, pool_fn *fn, struct token_phase *phase, double values)
{
    int least = (int)(LEAST_VALUES / values) + 1, share = f->tokens / (4 * f->threads);
    phase->f = f;
    pool_run(f->pool, fn, phase, f->tokens, most(share < MOST_TOKENS ? share : MOST_TOKENS, least));
}

/* normed = norm(x), packed for its readers */
static void norm_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    const struct token_phase *ph = arg;
    struct forward *f = ph->f;
    int width = f->p->width;
    (void)worker;
    for (int64_t t = first; t < last; t++)
        norm_row(f, ph->norm, f->x + t * width, f->normed + t * width);
    pack_tokens(f, &f->in, f->normed, (int)first, (int)last);
}

/* x = embedding of the token */
static void embed_token(const struct forward *f, int64_t t)
{
    const struct plan *p = f->p;
    const struct row *r = &f->rows[t];
    float *x = f->x + t * p->width;
    matrix_row(&p->embedding, f->batch->items[r->item].tokens[r->token], x);
    if (p->embed_scale != 1.0f)
        f->vec->scale(x, p->embed_scale, p->width);
    const struct rope *ropes = p->ropes[f->batch->items[r->item].variant];
    for (int i = 0; i < p->n_ropes; i++)
        rope_table(&ropes[i], r->position, f->tables[i] + t * ropes[i].dims);
}

static void embed_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    for (int64_t t = first; t < last; t++)
        embed_token(((struct token_phase *)arg)->f, t);
    norm_tokens(arg, worker, first, last);
}

/* x += y, y normed first where the layer has a norm there */
static void add_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    const struct token_phase *ph = arg;
    struct forward *f = ph->f;
    int width = f->p->width;
    for (int64_t t = first; t < last; t++) {
        float *y = f->y + t * width;
        if (ph->post->weight)
            norm_row(f, ph->post, y, y);
        f->vec->add(f->x + t * width, y, width);
    }
    if (ph->norm)
        norm_tokens(arg, worker, first, last);
}

static void norm_heads(const struct forward *f, float *x, const float *weight, int heads)
{
    int size = f->p->face.key_size;
    for (int h = 0; weight && h < heads; h++)
        f->vec->rms_norm(x + h * size, x + h * size, weight, size, f->p->eps);
}

/* Norms and rotates queries and keys; stores keys and values. */
static void store_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    const struct token_phase *ph = arg;
    struct forward *f = ph->f;
    const struct layer *l = ph->layer;
    const struct attn_shape *a = &l->attn;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        const struct row *r = &f->rows[t];
        float *q = f->q + t * a->heads * a->key_size;
        float *k = f->k + t * a->kv_heads * a->key_size;
        norm_heads(f, q, l->q_norm, a->heads);
        norm_heads(f, k, l->k_norm, a->kv_heads);
        if (l->rope != NO_ROPE) {
            const struct rope *rope = &f->p->ropes[0][l->rope];
            const float *table = f->tables[l->rope] + t * rope->dims;
            rope_apply(rope, table, q, a->heads, a->key_size);
            rope_apply(rope, table, k, a->kv_heads, a->key_size);
        }
        char *block = kv_seq_blocks(f->batch->items[r->item].seq,
                                    l->group)[r->position / KV_BLOCK_TOKENS];
        attn_store(a, block + l->offset, r->position % KV_BLOCK_TOKENS, k,
                   f->v + t * a->kv_heads * a->value_size);
    }
}

static void pack_mixed(void *arg, int worker, int64_t first, int64_t last)
{
    struct forward *f = ((struct token_phase *)arg)->f;
    (void)worker;
    pack_tokens(f, &f->mid, f->mixed, (int)first, (int)last);
}

/* ---- products: several matrices that read the same rows, in one phase ---- */

struct product {
    const struct linear *linear;
    float *out; /* out[token * stride + row - row0] */
    size_t stride;
    int row0;
};

/* All rows: out is [tokens][rows]. */
static struct product product_of(const struct linear *l, float *out)
{
    return (struct product){l, out, (size_t)l->matrix.rows, 0};
}

struct product_phase {
    struct forward *f;
    const struct packed *from;
    const struct product *products;
    int chunk[3], chunks[3];
};

struct rows {
    int first, last;
};

static void add_bias(const struct product *pr, int tokens, struct rows rows)
{
    for (int t = 0; t < tokens; t++)
        for (int r = rows.first; r < rows.last; r++)
            pr->out[(size_t)t * pr->stride + (size_t)(r - pr->row0)] += pr->linear->bias[r];
}

static void multiply_rows(const struct forward *f, int worker, const struct packed *from,
                          const struct product *pr, struct rows rows)
{
    const struct matrix *m = &pr->linear->matrix;
    const struct matrix_job job = {
        .act = from->act[matrix_act_kind(m->format, m->how)],
        .tokens = f->tokens,
        .out = pr->out,
        .out_stride = pr->stride,
        .out_row = pr->row0,
        .scratch = f->worker_scratch + (size_t)worker * f->worker_bytes,
    };
    matrix_mul(m, &job, rows.first, rows.last);
    if (pr->linear->bias)
        add_bias(pr, f->tokens, rows);
}

static struct rows chunk_rows(const struct matrix *m, int chunk, int size)
{
    int first = chunk * size;
    return (struct rows){first, first + size < m->rows ? first + size : m->rows};
}

static void run_chunks(struct forward *f, pool_fn *fn, void *phase, int chunks)
{
    shares_set(f->shares, f->threads, chunks);
    pool_run(f->pool, fn, phase, chunks, 1);
}

static int take_chunk(struct forward *f, int worker)
{
    return shares_take(f->shares, f->threads, worker);
}

static void multiply_chunks(void *arg, int worker, int64_t first, int64_t last)
{
    const struct product_phase *ph = arg;
    for (int64_t i = first; i < last; i++) {
        int chunk = take_chunk(ph->f, worker), which = 0;
        while (chunk >= ph->chunks[which])
            chunk -= ph->chunks[which++];
        const struct product *pr = &ph->products[which];
        multiply_rows(ph->f, worker, ph->from, pr,
                      chunk_rows(&pr->linear->matrix, chunk, ph->chunk[which]));
    }
}

static void multiply(struct forward *f, const struct packed *from, const struct product *products,
                     int n)
{
    struct product_phase ph = {.f = f, .from = from, .products = products};
    int total = 0;
    for (int i = 0; i < n; i++) {
        const struct matrix *m = &products[i].linear->matrix;
        ph.chunk[i] = matrix_chunk(m, f->tokens, f->threads);
        ph.chunks[i] = (m->rows + ph.chunk[i] - 1) / ph.chunk[i];
        total += ph.chunks[i];
    }
    run_chunks(f, multiply_chunks, &ph, total);
}

/* ---- gate and up: rows of both, and what becomes of them, in one phase ---- */

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
    for (int t0 = 0, t1; t0 < f->tokens; t0 = t1) {
        t1 = t0 + MOST_TOKENS < f->tokens ? t0 + MOST_TOKENS : f->tokens;
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
    float *at = (float *)(f->worker_scratch + (size_t)worker * f->worker_bytes + f->matrix_bytes);
    struct product gate = {&ph->layer->gate, at, (size_t)ph->chunk, 0};
    struct product up = {&ph->layer->up, at + f->tokens * ph->chunk, (size_t)ph->chunk, 0};
    for (int64_t i = first; i < last; i++) {
        struct rows rows = chunk_rows(&ph->layer->gate.matrix, take_chunk(f, worker), ph->chunk);
        gate.row0 = up.row0 = rows.first;
        multiply_rows(f, worker, &f->in, &gate, rows);
        multiply_rows(f, worker, &f->in, &up, rows);
        activate_rows(f, &gate, up.out, rows);
    }
}

static void multiply_gate(struct forward *f, const struct layer *l)
{
    struct gate_phase ph = {f, l, matrix_chunk(&l->gate.matrix, f->tokens, f->threads)};
    assert(2 * sizeof(float) * (size_t)(f->tokens * ph.chunk) <= f->worker_bytes - f->matrix_bytes);
    run_chunks(f, gate_chunks, &ph, (f->p->ffn + ph.chunk - 1) / ph.chunk);
}

/* ---- a layer ---- */

/* How many of an item's tokens are still computed: its last ones. */
static int item_tokens(const struct forward *f, const struct batch_item *item)
{
    return f->wanted_only ? item->wanted : item->n;
}

static void run_attention(struct forward *f, const struct layer *l)
{
    const struct attn_shape *a = &l->attn;
    size_t q_width = (size_t)(a->heads * a->key_size),
           out_width = (size_t)(a->heads * a->value_size);
    size_t t = 0;
    int spans = 0;
    for (int i = 0; i < f->batch->n_items; i++) {
        const struct batch_item *item = &f->batch->items[i];
        int n = item_tokens(f, item);
        if (n == 0)
            continue;
        f->spans[spans++] = (struct attn_span){
            .q = f->q + t * q_width,
            .out = f->mixed + t * out_width,
            .q_stride = q_width,
            .out_stride = out_width,
            .n = n,
            .position = item->position + item->n - n,
            .blocks = kv_seq_blocks(item->seq, l->group),
            .offset = l->offset,
        };
        t += (size_t)n;
    }
    attn_run(f->pool, a, f->spans, spans, f->attn_scratch);
}

/* In the last layer, once keys and values are stored: rows that nobody will ask for are left
 * behind, and those that stay move together. kept: where each has gone. */
static void keep_wanted(struct forward *f, const struct layer *l)
{
    size_t width = (size_t)f->p->width, q_width = (size_t)(l->attn.heads * l->attn.key_size);
    int n = 0;
    for (int t = 0; t < f->tokens; t++) {
        const struct batch_item *item = &f->batch->items[f->rows[t].item];
        f->kept[t] = n;
        if (f->rows[t].token < item->n - item->wanted)
            continue;
        if (n < t) {
            memcpy(f->x + (size_t)n * width, f->x + (size_t)t * width, width * sizeof *f->x);
            memcpy(f->q + (size_t)n * q_width, f->q + (size_t)t * q_width, q_width * sizeof *f->q);
        }
        n++;
    }
    f->wanted_only = n < f->tokens;
    f->tokens = n;
}

/* Queries, keys and values. */
static void project(struct forward *f, const struct layer *l)
{
    const struct attn_shape *a = &l->attn;
    const struct product qkv[] = {product_of(&l->q, f->q), product_of(&l->k, f->k),
                                  product_of(&l->v, f->v)};
    struct token_phase ph = {.layer = l};
    multiply(f, &f->in, qkv, 3);
    run_tokens(f, store_tokens, &ph, 2.0 * (a->heads + a->kv_heads) * a->key_size);
}

static void mix(struct forward *f, const struct layer *l)
{
    const struct product out = product_of(&l->o, f->y);
    struct token_phase ph = {.layer = l};
    run_attention(f, l);
    run_tokens(f, pack_mixed, &ph, 0.3 * f->mid.cols);
    multiply(f, &f->mid, &out, 1);
}

static void ffn_half(struct forward *f, const struct layer *l)
{
    const struct product down = product_of(&l->down, f->y);
    multiply_gate(f, l);
    multiply(f, &f->wide, &down, 1);
}

/* f->in holds the layer's normed input before, and the next layer's (norm `next`) after. */
static void run_layer(struct forward *f, const struct layer *l, const struct norm *next)
{
    struct token_phase after_attention = {.post = &l->attn_post, .norm = &l->ffn_norm};
    struct token_phase after_ffn = {.post = &l->ffn_post, .norm = next};
    struct token_phase again = {.norm = &l->attn_norm};
    project(f, l);
    if (!next)
        keep_wanted(f, l);
    if (f->tokens == 0)
        return;
    if (f->p->arch->parallel) { /* the feed-forward reads the same input as the attention */
        after_attention.norm = NULL;
        if (f->wanted_only)
            run_tokens(f, norm_tokens, &again, f->p->width);
    }
    mix(f, l);
    run_tokens(f, add_tokens, &after_attention, f->p->width);
    ffn_half(f, l);
    run_tokens(f, add_tokens, &after_ffn, f->p->width);
}

/* ---- the step ---- */

static void list_rows(struct forward *f, const struct batch *batch)
{
    int t = 0;
    for (int i = 0; i < batch->n_items; i++) {
        assert(batch->items[i].variant >= 0 && batch->items[i].variant < f->p->n_variants);
        for (int j = 0; j < batch->items[i].n; j++) {
            assert(t < f->most_tokens);
            f->rows[t++] = (struct row){i, j, batch->items[i].position + j};
        }
    }
    f->batch = batch;
    f->tokens = t;
    f->wanted_only = false;
}

int forward_step(struct forward *f, const struct batch *batch)
{
    const struct plan *p = f->p;
    struct token_phase first = {.norm = &p->layers[0].attn_norm};
    list_rows(f, batch);
    if (f->tokens == 0)
        return 0;
    run_tokens(f, embed_tokens, &first, 4.0 * p->width);
    for (int i = 0; i < p->face.layers; i++) {
        if (batch->stop && atomic_load_explicit(batch->stop, memory_order_relaxed))
            return ERR_BUSY;
        run_layer(f, &p->layers[i], i + 1 < p->face.layers ? &p->layers[i + 1].attn_norm : NULL);
    }
    return 0;
}

void forward_logits(struct forward *f, const int *rows, int n, float *out)
{
    const struct plan *p = f->p;
    const struct product head = product_of(&p->output, out);
    assert(n <= MODEL_LOGIT_ROWS);
    for (int i = 0; i < n; i++)
        norm_row(f, &p->output_norm, f->x + (size_t)f->kept[rows[i]] * (size_t)p->width,
                 f->normed + (size_t)i * (size_t)p->width);
    int tokens = f->tokens;
    f->tokens = n;
    pack_tokens(f, &f->in, f->normed, 0, n);
    multiply(f, &f->in, &head, 1);
    f->tokens = tokens;
    for (int i = 0; i < n; i++) {
        float *row = out + (size_t)i * (size_t)p->face.vocabulary;
        if (p->logit_scale != 1.0f)
            f->vec->scale(row, p->logit_scale, p->face.vocabulary);
        if (p->logit_softcap > 0.0f)
            f->vec->softcap(row, p->logit_softcap, p->face.vocabulary);
    }
}
