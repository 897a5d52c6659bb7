#ifndef MODEL_FORWARD_STATE_H
#define MODEL_FORWARD_STATE_H

#include "forward.h"
#include "kernels/vec.h"
#include "share.h"

/* The forward pass's inside, for its files: forward_scratch.c (buffers), forward_tokens.c (what
 * goes token by token), forward_products.c and forward_attend.c (the phases of a layer), forward.c
 * (layers and steps).
 *
 * A layer is four phases of the pool: queries, keys, values and attention; o; gate and up; down.
 * What reads only part of what a phase makes does not wait for its end: it belongs to the same
 * phase and waits for that part, or is done by whoever brought the last of it. */

/* Most tokens that one worker norms and rounds at a time: they stay in its nearest cache. */
enum { FEW_TOKENS = 16 };

/* Packed activations of one buffer of rows: one form per kind that its readers want of so many
 * tokens. */
struct packed {
    int cols, tokens; /* tokens: of the running step */
    int n_formats;    /* of the matrices that read it */
    enum format_id formats[FORMAT_COUNT];
    void *act[ACT_KIND_COUNT];
};

/* Where a token of the batch comes from. */
struct row {
    int item, token, position;
};

/* A chunk of one of several matrices. */
struct turn {
    int which, chunk;
};

struct forward {
    const struct plan *p;
    struct pool *pool;
    const struct vec_ops *vec;
    int threads, most_tokens;
    /* [most_tokens][...] */
    float *x;      /* the residual stream, width */
    float *normed; /* width */
    float *q, *k, *v;
    float *mixed;                /* heads * value_size */
    float *y;                    /* output of o or down, width */
    float *tables[MOST_ROPES];   /* cos and sin of each token, dims */
    struct packed in, mid, wide; /* width; heads * value_size; ffn */
    struct packed asked;         /* what the output layer reads: width, MODEL_LOGIT_ROWS tokens */
    void *attn_scratch;
    /* One per worker: what matrix_mul wants, then rows of gate and up. */
    char *worker_scratch;
    size_t worker_bytes, matrix_bytes;
    struct attn_span *spans;         /* [most_tokens] */
    struct row *rows;                /* [most_tokens] */
    int *kept;                       /* [most_tokens]: see keep_wanted */
    struct share *shares[2];         /* [threads] */
    struct turn *turns;              /* see forward_attend.c, as for the latches */
    struct latch *computed, *stored; /* [kv heads] */
    struct latch *mixed_left;        /* [most_tokens] */
    /* the running step */
    const struct batch *batch;
    int tokens; /* in the residual stream */
};

/* ---- forward_tokens.c; tokens [t0, t1), any worker ---- */

void norm_row(const struct forward *f, const struct norm *n, const float *x, float *out);
/* from[t * stride]: the range's first value of token t. */
void pack_range(const struct forward *f, const struct packed *to, const float *from, size_t stride,
                const struct act_range *range);
/* All values; rows of `from` lie one after the other. */
void pack_tokens(const struct forward *f, const struct packed *to, const float *from, int t0,
                 int t1);
/* normed = norm(x), and f->in */
void norm_tokens(const struct forward *f, const struct norm *n, int t0, int t1);
/* x = embedding; tables of rotations */
void embed_tokens(const struct forward *f, int t0, int t1);

/* How the output y of a layer's half joins the residual stream: x += post(y); then `next` norms x
 * for what follows. Either norm may be absent: post->weight or next NULL. */
struct joining {
    const struct norm *post, *next;
};
void join_tokens(const struct forward *f, const struct joining *j, int t0, int t1);

/* These kv heads and their query heads: norms and rotates keys (and queries, if they are there),
 * stores keys and values. */
void store_tokens(const struct forward *f, const struct layer *l, bool queries,
                  struct attn_heads heads, int t0, int t1);

/* ---- forward_products.c ---- */

struct product {
    const struct linear *linear;
    float *out; /* out[token * stride + row - row0] */
    size_t stride;
    int row0;
};

struct rows {
    int first, last;
};

/* All rows: out is [tokens][rows]. */
struct product product_of(const struct linear *l, float *out);
struct rows chunk_rows(const struct matrix *m, int chunk, int size);
/* Tokens [t0, t1) as in matrix.h. Any worker. */
void multiply_rows(const struct forward *f, int worker, const struct packed *from,
                   const struct product *pr, struct rows rows, int t0, int t1);

/* Phases. out = l(from), then each token joins the residual stream; join NULL: it does not. */
void multiply(struct forward *f, const struct packed *from, const struct linear *l, float *out,
              const struct joining *join);
/* f->wide = activation(gate(f->in)) * up(f->in) */
void multiply_gate(struct forward *f, const struct layer *l);

/* ---- forward_attend.c ---- */

/* A phase: q, k and v of f->in; keys and values stored; f->mid = attention of the spans, which may
 * be none. */
void attend(struct forward *f, const struct layer *l, int n_spans);

#endif
