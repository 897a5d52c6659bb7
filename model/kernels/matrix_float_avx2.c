#include "kernels/avx2.h"

/* Products of float weights and unrounded activations: one fma for each k. */

INLINE __m256 float_weights(const uint8_t *p, enum format_id format)
{
    if (format == FORMAT_F32)
        return _mm256_load_ps((const float *)p);
    __m128i v = _mm_load_si128((const __m128i *)p);
    if (format == FORMAT_F16)
        return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

INLINE void float_core(const struct core *c, enum format_id format, int tokens)
{
    size_t step = format == FORMAT_F32 ? 64 : 32;
    for (int g = 0; g < 2 && c->rows > 16 * g; g++) {
        const float *x = (const float *)c->act;
        const uint8_t *w = c->values[g];
        __m256 acc[2][MOST];
        load_acc(acc, c, g, tokens);
        for (int k = 0; k < c->blocks; k++, w += step, x += tokens) {
            __m256 v[2] = {float_weights(w, format), float_weights(w + step / 2, format)};
            if (c->ahead)
                _mm_prefetch((const char *)w + c->ahead, _MM_HINT_T1);
            UNROLL for (int t = 0; t < tokens; t++)
            {
                __m256 a = _mm256_set1_ps(x[t]);
                UNROLL for (int h = 0; h < 2; h++) acc[h][t] = _mm256_fmadd_ps(v[h], a, acc[h][t]);
            }
        }
        store_acc(acc, c, g, tokens);
    }
}

#define TOKENS(X, ...)       X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define ENTRY(n, name, ...)  [n] = name##_##n,
#define FLOAT_TOKENS(X, ...) TOKENS(X, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define FLOAT_CORE(n, name, format)                                                                \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        float_core(c, format, n);                                                                  \
    }
#define FLOAT_CORES(name, format)                                                                  \
    FLOAT_TOKENS(FLOAT_CORE, name, format)                                                         \
    core_fn *const name[TILE_MAX + 1] = {FLOAT_TOKENS(ENTRY, name, )};
FLOAT_CORES(floats_f32_avx2, FORMAT_F32)
FLOAT_CORES(floats_f16_avx2, FORMAT_F16)
FLOAT_CORES(floats_bf16_avx2, FORMAT_BF16)
