/* AVX-512. A page's 32 lanes are two vectors; everything else is attn_ref.c, wider. */
#include "attn_exp.h"
#include "attn_tile.h"

#include <immintrin.h>

enum { SCORE_ROWS = 8, MIX_ROWS = 6, MIX_COLUMNS = 8 };

struct pair {
    __m512 a, b;
};

/* 16 elements as floats; those of q8_0 without their scale. */
INLINE __m512 load16(enum kv_type type, const uint8_t *at)
{
    switch (type) {
    case KV_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
    case KV_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at)), 16));
    case KV_Q8_0:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at)));
    default:
        return _mm512_loadu_ps(at);
    }
}

/* ---- scores ---- */

/* The dimensions that share a scale (of the other types: just as many) of `rows` queries. `key` is
 * the scales, if any, and then the elements. */
INLINE void score_group(enum kv_type type, int rows, const float *query, int size, int dims,
                        const uint8_t *key, uintptr_t next, struct pair *acc)
{
    struct pair scale = {0};
    if (type == KV_Q8_0) {
        prefetch_next(key, next);
        scale.a = load16(KV_F16, key);
        scale.b = load16(KV_F16, key + 32);
        key += 2 * ATTN_LANES;
    }
    for (int d = 0; d < dims; d++, key += bytes_of(type, ATTN_LANES)) {
        __m512 a = load16(type, key), b = load16(type, key + bytes_of(type, 16));
        prefetch_keys(type, key, next);
        if (type == KV_Q8_0) {
            a = _mm512_mul_ps(a, scale.a);
            b = _mm512_mul_ps(b, scale.b);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512 q = _mm512_set1_ps(query[(size_t)r * size + d]);
            acc[r].a = _mm512_fmadd_ps(q, a, acc[r].a);
            acc[r].b = _mm512_fmadd_ps(q, b, acc[r].b);
        }
    }
}

INLINE void score_rows(enum kv_type type, int rows, const struct attn_page *p, const float *query,
                       uintptr_t next, float *out)
{
    struct pair acc[SCORE_ROWS];
    const uint8_t *key = p->key;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        acc[r].a = acc[r].b = _mm512_setzero_ps();
    if (type == KV_Q8_0) {
        for (int d = 0; d < p->key_size; d += ATTN_GROUP) {
            int dims = p->key_size - d < ATTN_GROUP ? p->key_size - d : ATTN_GROUP;
            score_group(type, rows, query + d, p->key_size, dims, key, next, acc);
            key += ATTN_GROUP_BYTES;
        }
    } else {
        score_group(type, rows, query, p->key_size, p->key_size, key, next, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(out + r * ATTN_LANES, acc[r].a);
        _mm512_storeu_ps(out + r * ATTN_LANES + 16, acc[r].b);
    }
}

/* ---- mix ---- */

/* The scales of a group's lanes. */
INLINE void load_scales(const uint8_t *value, int group, float *out)
{
    value += (size_t)group * ATTN_GROUP_BYTES;
    _mm512_store_ps(out, load16(KV_F16, value));
    _mm512_store_ps(out + 16, load16(KV_F16, value + 32));
}

/* 16 columns of a lane, number c of a tile whose columns begin at `at`. */
INLINE __m512 load_value(enum kv_type type, const uint8_t *at, int c, int lane,
                         const float scale[][ATTN_LANES])
{
    if (type != KV_Q8_0)
        return load16(type, at + bytes_of(type, 16 * (size_t)c));
    const uint8_t *group = at + (size_t)(c / 2) * ATTN_GROUP_BYTES;
    return _mm512_mul_ps(load16(type, group + c % 2 * 16), _mm512_set1_ps(scale[c / 2][lane]));
}

INLINE void prefetch_lane(enum kv_type type, int vectors, const uint8_t *at, uintptr_t next)
{
    int groups = type == KV_Q8_0 ? vectors / 2 : 1;
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++)
        prefetch_columns(type, 16 * (size_t)vectors, at + (size_t)g * ATTN_GROUP_BYTES, next);
}

