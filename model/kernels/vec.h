#ifndef MODEL_KERNELS_VEC_H
#define MODEL_KERNELS_VEC_H

#include "cpu.h"

/* Row operations of the forward pass. Every level gives the same bits: sums run in 32 virtual lanes
 * (lane j takes elements j, j + 32, ... in order, the row padded with +0), which are then halved,
 * lane[i] += lane[i + n] for n = 16, 8, 4, 2, 1; the rest is one rounding per written operation. */

struct vec_ops {
    /* out = x / sqrt(mean(x^2) + eps) * weight. weight NULL: 1. out may be x. */
    void (*rms_norm)(float *out, const float *x, const float *weight, int n, float eps);
    /* out = (x - mean) / sqrt(variance + eps) * weight + bias. weight, bias may be NULL. out may be
     * x. */
    void (*layer_norm)(float *out, const float *x, const float *weight, const float *bias, int n,
                       float eps);
    void (*add)(float *x, const float *y, int n);      /* x += y */
    void (*scale)(float *x, float factor, int n);      /* x *= factor */
    void (*silu_mul)(float *x, const float *y, int n); /* x = x * sigmoid(x) * y */
    void (*gelu_mul)(float *x, const float *y, int n); /* x = gelu(x), tanh form, * y */
    void (*softcap)(float *x, float cap, int n);       /* x = cap * tanh(x / cap) */
};

const struct vec_ops *vec_ops(enum isa level);

#endif
