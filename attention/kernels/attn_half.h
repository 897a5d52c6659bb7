#ifndef ATTENTION_KERNELS_ATTN_HALF_H
#define ATTENTION_KERNELS_ATTN_HALF_H

#include <stdint.h>
#include <string.h>

/* The 16-bit floats in plain C, rounding to nearest even; bit for bit what vcvtps2ph does. */

static inline uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13;
    if (rest >= 0x7c00u << 13) /* infinity, or NaN made quiet */
        return float_from_bits(sign | rest | 0x7f800000u | (h & 0x3ffu ? 0x400000u : 0));
    if (rest >= 0x400u << 13)
        return float_from_bits(sign | (rest + (112u << 23)));
    /* Subnormal: the value is a small integer times 2^-24. */
    float x = (float)(h & 0x3ffu) * 0x1p-24f;
    return float_from_bits(float_bits(x) | sign);
}

static inline uint16_t half_from_float(float x)
{
    uint32_t u = float_bits(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (u >> 13 & 0x3ffu));
    if (u >= 0x477ff000u) /* 65520 and more round to infinity */
        return sign | 0x7c00u;
    if (u < 0x38800000u) {
        /* Below 2^-14: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded. */
        return (uint16_t)(sign | (float_bits(float_from_bits(u) + 0.5f) - float_bits(0.5f)));
    }
    uint32_t odd = u >> 13 & 1;
    return (uint16_t)(sign | ((u - (112u << 23) + 0xfffu + odd) >> 13));
}

static inline float bfloat_to_float(uint16_t h)
{
    return float_from_bits((uint32_t)h << 16);
}

static inline uint16_t bfloat_from_float(float x)
{
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#endif