/* `vectors` times 16 columns of `rows` rows. */
INLINE void mix_tile(enum kv_type type, int rows, int vectors, const struct attn_page *p,
                     const struct attn_rows *r, int column, uintptr_t next)
{
    _Alignas(64) float scale[MIX_COLUMNS / 2][ATTN_LANES];
    __m512 acc[MIX_ROWS][MIX_COLUMNS], v[MIX_COLUMNS];
    float *mix = r->mix + column;
    const uint8_t *at = column_at(type, p, column) + (size_t)p->first * lane_bytes(type, p);
    for (int g = 0; type == KV_Q8_0 && 2 * g < vectors; g++)
        load_scales(p->value, column / ATTN_GROUP + g, scale[g]);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            acc[i][c] = _mm512_mul_ps(_mm512_load_ps(mix + (size_t)i * p->value_pad + 16 * c),
                                      _mm512_set1_ps(r->rescale[i]));
    for (int lane = p->first; lane < p->last; lane++, at += lane_bytes(type, p)) {
        prefetch_lane(type, vectors, at, next);
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            v[c] = load_value(type, at, c, lane, scale);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            __m512 w = _mm512_set1_ps(r->weight[i * ATTN_LANES + lane]);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                acc[i][c] = _mm512_fmadd_ps(w, v[c], acc[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            _mm512_store_ps(mix + (size_t)i * p->value_pad + 16 * c, acc[i][c]);
}

/* All columns of `rows` rows: as wide tiles as registers allow, then narrower ones. */
INLINE void mix_rows(enum kv_type type, int rows, const struct attn_page *p,
                     const struct attn_rows *r, uintptr_t next)
{
    int column = 0, left = p->value_pad / 16;
    for (; rows <= 2 && left >= 8; left -= 8, column += 128)
        mix_tile(type, rows, 8, p, r, column, next);
    for (; left >= 4; left -= 4, column += 64)
        mix_tile(type, rows, 4, p, r, column, next);
    for (; left >= 2; left -= 2, column += 32)
        mix_tile(type, rows, 2, p, r, column, next);
    if (type != KV_Q8_0 && left)
        mix_tile(type, rows, 1, p, r, column, next);
}

/* ---- softmax ---- */

/* exp_step, with 0 below and NaN for NaN; x is at most EXP_MAX. */
INLINE __m512 exp_capped(__m512 x)
{
    __m512 shift = _mm512_set1_ps(EXP_SHIFT);
    __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(EXP_LOG2E), shift);
    __m512 n = _mm512_sub_ps(shifted, shift);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_LO), r);
    __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C6), r, _mm512_set1_ps(EXP_C5));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EXP_C4));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EXP_C3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(EXP_C2));
    __m512 y = _mm512_fmadd_ps(q, _mm512_mul_ps(r, r), r);
    y = _mm512_add_ps(_mm512_set1_ps(1.0f), y);
    __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), power));
    __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_MIN), _CMP_NLT_UQ);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(_mm512_maskz_mov_ps(normal, y), nan, x);
}

INLINE __m512 exp_any(__m512 x)
{
    __mmask16 huge = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_MAX), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(exp_capped(x), huge, _mm512_set1_ps(INFINITY));
}

INLINE __m512 tanh_any(__m512 x)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = exp_capped(_mm512_mul_ps(_mm512_set1_ps(-2.0f), _mm512_abs_ps(x)));
    __m512 y = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    /* copysign: bits of y, but for the sign, which is x's. */
    __m512i bits = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7fffffff), _mm512_castps_si512(y),
                                             _mm512_castps_si512(x), 0xca);
    return _mm512_castsi512_ps(bits);
}

/* Lane i of the result: the tree of v[i]'s lanes. Sixteen trees at once take half the shuffles of
 * one after the other, and do not wait for each other. */
#define TREES(op, v)                                                                               \
    PAIR_UP(op, PAIR_UP(op, QUARTERS(op, v, 0), QUARTERS(op, v, 1), 0x44, 0xee),                   \
            PAIR_UP(op, QUARTERS(op, v, 2), QUARTERS(op, v, 3), 0x44, 0xee), 0x88, 0xdd)
#define QUARTERS(op, v, i)                                                                         \
    BY_QUARTER(op, BY_QUARTER(op, v[i], v[i + 4], 0x44, 0xee),                                     \
               BY_QUARTER(op, v[i + 8], v[i + 12], 0x44, 0xee), 0x88, 0xdd)
#define BY_QUARTER(op, a, b, low, high)                                                            \
    op(_mm512_shuffle_f32x4(a, b, low), _mm512_shuffle_f32x4(a, b, high))
#define PAIR_UP(op, a, b, low, high) op(_mm512_shuffle_ps(a, b, low), _mm512_shuffle_ps(a, b, high))

INLINE __m512 max_trees(const __m512 v[16])
{
    return TREES(_mm512_max_ps, v);
}

INLINE __m512 sum_trees(const __m512 v[16])
{
    return TREES(_mm512_add_ps, v);
}

INLINE struct pair shape_scores(const struct attn_page *p, const struct attn_rows *r, int i,
                                struct pair x)
{
    if (p->cap > 0) {
        __m512 cap = _mm512_set1_ps(p->cap), inv = _mm512_set1_ps(p->inv_cap);
        x.a = _mm512_mul_ps(cap, tanh_any(_mm512_mul_ps(x.a, inv)));
        x.b = _mm512_mul_ps(cap, tanh_any(_mm512_mul_ps(x.b, inv)));
    }
    if (r->slope) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                               15);
        __m512i a = _mm512_add_epi32(_mm512_set1_epi32(p->position - r->position[i]), lane);
        __m512i b = _mm512_add_epi32(a, _mm512_set1_epi32(16));
        __m512 slope = _mm512_set1_ps(r->slope[i]);
        x.a = _mm512_fmadd_ps(slope, _mm512_cvtepi32_ps(a), x.a);
        x.b = _mm512_fmadd_ps(slope, _mm512_cvtepi32_ps(b), x.b);
    }
    return x;
}

