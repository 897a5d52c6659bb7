#include "kernels/act.h"
#include "kernels/avx2.h"

struct rounded {
    __m256i q[4];
};

INLINE uint32_t most_bits(const __m256i *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; i++)
        most = _mm256_max_epu32(most, _mm256_and_si256(x[i], magnitude));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

INLINE int32_t sum8(__m256i v)
{
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

INLINE struct rounded act_block_round(const float *x, int limit, struct act_block *out)
{
    __m256i v[4];
    struct rounded r;
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_si256((const __m256i *)(x + 8 * i));
    struct act_scale s = act_scale(most_bits(v), limit);
    __m256i keep = _mm256_set1_epi32(s.inverse > 0 ? -1 : 0); /* what is dropped may be NaN */
    UNROLL for (int i = 0; i < 4; i++) r.q[i] = _mm256_and_si256(
        keep,
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(v[i]), _mm256_set1_ps(s.inverse))));
    act_sums(s.d, sum8(_mm256_add_epi32(r.q[0], r.q[1])), sum8(_mm256_add_epi32(r.q[2], r.q[3])),
             out);
    return r;
}

INLINE void store_bytes(int8_t *to, const __m256i *q)
{
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to, v);
}

void act_row8_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block *out = (struct act_block *)records;
        struct rounded r = act_block_round(x, ACT_MAX8, out);
        store_bytes(out->q, r.q);
    }
}

void act_row16_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block16 *out = (struct act_block16 *)records;
        struct rounded r = act_block_round(x, ACT_MAX16, &out->high);
        __m256i high[4], low[4];
        UNROLL for (int i = 0; i < 4; i++)
        {
            high[i] = _mm256_cvtps_epi32(
                _mm256_mul_ps(_mm256_cvtepi32_ps(r.q[i]), _mm256_set1_ps(1.0f / ACT_PLANE)));
            low[i] = _mm256_sub_epi32(r.q[i],
                                      _mm256_mullo_epi32(high[i], _mm256_set1_epi32(ACT_PLANE)));
        }
        store_bytes(out->high.q, high);
        store_bytes(out->low, low);
    }
}
