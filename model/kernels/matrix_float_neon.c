#include "kernels/neon.h"

/* Products of float weights and unrounded activations: one fma for each k. */

INLINE float32x4_t float_weights(const uint8_t *p, enum format_id format)
{
    return format == FORMAT_F32   ? vld1q_f32((const float *)p)
           : format == FORMAT_F16 ? half_floats(p)
                                  : bfloat_floats(p);
}

INLINE void float_core(const struct core *c, enum format_id format, int tokens)
{
    size_t step = format == FORMAT_F32 ? 16 : 8;
    for (int g = 0; g < 2 && c->rows > 16 * g; g++) {
        const float *x = (const float *)c->act;
        const uint8_t *w = c->values[g];
        float32x4_t acc[VECTORS][MOST], v[VECTORS];
        load_acc(acc, c, g, tokens);
        for (int k = 0; k < c->blocks; k++, w += VECTORS * step, x += tokens) {
            UNROLL for (int i = 0; i < VECTORS; i++)
                v[i] = float_weights(w + (size_t)i * step, format);
            if (c->ahead)
                __builtin_prefetch(w + c->ahead, 0, 2);
            UNROLL for (int t = 0; t < tokens; t++)
            {
                float32x4_t a = vld1q_dup_f32(x + t);
                UNROLL for (int i = 0; i < VECTORS; i++) acc[i][t] = vfmaq_f32(acc[i][t], v[i], a);
            }
        }
        store_acc(acc, c, g, tokens);
    }
}

#define TOKENS(X, ...)                                                                             \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__)                                                                              \
    X(3, __VA_ARGS__)                                                                              \
    X(4, __VA_ARGS__)                                                                              \
    X(5, __VA_ARGS__)                                                                              \
    X(6, __VA_ARGS__)
#define ENTRY(n, name, ...) [n] = name##_##n,
#define FLOAT_CORE(n, name, format)                                                                \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        float_core(c, format, n);                                                                  \
    }
#define FLOAT_CORES(name, format)                                                                  \
    TOKENS(FLOAT_CORE, name, format)                                                               \
    core_fn *const name[TILE_MAX + 1] = {TOKENS(ENTRY, name, )};
FLOAT_CORES(floats_f32_neon, FORMAT_F32)
FLOAT_CORES(floats_f16_neon, FORMAT_F16)
FLOAT_CORES(floats_bf16_neon, FORMAT_BF16)
