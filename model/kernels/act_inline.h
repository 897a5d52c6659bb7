#ifndef MODEL_KERNELS_ACT_INLINE_H
#define MODEL_KERNELS_ACT_INLINE_H

#include "kernels/matrix_layout.h"

#include <float.h>

/* Rounding of activations, in plain C that a compiler can vectorise: each SIMD level compiles it
 * for itself, and every operation is exact or correctly rounded, so that all give the same bits. */

/* Nearest integer, ties to even; |x| < 2^22. */
static inline int32_t round_even(float x)
{
    return (int32_t)(x + 12582912.0f - 12582912.0f);
}

/* Bits of the largest magnitude; as integers they order like the numbers, NaN above infinity. */
static inline uint32_t max_bits(const float *x)
{
    uint32_t bits[32], most = 0;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++)
        bits[i] &= 0x7fffffff;
    for (int i = 0; i < 32; i++)
        most = bits[i] > most ? bits[i] : most;
    return most;
}

/* Rounds 32 values to q with x = d q; returns d. What is too small for a scale becomes 0; one value
 * that is not finite makes d NaN, so that it shows in the result. */
static inline float act_round(const float *x, int limit, int32_t *q)
{
    float most = float_from_bits(max_bits(x));
    bool usable = most >= 1e-30f && most <= FLT_MAX;
    float inverse = usable ? (float)limit / most : 0;
    for (int i = 0; i < 32; i++)
        q[i] = usable ? round_even(x[i] * inverse) : 0;
    return usable ? most / (float)limit : most <= FLT_MAX ? 0.0f : float_from_bits(0x7fc00000);
}

static inline void act_sums(float d, const int32_t *q, struct act_block *out)
{
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < 16; i++)
        sum[0] += q[i];
    for (int i = 16; i < 32; i++)
        sum[1] += q[i];
    int32_t all = sum[0] + sum[1];
    out->d = d;
    out->dsum = d * (float)all;
    out->n8 = -8 * all;
    out->n128 = -128 * all;
    for (int h = 0; h < 2; h++) {
        out->dsum16[h] = d * (float)sum[h];
        out->n32[h] = -32 * sum[h];
    }
}

static inline void act_row8(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        int32_t q[32];
        struct act_block *out = (struct act_block *)records;
        act_sums(act_round(x, ACT_MAX8, q), q, out);
        for (int i = 0; i < 32; i++)
            out->q[i] = (int8_t)q[i];
    }
}

static inline void act_row16(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        int32_t q[32];
        struct act_block16 *out = (struct act_block16 *)records;
        act_sums(act_round(x, ACT_MAX16, q), q, &out->high);
        for (int i = 0; i < 32; i++) {
            int32_t high = round_even((float)q[i] * (1.0f / ACT_PLANE)); /* never a tie */
            out->high.q[i] = (int8_t)high;
            out->low[i] = (int8_t)(q[i] - high * ACT_PLANE);
        }
    }
}

#endif
