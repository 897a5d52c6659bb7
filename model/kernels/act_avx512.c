#include "kernels/act_x86.h"
#include "kernels/avx512.h"

struct rounded {
    __m512i q[2];
    float d;
};

INLINE struct rounded block_round(const float *x, int limit)
{
    __m512i v[2] = {_mm512_loadu_si512(x), _mm512_loadu_si512(x + 16)};
    __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    uint32_t most = _mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(v[0], magnitude), _mm512_and_si512(v[1], magnitude)));
    struct act_scale s = act_scale(most, limit);
    __mmask16 keep = s.inverse > 0 ? 0xffff : 0; /* what is dropped may be NaN */
    struct rounded r = {.d = s.d};
    UNROLL for (int i = 0; i < 2; i++) r.q[i] = _mm512_maskz_cvtps_epi32(
        keep, _mm512_mul_ps(_mm512_castsi512_ps(v[i]), _mm512_set1_ps(s.inverse)));
    return r;
}

INLINE void store_bytes(int8_t *to, __m512i q)
{
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(q));
}

void act_row8_avx512(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block *out = (struct act_block *)records;
        struct rounded r = block_round(x, ACT_MAX8);
        __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(r.q[0])),
                                            _mm512_cvtepi32_epi8(r.q[1]), 1);
        __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
        store_sums(out, r.d, _mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        _mm256_storeu_si256((__m256i *)out->q, q);
    }
}

void act_row16_avx512(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block16 *out = (struct act_block16 *)records;
        struct rounded r = block_round(x, ACT_MAX16);
        store_sums(&out->high, r.d, _mm_set1_epi32(_mm512_reduce_add_epi32(r.q[0])),
                   _mm_set1_epi32(_mm512_reduce_add_epi32(r.q[1])));
        UNROLL for (int i = 0; i < 2; i++)
        {
            __m512i high = _mm512_cvtps_epi32(
                _mm512_mul_ps(_mm512_cvtepi32_ps(r.q[i]), _mm512_set1_ps(1.0f / ACT_PLANE)));
            __m512i taken = _mm512_mullo_epi32(high, _mm512_set1_epi32(ACT_PLANE));
            store_bytes(out->high.q + 16 * i, high);
            store_bytes(out->low + 16 * i, _mm512_sub_epi32(r.q[i], taken));
        }
    }
}
