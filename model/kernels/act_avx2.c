#include "kernels/act_x86.h"
#include "kernels/avx2.h"

struct rounded {
    __m256i q[4];
    float d;
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

/* Of each 4 lanes, in all of them. */
INLINE __m256i sum4(__m256i v)
{
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
}

INLINE __m128i sum8(__m256i v)
{
    v = sum4(v);
    return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

INLINE struct rounded block_round(const float *x, int limit)
{
    __m256i v[4];
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_loadu_si256((const __m256i *)(x + 8 * i));
    struct act_scale s = act_scale(most_bits(v), limit);
    struct rounded r = {.d = s.d};
    __m256i keep = _mm256_set1_epi32(s.inverse > 0 ? -1 : 0); /* what is dropped may be NaN */
    UNROLL for (int i = 0; i < 4; i++) r.q[i] = _mm256_and_si256(
        keep,
        _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(v[i]), _mm256_set1_ps(s.inverse))));
    return r;
}

/* Pieces of four bytes that the two lanes hold in turns: lane 0 those of even place. */
INLINE __m256i in_order(__m256i v)
{
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE __m256i to_bytes(const __m256i *q)
{
    return in_order(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])));
}

/* Of even k, or of odd k. */
INLINE __m256i to_words(const __m256i *q, bool odd)
{
    __m256i v[2];
    UNROLL for (int i = 0; i < 2; i++)
    {
        __m256 a = _mm256_castsi256_ps(q[2 * i]), b = _mm256_castsi256_ps(q[2 * i + 1]);
        v[i] = _mm256_castps_si256(odd ? _mm256_shuffle_ps(a, b, 0xdd)
                                       : _mm256_shuffle_ps(a, b, 0x88));
    }
    return in_order(_mm256_packs_epi32(v[0], v[1]));
}

INLINE void store_bytes(int8_t *to, __m256i q)
{
    _mm256_storeu_si256((__m256i *)to, q);
}

/* The first two, times the factor. */
INLINE int32_t words_times(__m128i words, int factor)
{
    return _mm_cvtsi128_si32(_mm_mullo_epi16(words, _mm_set1_epi16((int16_t)factor)));
}

void act_row8_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block *out = (struct act_block *)records;
        struct rounded r = block_round(x, ACT_MAX8);
        __m256i q = to_bytes(r.q);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
        pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
        __m128i half0 = _mm256_castsi256_si128(pairs), half1 = _mm256_extracti128_si256(pairs, 1);
        const __m128i ones = _mm_set1_epi16(1);
        store_sums(out, r.d, _mm_madd_epi16(half0, ones), _mm_madd_epi16(half1, ones));
        out->n8 = words_times(_mm_add_epi16(half0, half1), -8);
        out->n32[0] = words_times(half0, -32);
        out->n32[1] = words_times(half1, -32);
        store_bytes(out->q, q);
    }
}

/* Everything but the integers themselves. */
INLINE void store_head(struct act_block *out, const struct rounded *r)
{
    store_sums(out, r->d, sum8(_mm256_add_epi32(r->q[0], r->q[1])),
               sum8(_mm256_add_epi32(r->q[2], r->q[3])));
}

INLINE void act_words(const float *x, int blocks, uint8_t *records, size_t step, int limit)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block16 *out = (struct act_block16 *)records;
        struct rounded r = block_round(x, limit);
        store_head(&out->high, &r);
        store_bytes(out->high.q, to_words(r.q, false));
        store_bytes(out->low, to_words(r.q, true));
    }
}

void act_words8_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    act_words(x, blocks, records, step, ACT_MAX8);
}

void act_words16_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    act_words(x, blocks, records, step, ACT_MAX16);
}

void act_row16_avx2(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block16 *out = (struct act_block16 *)records;
        struct rounded r = block_round(x, ACT_MAX16);
        store_head(&out->high, &r);
        __m256i high[4], low[4];
        UNROLL for (int i = 0; i < 4; i++)
        {
            high[i] = _mm256_cvtps_epi32(
                _mm256_mul_ps(_mm256_cvtepi32_ps(r.q[i]), _mm256_set1_ps(1.0f / ACT_PLANE)));
            low[i] = _mm256_sub_epi32(r.q[i],
                                      _mm256_mullo_epi32(high[i], _mm256_set1_epi32(ACT_PLANE)));
        }
        store_bytes(out->high.q, to_bytes(high));
        store_bytes(out->low, to_bytes(low));
    }
}
