/* NEON. A page's 32 lanes are eight vectors; everything else is attn_ref.c, wider. */
#include "attn_exp.h"
#include "attn_tile.h"

#include <arm_neon.h>

/* With 32 registers: 6 rows x 4 vectors of sums, or 2 x 8. */
enum { SCORE_ROWS = 6, MIX_ROWS = 6, MOST_VECTORS = 8 };

INLINE float32x4_t half_floats(uint16x4_t v)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(v));
}

/* 16 elements as floats; those of q8_0 without their scale. */
INLINE void load16(enum kv_type type, const uint8_t *at, float32x4_t *out)
{
    if (type == KV_Q8_0) {
        int8x16_t v = vld1q_s8((const int8_t *)at);
        int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_high_s8(v);
        out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
        out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
        out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
        out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
        return;
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        uint16x4_t half = type == KV_F32 ? vdup_n_u16(0) : vld1_u16((const uint16_t *)at + 4 * v);
        out[v] = type == KV_F32   ? vld1q_f32((const float *)at + 4 * v)
                 : type == KV_F16 ? half_floats(half)
                                  : vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    }
}

/* ---- scores ---- */

/* What score_group needs of `rows` queries and `vectors` vectors of lanes. */
struct score {
    const float *query;
    int size, dims;
    uintptr_t next;
    float32x4_t acc[SCORE_ROWS][MOST_VECTORS];
};

/* The dimensions that share a scale (of the other types: just as many). `scales` are those of the
 * first lane, `key` its elements. */
INLINE void score_group(enum kv_type type, int rows, int vectors, const uint8_t *scales,
                        const uint8_t *key, struct score *s)
{
    float32x4_t scale[MOST_VECTORS], k[MOST_VECTORS];
    if (type == KV_Q8_0) {
        prefetch_next(scales, s->next);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v += 4)
            load16(KV_F16, scales + 8 * v, scale + v);
    }
    for (int d = 0; d < s->dims; d++) {
        prefetch_keys(type, key, s->next);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v += 4)
            load16(type, key + bytes_of(type, 4 * (size_t)v), k + v);
        if (type == KV_Q8_0)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                k[v] = vmulq_f32(k[v], scale[v]);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float32x4_t q = vld1q_dup_f32(s->query + (size_t)r * s->size + d);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                s->acc[r][v] = vfmaq_f32(s->acc[r][v], q, k[v]);
        }
        key += bytes_of(type, ATTN_LANES);
    }
}

