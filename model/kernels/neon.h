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

act_row_fn act_row8_neon, act_row16_neon;

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

/* Rows of the group that exist, for one token; the accumulators of the others go to a spare place.
 */
INLINE void load_acc(float32x4_t (*acc)[MOST], const struct core *c, int g, int tokens)
{
    int rows = c->rows - 16 * g;
    UNROLL for (int t = 0; t < tokens; t++)
    {
        float spare[MATRIX_GROUP];
        const float *from = c->out + (size_t)t * c->out_stride + 16 * g;
        if (c->more && rows < MATRIX_GROUP)
            from = memcpy(spare, from, (size_t)rows * sizeof *from);
        UNROLL for (int v = 0; v < VECTORS; v++) acc[v][t] = c->more ? vld1q_f32(from + 4 * v)
                                                                     : vdupq_n_f32(0);
    }
}

INLINE void store_acc(float32x4_t (*acc)[MOST], const struct core *c, int g, int tokens)
{
    int rows = c->rows - 16 * g;
    UNROLL for (int t = 0; t < tokens; t++)
    {
        float spare[MATRIX_GROUP], *out = c->out + (size_t)t * c->out_stride + 16 * g;
        float *to = rows < MATRIX_GROUP ? spare : out;
        UNROLL for (int v = 0; v < VECTORS; v++) vst1q_f32(to + 4 * v, acc[v][t]);
        if (to == spare)
            memcpy(out, spare, (size_t)rows * sizeof *out);
    }
}

#endif
