#ifndef MODEL_KERNELS_AVX2_H
#define MODEL_KERNELS_AVX2_H

#include "kernels/ops.h"

#include <immintrin.h>

/* What the kernels of this level share. Loops over tokens and groups have constant bounds once
 * inlined; unrolled, their arrays are registers. */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Rows are taken in halves of a group: [half][token]. */
enum { MOST = 6 }; /* tokens of a tile */

act_row_fn act_row8_avx2, act_row16_avx2, act_words8_avx2, act_words16_avx2;

extern core_fn *const floats_f32_avx2[TILE_MAX + 1], *const floats_f16_avx2[TILE_MAX + 1],
                                                         *const floats_bf16_avx2[TILE_MAX + 1];

INLINE __m256i rows_mask(int rows)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(rows), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Rows that do not exist are masked. Masked stores are slow (a dozen cycles each on Zen 3), so a
 * half that is whole goes without; masked loads are as fast as others. */
INLINE void load_acc(__m256 (*acc)[MOST], const struct core *c, int g, int tokens)
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        int row = 16 * g + 8 * h;
        UNROLL for (int t = 0; t < tokens; t++)
            acc[h][t] = c->more ? _mm256_maskload_ps(c->out + (size_t)t * c->out_stride + row,
                                                     rows_mask(c->rows - row))
                                : _mm256_setzero_ps();
    }
}

INLINE void store_acc(__m256 (*acc)[MOST], const struct core *c, int g, int tokens)
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        int row = 16 * g + 8 * h;
        bool whole = c->rows - row >= 8;
        float *out = c->out + row;
        __m256i mask = rows_mask(c->rows - row);
        UNROLL for (int t = 0; t < tokens && whole; t++)
            _mm256_storeu_ps(out + (size_t)t * c->out_stride, acc[h][t]);
        UNROLL for (int t = 0; t < tokens && !whole; t++)
            _mm256_maskstore_ps(out + (size_t)t * c->out_stride, mask, acc[h][t]);
    }
}

#endif