/* Lanes [lane, lane + 4 * vectors). */
INLINE void score_tile(enum kv_type type, int rows, int vectors, const struct attn_page *p,
                       const float *query, uintptr_t next, int lane, float *out)
{
    struct score s = {.query = query, .size = p->key_size, .dims = p->key_size, .next = next};
    const uint8_t *key = p->key;
    size_t at = bytes_of(type, (size_t)lane);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            s.acc[r][v] = vdupq_n_f32(0);
    if (type == KV_Q8_0) {
        for (int d = 0; d < p->key_size; d += ATTN_GROUP) {
            s.dims = p->key_size - d < ATTN_GROUP ? p->key_size - d : ATTN_GROUP;
            score_group(type, rows, vectors, key + 2 * lane, key + 2 * ATTN_LANES + at, &s);
            key += ATTN_GROUP_BYTES;
            s.query += ATTN_GROUP;
        }
    } else {
        score_group(type, rows, vectors, NULL, key + at, &s);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            vst1q_f32(out + r * ATTN_LANES + lane + 4 * v, s.acc[r][v]);
}

/* Few rows take the whole page at once, more of them (and the scales of q8_0) half of it. */
INLINE void score_rows(enum kv_type type, int rows, const struct attn_page *p, const float *query,
                       uintptr_t next, float *out)
{
    if (rows <= 2 && type != KV_Q8_0) {
        score_tile(type, rows, 8, p, query, next, 0, out);
    } else {
        score_tile(type, rows, 4, p, query, next, 0, out);
        score_tile(type, rows, 4, p, query, 0, 16, out);
    }
}

/* ---- mix ---- */

/* The scales of a group's lanes. */
INLINE void load_scales(const uint8_t *value, int group, float *out)
{
    value += (size_t)group * ATTN_GROUP_BYTES;
    for (int i = 0; i < ATTN_LANES; i += 4)
        vst1q_f32(out + i, half_floats(vld1_u16((const uint16_t *)value + i)));
}

/* `vectors` times 4 columns of `rows` rows; of q8_0 at most one group. */
INLINE void mix_tile(enum kv_type type, int rows, int vectors, const struct attn_page *p,
                     const struct attn_rows *r, int column, uintptr_t next)
{
    float scale[ATTN_LANES];
    float32x4_t acc[MIX_ROWS][MOST_VECTORS], v[MOST_VECTORS];
    float *mix = r->mix + column;
    const uint8_t *at = column_at(type, p, column) + (size_t)p->first * lane_bytes(type, p);
    if (type == KV_Q8_0)
        load_scales(p->value, column / ATTN_GROUP, scale);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            acc[i][c] = vmulq_f32(vld1q_f32(mix + (size_t)i * p->value_pad + 4 * c),
                                  vld1q_dup_f32(r->rescale + i));
    for (int lane = p->first; lane < p->last; lane++, at += lane_bytes(type, p)) {
        prefetch_columns(type, 4 * (size_t)vectors, at, next);
#pragma GCC unroll 2
        for (int c = 0; c < vectors; c += 4)
            load16(type, at + bytes_of(type, 4 * (size_t)c), v + c);
        if (type == KV_Q8_0)
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                v[c] = vmulq_f32(v[c], vld1q_dup_f32(scale + lane));
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            float32x4_t w = vld1q_dup_f32(r->weight + i * ATTN_LANES + lane);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                acc[i][c] = vfmaq_f32(acc[i][c], w, v[c]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            vst1q_f32(mix + (size_t)i * p->value_pad + 4 * c, acc[i][c]);
}

/* All columns of `rows` rows: as wide tiles as registers allow, then narrower ones. */
INLINE void mix_rows(enum kv_type type, int rows, const struct attn_page *p,
                     const struct attn_rows *r, uintptr_t next)
{
    int column = 0, left = p->value_pad / 4;
    for (; rows <= 2 && left >= 8; left -= 8, column += 32)
        mix_tile(type, rows, 8, p, r, column, next);
    for (; left >= 4; left -= 4, column += 16)
        mix_tile(type, rows, 4, p, r, column, next);
}

/* ---- softmax ---- */

INLINE float32x4_t constant(float x)
{
    return vdupq_n_f32(x);
}

/* exp_step, with 0 below and NaN for NaN; x is at most EXP_MAX. */
INLINE float32x4_t exp_capped(float32x4_t x)
{
    float32x4_t shift = constant(EXP_SHIFT);
    float32x4_t shifted = vfmaq_f32(shift, x, constant(EXP_LOG2E));
    float32x4_t n = vsubq_f32(shifted, shift);
    float32x4_t r = vfmaq_f32(x, n, constant(-EXP_LN2_HI));
    r = vfmaq_f32(r, n, constant(-EXP_LN2_LO));
    float32x4_t q = vfmaq_f32(constant(EXP_C5), constant(EXP_C6), r);
    q = vfmaq_f32(constant(EXP_C4), q, r);
    q = vfmaq_f32(constant(EXP_C3), q, r);
    q = vfmaq_f32(constant(EXP_C2), q, r);
    float32x4_t y = vaddq_f32(constant(1.0f), vfmaq_f32(r, q, vmulq_f32(r, r)));
    uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    uint32x4_t bits = vaddq_u32(vreinterpretq_u32_f32(y), power);
    bits = vbicq_u32(bits, vcltq_f32(x, constant(EXP_MIN)));
    return vbslq_f32(vceqq_f32(x, x), vreinterpretq_f32_u32(bits), x);
}

INLINE float32x4_t exp_any(float32x4_t x)
{
    return vbslq_f32(vcgtq_f32(x, constant(EXP_MAX)), constant(INFINITY), exp_capped(x));
}

INLINE float32x4_t tanh_any(float32x4_t x)
{
    float32x4_t one = constant(1.0f);
    float32x4_t e = exp_capped(vmulq_f32(constant(-2.0f), vabsq_f32(x)));
    float32x4_t y = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    return vbslq_f32(vdupq_n_u32(0x80000000), x, y);
}

/* What is left of the tree when its first halvings gave x. */
INLINE float sum4(float32x4_t x)
{
    float32x2_t two = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE int32x4_t count4(int from)
{
    static const int32_t count[4] = {0, 1, 2, 3};
    return vaddq_s32(vdupq_n_s32(from), vld1q_s32(count));
}

/* Lanes [first, last) of 4 from lane `from` on: all bits set. */
INLINE uint32x4_t lanes_between(int first, int last, int from)
{
    int32x4_t lane = count4(from);
    return vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(last)));
}

/* Cap and slope for 4 scores of row i from lane `from` on. */
INLINE float32x4_t shape_scores(const struct attn_page *p, const struct attn_rows *r, int i,
                                int from, float32x4_t x)
{
    if (p->cap > 0) {
        x = tanh_any(vmulq_f32(x, constant(p->inv_cap)));
        x = vmulq_f32(constant(p->cap), x);
    }
    if (r->slope) {
        int32x4_t far = count4(p->position + from - r->position[i]);
        x = vfmaq_f32(x, constant(r->slope[i]), vcvtq_f32_s32(far));
    }
    return x;
}

static void softmax_row(const struct attn_page *p, const struct attn_rows *r, int i,
                        const uint32x4_t seen[8])
{
    float *at = r->weight + (size_t)i * ATTN_LANES;
    float32x4_t x[8], most = vdupq_n_f32(r->top[i]);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        x[v] = shape_scores(p, r, i, 4 * v, vld1q_f32(at + 4 * v));
        float32x4_t larger = vbslq_f32(vcgtq_f32(x[v], most), x[v], most); /* never a NaN */
        most = vbslq_f32(seen[v], larger, most);
    }
    float top = vmaxvq_f32(most);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        uint32x4_t e = vreinterpretq_u32_f32(exp_capped(vsubq_f32(x[v], constant(top))));
        x[v] = vreinterpretq_f32_u32(vandq_u32(e, seen[v]));
        vst1q_f32(at + 4 * v, x[v]);
    }
#pragma GCC unroll 3
    for (int n = 4; n > 0; n /= 2)
#pragma GCC unroll 4
        for (int v = 0; v < n; v++)
            x[v] = vaddq_f32(x[v], x[v + n]);
    r->rescale[i] = exp_one(r->top[i] - top);
    r->sum[i] = fmaf(r->sum[i], r->rescale[i], sum4(x[0]));
    r->top[i] = top;
}

