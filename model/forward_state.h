#ifndef MODEL_FORWARD_STATE_H
#define MODEL_FORWARD_STATE_H

#include "forward.h"
#include "kernels/vec.h"
#include "share.h"

/* The forward pass's inside, for its two files: forward_scratch.c (buffers) and forward.c (phases,
 * layers, steps). */

enum { ACT_KINDS = 4 };

/* Packed activations of one buffer of rows: one form per kind that its readers need. */
struct packed {
    int cols;
    bool needed[ACT_KINDS];
    void *act[ACT_KINDS];
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
    void *attn_scratch;
    /* One per worker: what matrix_mul wants, then rows of gate and up. */
    char *worker_scratch;
    size_t worker_bytes, matrix_bytes;
    struct attn_span *spans; /* [most_tokens] */
    struct row *rows;        /* [most_tokens] */
    int *kept;               /* [most_tokens]: see keep_wanted */
    struct share *shares;    /* [threads] */
    /* the running step */
    const struct batch *batch;
    int tokens;
    bool wanted_only; /* the others have been left behind */
};

/* Where a token of the batch comes from. */
struct row {
    int item, token, position;
};

#endif
