#include "kernels/avx512.h"
#include "kernels/fetch.h"

/* Products of float weights and unrounded activations: one fma for each k. */

INLINE __m512 float_weights(const uint8_t *p, enum format_id format)
{
    if (format == FORMAT_F32)
        return _mm512_load_ps(p);
    __m256i v = _mm256_load_si256((const __m256i *)p);
    if (format == FORMAT_F16)
        return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

INLINE void float_core(const struct core *c, enum format_id format, int tokens)
{
    size_t step = format == FORMAT_F32 ? 64 : 32;
    const float *x = (const float *)c->act;
    const uint8_t *w0 = c->values[0], *w1 = c->values[1];
    int times = fetch_times(tokens, false, format == FORMAT_F32 ? 4 : 2);
    __m512 acc[2][TILE_MAX];
    load_acc(acc, c, 0, 2, tokens);
    for (int k = 0; k < c->blocks; k++, w0 += step, w1 += step, x += tokens) {
        __m512 w[2] = {float_weights(w0, format), float_weights(w1, format)};
        if (c->ahead && (step == 64 || k % 2 == 0)) {
            fetch_lines(w0 + c->ahead, MEM_LINE, times);
            fetch_lines(w1 + c->ahead, MEM_LINE, times);
        }
        UNROLL for (int t = 0; t < tokens; t++) UNROLL for (int g = 0; g < 2; g++)
            acc[g][t] = _mm512_fmadd_ps(w[g], _mm512_set1_ps(x[t]), acc[g][t]);
    }
    store_acc(acc, c, 0, 2, tokens);
}

#define TOKENS(X, ...)                                                                             \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__)                                                                              \
    X(3, __VA_ARGS__)                                                                              \
    X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#define ENTRY(n, name, ...) [n] = name##_##n,
#define FLOAT_TOKENS(X, ...)                                                                       \
    TOKENS(X, __VA_ARGS__)                                                                         \
    X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#define FLOAT_CORE(n, name, format)                                                                \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        float_core(c, format, n);                                                                  \
    }
#define FLOAT_CORES(name, format)                                                                  \
    FLOAT_TOKENS(FLOAT_CORE, name, format)                                                         \
    core_fn *const name[TILE_MAX + 1] = {FLOAT_TOKENS(ENTRY, name, )};
FLOAT_CORES(floats_f32_avx512, FORMAT_F32)
FLOAT_CORES(floats_f16_avx512, FORMAT_F16)
FLOAT_CORES(floats_bf16_avx512, FORMAT_BF16)
