#ifndef ATTENTION_KERNELS_ATTN_EXP_H
#define ATTENTION_KERNELS_ATTN_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The one exp of this program. Every SIMD level performs exactly these steps, so all give the same
 * bits. x = n ln2 + r with |r| <= ln2/2, e^r = 1 + r + r^2 q(r) (q: minimax, relative
 * error 3.1e-9), times 2^n by an addition to the exponent. Less than 1.1 ulp from the true value;
 * what would be below the smallest normal number is 0. A NaN stays a NaN. */
#define EXP_LOG2E  0x1.715476p+0f
#define EXP_LN2_HI 0x1.62e43p-1f
#define EXP_LN2_LO -0x1.05c61p-29f
#define EXP_SHIFT  0x1.8p+23f /* added to |x| < 2^22, the sum's low bits are x rounded to even */
#define EXP_MIN    -87.3365f
#define EXP_MAX    88.72283f /* the greatest x whose result is finite */
#define EXP_C2     0x1.fffffcp-2f
#define EXP_C3     0x1.555492p-3f
#define EXP_C4     0x1.5558f2p-5f
#define EXP_C5     0x1.1239e2p-7f
#define EXP_C6     0x1.6a2434p-10f

static inline float exp_step(float x)
{
    float shifted = fmaf(x, EXP_LOG2E, EXP_SHIFT);
    float n = shifted - EXP_SHIFT;
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float q = fmaf(EXP_C6, r, EXP_C5);
    q = fmaf(q, r, EXP_C4);
    q = fmaf(q, r, EXP_C3);
    q = fmaf(q, r, EXP_C2);
    float y = 1.0f + fmaf(q, r * r, r);
    uint32_t bits, power;
    memcpy(&bits, &y, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 23; /* the shift's own bits leave at the top */
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline float exp_one(float x)
{
    if (x < EXP_MIN)
        return 0.0f;
    if (x > EXP_MAX)
        return INFINITY;
    return x != x ? x : exp_step(x);
}

/* tanh(x) for soft caps: within 1.2e-7 of the true value, absolute. */
static inline float tanh_one(float x)
{
    float e = exp_one(-2.0f * fabsf(x));
    return copysignf((1.0f - e) / (1.0f + e), x);
}

#endif
