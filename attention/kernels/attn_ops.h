#ifndef ATTENTION_KERNELS_ATTN_OPS_H
#define ATTENTION_KERNELS_ATTN_OPS_H

#include "attention.h"

/* The kernels of attention: plain C (attn_ref.c) is the definition of right, and each SIMD level
 * gives the same bits.
 *
 * One layer's part of a cache block holds, per kv head, a key page and then a value page of
 * ATTN_LANES positions:
 *   f16, bf16, f32   keys [key_size][32], values [32][value_pad]
 *   q8_0             keys and values as groups of 32 dimensions (the last one padded), each
 *                    { f16 scale[32] of the positions; int8 },
 *                    with int8 [32 dimensions][32 positions] for keys, and
 *                    int8 [32 positions][32 dimensions] for values
 * An element of q8_0 is int8 * scale, which is exact in float: the kernels of all types are the
 * same arithmetic on floats. */

#define ATTN_LANES       32
#define ATTN_CHUNK       512 /* positions that share one running maximum and sum */
#define ATTN_GROUP       32  /* q8_0: dimensions that share a scale */
#define ATTN_GROUP_BYTES (ATTN_LANES * 2 + ATTN_LANES * ATTN_GROUP)

/* A key page, a value page, and where the next ones are. */
struct attn_page {
    const void *key, *value;
    const void *next_key, *next_value; /* to prefetch; always readable */
    int key_size;
    int value_pad;      /* value_size rounded up: a multiple of 16; of 32 for q8_0 */
    int position;       /* of lane 0 */
    int first, last;    /* lanes [first, last) are seen by the rows; the others may hold anything */
    float cap, inv_cap; /* soft cap and 1 / cap; 0: none */
};

/* Rows (queries) that share a kv head, and their running state. */
struct attn_rows {
    int n;
    const float *query;  /* [n][key_size], times the scale of scores */
    float *weight;       /* [n][32]: scores, then softmax weights */
    float *mix;          /* [n][value_pad]: sum of weight * value */
    float *top;          /* [n] maximum so far; -inf at first */
    float *sum;          /* [n] sum of weights so far, relative to top */
    float *rescale;      /* [n] what softmax wants of mix before this page is added */
    const float *slope;  /* [n] ALiBi, or NULL */
    const int *position; /* [n] */
};

struct attn_ops {
    /* weight[r][lane] = query[r] . key[lane]: from +0, one chain of fma in order of dimension.
     * All 32 lanes. */
    void (*scores[KV_TYPE_COUNT])(const struct attn_page *, const struct attn_rows *);
    /* Scores to weights, over lanes [first, last); others become 0.
     *   x = cap * tanh(x / cap), when capped
     *   x = fma(slope, key position - query position, x), with slopes
     *   top' = max(top, x...), rescale = exp(top - top'), x = exp(x - top')
     *   sum = fma(sum, rescale, tree(x)); tree: for n = 16, 8, 4, 2, 1: x[i] += x[i + n], i < n */
    void (*softmax)(const struct attn_page *, const struct attn_rows *);
    /* mix = mix * rescale, then one chain of fma(weight[lane], value[lane], mix) in order of lane
     * over [first, last); the others are not read. */
    void (*mix[KV_TYPE_COUNT])(const struct attn_page *, const struct attn_rows *);
    /* a[i] = fma(b[i], scale_b, a[i] * scale_a); n is a multiple of 16. */
    void (*merge)(float *a, const float *b, float scale_a, float scale_b, int n);
    void (*exp)(float *x, size_t n);
    void (*to_f16)(const float *x, uint16_t *out, int n);
    void (*to_bf16)(const float *x, uint16_t *out, int n);
};

/* The table of a level's file, which names its functions like this. */
#define ATTN_OPS                                                                                   \
    {                                                                                              \
        .scores = {[KV_F16] = scores_f16,                                                          \
                   [KV_BF16] = scores_bf16,                                                        \
                   [KV_F32] = scores_f32,                                                          \
                   [KV_Q8_0] = scores_q8_0},                                                       \
        .mix =                                                                                     \
            {[KV_F16] = mix_f16, [KV_BF16] = mix_bf16, [KV_F32] = mix_f32, [KV_Q8_0] = mix_q8_0},  \
        .softmax = softmax, .merge = merge, .exp = exp_all, .to_f16 = to_f16, .to_bf16 = to_bf16,  \
    }

/* Fills all slots, each with the best there is up to `most` (at most cpu_isa()). */
void attn_ops_fill(struct attn_ops *ops, enum isa most);
/* The table in force. */
const struct attn_ops *attn_ops(void);

/* What each file puts into the table. */
#define ISA(id, name, needs) void attn_ops_##name(struct attn_ops *ops);
#include "isa.def"
#undef ISA

#endif