static void softmax(const struct attn_page *p, const struct attn_rows *r)
{
    uint32x4_t seen[8];
    for (int v = 0; v < 8; v++)
        seen[v] = lanes_between(p->first, p->last, 4 * v);
    for (int i = 0; i < r->n; i++)
        softmax_row(p, r, i, seen);
}

/* ---- the rest ---- */

static void merge(float *a, const float *b, float scale_a, float scale_b, int n)
{
    for (int i = 0; i < n; i += 4) {
        float32x4_t x = vmulq_f32(vld1q_f32(a + i), constant(scale_a));
        vst1q_f32(a + i, vfmaq_f32(x, vld1q_f32(b + i), constant(scale_b)));
    }
}

static void exp_all(float *x, size_t n)
{
    for (; n >= 4; n -= 4, x += 4)
        vst1q_f32(x, exp_any(vld1q_f32(x)));
    float last[4] = {0};
    memcpy(last, x, n * sizeof *x);
    vst1q_f32(last, exp_any(vld1q_f32(last)));
    memcpy(x, last, n * sizeof *x);
}

INLINE uint16x4_t to_f16_4(float32x4_t x)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(x));
}

INLINE uint16x4_t to_bf16_4(float32x4_t x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), top = vshrq_n_u32(bits, 16);
    uint32x4_t odd = vandq_u32(top, vdupq_n_u32(1));
    uint32x4_t even = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    uint32x4_t nan = vorrq_u32(top, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(x, x), vshrq_n_u32(even, 16), nan));
}

#define CONVERT(name)                                                                              \
    static void name(const float *x, uint16_t *out, int n)                                         \
    {                                                                                              \
        for (; n >= 4; n -= 4, x += 4, out += 4)                                                   \
            vst1_u16(out, name##_4(vld1q_f32(x)));                                                 \
        float last[4] = {0};                                                                       \
        uint16_t rounded[4];                                                                       \
        memcpy(last, x, (size_t)n * sizeof *x);                                                    \
        vst1_u16(rounded, name##_4(vld1q_f32(last)));                                              \
        memcpy(out, rounded, (size_t)n * sizeof *out);                                             \
    }

CONVERT(to_f16)
CONVERT(to_bf16)

#include "attn_body.h"

void attn_ops_neon(struct attn_ops *ops)
{
    *ops = (struct attn_ops)ATTN_OPS;
}