/* Most models do neither, and softmax goes without. */
static void shape_all(const struct attn_page *p, const struct attn_rows *r)
{
    float *at = r->weight;
    for (int i = 0; i < r->n; i++, at += ATTN_LANES) {
        struct pair x = {_mm512_loadu_ps(at), _mm512_loadu_ps(at + 16)};
        x = shape_scores(p, r, i, x);
        _mm512_storeu_ps(at, x.a);
        _mm512_storeu_ps(at + 16, x.b);
    }
}

/* Lanes that are seen, of each half of a page. */
struct seen {
    __mmask16 a, b;
};

/* What row i has seen, at most, in each of 16 lanes. */
INLINE __m512 row_most(const struct attn_rows *r, int i, struct seen seen)
{
    const float *at = r->weight + (size_t)i * ATTN_LANES;
    __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 most = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, seen.a, at), lowest);
    return _mm512_max_ps(_mm512_mask_loadu_ps(lowest, seen.b, at + 16), most);
}

/* The weights of row i, and the first halving of their sum. */
INLINE __m512 row_weights(const struct attn_rows *r, int i, const float *top, struct seen seen)
{
    float *at = r->weight + (size_t)i * ATTN_LANES;
    __m512 t = _mm512_set1_ps(*top);
    __m512 a = exp_capped(_mm512_sub_ps(_mm512_loadu_ps(at), t));
    __m512 b = exp_capped(_mm512_sub_ps(_mm512_loadu_ps(at + 16), t));
    a = _mm512_maskz_mov_ps(seen.a, a);
    b = _mm512_maskz_mov_ps(seen.b, b);
    _mm512_storeu_ps(at, a);
    _mm512_storeu_ps(at + 16, b);
    return _mm512_add_ps(a, b);
}

static void softmax(const struct attn_page *p, const struct attn_rows *r)
{
    uint32_t lanes = (UINT32_MAX << p->first) & (UINT32_MAX >> (ATTN_LANES - p->last));
    struct seen seen = {(__mmask16)lanes, (__mmask16)(lanes >> 16)};
    __m512 v[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        v[i] = _mm512_setzero_ps(); /* of rows that are not there */
    if (p->cap > 0 || r->slope)
        shape_all(p, r);
    for (int i = 0; i < r->n; i += 16) {
        _Alignas(64) float top[16];
        int n = r->n - i < 16 ? r->n - i : 16;
        __mmask16 rows = (__mmask16)(0xffffu >> (16 - n));
        __m512 old = _mm512_maskz_loadu_ps(rows, r->top + i);
        for (int k = 0; k < n; k++)
            v[k] = row_most(r, i + k, seen);
        _mm512_store_ps(top, _mm512_max_ps(max_trees(v), old));
        for (int k = 0; k < n; k++)
            v[k] = row_weights(r, i + k, &top[k], seen);
        __m512 rescale = exp_capped(_mm512_sub_ps(old, _mm512_load_ps(top)));
        __m512 sum = _mm512_maskz_loadu_ps(rows, r->sum + i);
        sum = _mm512_fmadd_ps(sum, rescale, sum_trees(v));
        _mm512_mask_storeu_ps(r->top + i, rows, _mm512_load_ps(top));
        _mm512_mask_storeu_ps(r->rescale + i, rows, rescale);
        _mm512_mask_storeu_ps(r->sum + i, rows, sum);
    }
}

/* ---- the rest ---- */

static void merge(float *a, const float *b, float scale_a, float scale_b, int n)
{
    for (int i = 0; i < n; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(a + i), _mm512_set1_ps(scale_a));
        x = _mm512_fmadd_ps(_mm512_loadu_ps(b + i), _mm512_set1_ps(scale_b), x);
        _mm512_storeu_ps(a + i, x);
    }
}

/* The first n of 16 lanes. */
INLINE __mmask16 first_lanes(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

static void exp_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes(n - i);
        _mm512_mask_storeu_ps(x + i, m, exp_any(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

static void to_f16(const float *x, uint16_t *out, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes((size_t)(n - i));
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        _mm256_mask_storeu_epi16(out + i, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
}

static void to_bf16(const float *x, uint16_t *out, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first_lanes((size_t)(n - i));
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        __m512i bits = _mm512_castps_si512(v), top = _mm512_srli_epi32(bits, 16);
        __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
        __m512i even = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        __m512i half = _mm512_mask_or_epi32(_mm512_srli_epi32(even, 16), nan, top,
                                            _mm512_set1_epi32(0x40));
        _mm256_mask_storeu_epi16(out + i, m, _mm512_cvtepi32_epi16(half));
    }
}

#include "attn_body.h"

void attn_ops_avx512(struct attn_ops *ops)
{
    *ops = (struct attn_ops)ATTN_OPS;
}
