#ifndef MODEL_KERNELS_AVX512_H
#define MODEL_KERNELS_AVX512_H

#include "kernels/ops.h"

#include <immintrin.h>

/* What the kernels of this level share. Loops over tokens and groups have constant bounds once
 * inlined; unrolled, their arrays are registers. */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

act_row_fn act_row8_avx512, act_row16_avx512;

extern core_fn *const floats_f32_avx512[TILE_MAX + 1], *const floats_f16_avx512[TILE_MAX + 1],
                                                           *const floats_bf16_avx512[TILE_MAX + 1];

INLINE __mmask16 rows_mask(int rows)
{
    return (__mmask16)(rows >= 16 ? 0xffff : rows <= 0 ? 0 : (1 << rows) - 1);
}

INLINE void load_acc(__m512 (*acc)[TILE_MAX], const struct core *c, int g0, int groups, int tokens)
{
    UNROLL for (int g = 0; g < groups; g++) UNROLL for (int t = 0; t < tokens; t++)
        acc[g][t] = c->more
                        ? _mm512_maskz_loadu_ps(rows_mask(c->rows - 16 * (g0 + g)),
                                                c->out + (size_t)t * c->out_stride + 16 * (g0 + g))
                        : _mm512_setzero_ps();
}

INLINE void store_acc(__m512 (*acc)[TILE_MAX], const struct core *c, int g0, int groups, int tokens)
{
    UNROLL for (int g = 0; g < groups; g++) UNROLL for (int t = 0; t < tokens; t++)
        _mm512_mask_storeu_ps(c->out + (size_t)t * c->out_stride + 16 * (g0 + g),
                              rows_mask(c->rows - 16 * (g0 + g)), acc[g][t]);
}

#endif
