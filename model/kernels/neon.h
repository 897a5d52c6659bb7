#ifndef MODEL_KERNELS_NEON_H
#define MODEL_KERNELS_NEON_H

#include "kernels/ops.h"

#include <arm_neon.h>

/* What the kernels of this level share. Loops over tokens and vectors have constant bounds once
 * inlined; unrolled, their arrays are registers. */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* A group of 16 rows is four vectors of 4: [vector][token]. */
enum { VECTORS = 4, MOST = 6 }; /* MOST: tokens of a tile */

void act_row8_neon(const float *x, int blocks, uint8_t *records, size_t step);
void act_row16_neon(const float *x, int blocks, uint8_t *records, size_t step);

extern core_fn *const floats_f32_neon[TILE_MAX + 1], *const floats_f16_neon[TILE_MAX + 1],
                                                         *const floats_bf16_neon[TILE_MAX + 1];

INLINE float32x4_t half_floats(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p)));
}

INLINE float32x4_t bfloat_floats(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)p), 16));
}

/* The first `rows` of 4 floats; the others are 0. */
INLINE float32x4_t load_rows(const float *p, int rows)
{
    float some[4] = {0};
    if (rows >= 4)
        return vld1q_f32(p);
    for (int i = 0; i < rows; i++)
        some[i] = p[i];
    return vld1q_f32(some);
}

INLINE void store_rows(float *p, float32x4_t v, int rows)
{
    float all[4];
    if (rows >= 4) {
        vst1q_f32(p, v);
        return;
    }
    vst1q_f32(all, v);
    for (int i = 0; i < rows; i++)
        p[i] = all[i];
}

INLINE void load_acc(float32x4_t (*acc)[MOST], const struct core *c, int g, int tokens)
{
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        int row = 16 * g + 4 * v;
        UNROLL for (int t = 0; t < tokens; t++)
            acc[v][t] = c->more
                            ? load_rows(c->out + (size_t)t * c->out_stride + row, c->rows - row)
                            : vdupq_n_f32(0);
    }
}

INLINE void store_acc(float32x4_t (*acc)[MOST], const struct core *c, int g, int tokens)
{
    UNROLL for (int v = 0; v < VECTORS; v++)
    {
        int row = 16 * g + 4 * v;
        UNROLL for (int t = 0; t < tokens; t++)
            store_rows(c->out + (size_t)t * c->out_stride + row, acc[v][t], c->rows - row);
    }
}

#endif
