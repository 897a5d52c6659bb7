#ifndef MODEL_KERNELS_ACT_X86_H
#define MODEL_KERNELS_ACT_X86_H

#include "kernels/act.h"

#include <immintrin.h>
#include <stddef.h>

/* What act_sums works out, in two vectors: d times (1, all, half 0, half 1), and the integers.
 * half0 and half1 hold a sum in each lane. */
static inline void store_sums(struct act_block *out, float d, __m128i half0, __m128i half1)
{
    __m128i all = _mm_add_epi32(half0, half1);
    __m128i sums = _mm_blend_epi32(_mm_blend_epi32(all, half0, 4), half1, 8);
    __m128i factors = _mm_blend_epi32(sums, _mm_set1_epi32(1), 1);
    _mm_storeu_ps(&out->d, _mm_mul_ps(_mm_cvtepi32_ps(factors), _mm_set1_ps(d)));
    _mm_storeu_si128(
        (__m128i *)&out->n8,
        _mm_sub_epi32(_mm_setzero_si128(), _mm_sllv_epi32(sums, _mm_setr_epi32(3, 7, 5, 5))));
}
_Static_assert(offsetof(struct act_block, n8) == 16 && offsetof(struct act_block, q) == 32,
               "a record begins with four floats and four integers");

#endif
