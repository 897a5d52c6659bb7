#ifndef MODEL_KERNELS_ACT_H
#define MODEL_KERNELS_ACT_H

#include "kernels/matrix_layout.h"

#include <float.h>

/* What rounding a block of activations has in common at every level. Every operation is exact or
 * correctly rounded, so that all levels give the same bits. */

struct act_scale {
    float d, inverse; /* x = d * q, q = x * inverse; inverse 0: all q are 0 */
};

/* most: the largest magnitude's bits; as integers they order like the numbers, NaN above infinity.
 * What is too small for a scale becomes 0; one value that is not finite makes d NaN, so that it
 * shows in the result. */
static inline struct act_scale act_scale(uint32_t most, int limit)
{
    float m = float_from_bits(most);
    if (m >= 1e-30f && m <= FLT_MAX)
        return (struct act_scale){m / (float)limit, (float)limit / m};
    return (struct act_scale){m <= FLT_MAX ? 0.0f : float_from_bits(0x7fc00000), 0};
}

/* sum0, sum1: of q[0, 16) and q[16, 32). */
static inline void act_sums(float d, int32_t sum0, int32_t sum1, struct act_block *out)
{
    int32_t all = sum0 + sum1;
    out->d = d;
    out->dsum = d * (float)all;
    out->dsum16[0] = d * (float)sum0;
    out->dsum16[1] = d * (float)sum1;
    out->n8 = -8 * all;
    out->n128 = -128 * all;
    out->n32[0] = -32 * sum0;
    out->n32[1] = -32 * sum1;
}

#endif
