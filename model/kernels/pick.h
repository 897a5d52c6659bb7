#ifndef MODEL_KERNELS_PICK_H
#define MODEL_KERNELS_PICK_H

#include "cpu.h"

/* What choosing a token does with whole rows of logits. Every level gives the same bits: element by
 * element it is IEEE arithmetic without contraction, and a sum is that of blocks of 256: four lanes
 * of doubles (lane j takes elements j, j + 4, ... in order, the row padded with +0), then
 * (lane 0 + lane 2) + (lane 1 + lane 3). */

enum { PICK_BLOCK = 256 };

struct pick_ops {
    /* out[b] = the largest of the b-th `size` elements; -INFINITY: none is above it. NaN is passed
     * over. */
    void (*most)(const float *w, int n, int size, float *out);
    /* out[i] = exp((w[i] - most) * scale) where that is at most 1 (error below 1e-7); 0 below
     * exp(-87), and for NaN. out may be w. */
    void (*exp)(float *out, const float *w, int n, float most, float scale);
    /* out[b] = the sum of the b-th PICK_BLOCK elements. */
    void (*sums)(const float *w, int n, double *out);
};

/* Of the level in use: the best that this CPU has, unless pick_set_isa was called. */
const struct pick_ops *pick_ops(void);
const struct pick_ops *pick_ops_of(enum isa level);
void pick_set_isa(enum isa level); /* while no other thread chooses */

#endif
