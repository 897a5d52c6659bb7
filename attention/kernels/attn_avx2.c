/* AVX2. A page's 32 lanes are four vectors; everything else is attn_ref.c, wider. */
#include "attn_exp.h"
#include "attn_tile.h"

#include <immintrin.h>

enum { SCORE_ROWS = 6, MIX_ROWS = 6, MOST_VECTORS = 8 };

/* 8 elements as floats; those of q8_0 without their scale. */
INLINE __m256 load8(enum kv_type type, const uint8_t *at)
{
    switch (type) {
    case KV_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
    case KV_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at)), 16));
    case KV_Q8_0:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at)));
    default:
        return _mm256_loadu_ps((const float *)at);
    }
}

/* ---- scores ---- */

/* What score_group needs of `rows` queries and `vectors` vectors of lanes. */
struct score {
    const float *query;
    int size, dims;
    uintptr_t next;
    __m256 acc[SCORE_ROWS][4];
};

/* The dimensions that share a scale (of the other types: just as many). `scales` are those of the
 * first lane, `key` its elements. */
INLINE void score_group(enum kv_type type, int rows, int vectors, const uint8_t *scales,
                        const uint8_t *key, struct score *s)
{
    __m256 scale[4], k[4];
    if (type == KV_Q8_0) {
        prefetch_next(scales, s->next);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            scale[v] = load8(KV_F16, scales + 16 * v);
    }
    for (int d = 0; d < s->dims; d++) {
        prefetch_keys(type, key, s->next);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            k[v] = load8(type, key + bytes_of(type, 8 * (size_t)v));
            if (type == KV_Q8_0)
                k[v] = _mm256_mul_ps(k[v], scale[v]);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 q = _mm256_broadcast_ss(s->query + (size_t)r * s->size + d);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                s->acc[r][v] = _mm256_fmadd_ps(q, k[v], s->acc[r][v]);
        }
        key += bytes_of(type, ATTN_LANES);
    }
}

/* Lanes [lane, lane + 8 * vectors). */
INLINE void score_tile(enum kv_type type, int rows, int vectors, const struct attn_page *p,
                       const float *query, uintptr_t next, int lane, float *out)
{
    struct score s = {.query = query, .size = p->key_size, .dims = p->key_size, .next = next};
    const uint8_t *key = p->key;
    size_t at = bytes_of(type, (size_t)lane);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            s.acc[r][v] = _mm256_setzero_ps();
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
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            _mm256_storeu_ps(out + r * ATTN_LANES + lane + 8 * v, s.acc[r][v]);
}

/* Few rows take the whole page at once, more of them half of it. */
INLINE void score_rows(enum kv_type type, int rows, const struct attn_page *p, const float *query,
                       uintptr_t next, float *out)
{
    if (rows <= 2) {
        score_tile(type, rows, 4, p, query, next, 0, out);
    } else {
        score_tile(type, rows, 2, p, query, next, 0, out);
        score_tile(type, rows, 2, p, query, 0, 16, out);
    }
}

/* ---- mix ---- */

/* The scales of a group's lanes. */
INLINE void load_scales(const uint8_t *value, int group, float *out)
{
    value += (size_t)group * ATTN_GROUP_BYTES;
    for (int i = 0; i < ATTN_LANES; i += 8)
        _mm256_store_ps(out + i, load8(KV_F16, value + 2 * i));
}

/* `vectors` times 8 columns of `rows` rows; of q8_0 at most one group. */
INLINE void mix_tile(enum kv_type type, int rows, int vectors, const struct attn_page *p,
                     const struct attn_rows *r, int column, uintptr_t next)
{
    _Alignas(32) float scale[ATTN_LANES];
    __m256 acc[MIX_ROWS][MOST_VECTORS], v[MOST_VECTORS];
    float *mix = r->mix + column;
    const uint8_t *at = column_at(type, p, column) + (size_t)p->first * lane_bytes(type, p);
    if (type == KV_Q8_0)
        load_scales(p->value, column / ATTN_GROUP, scale);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            acc[i][c] = _mm256_mul_ps(_mm256_load_ps(mix + (size_t)i * p->value_pad + 8 * c),
                                      _mm256_broadcast_ss(r->rescale + i));
    for (int lane = p->first; lane < p->last; lane++, at += lane_bytes(type, p)) {
        prefetch_columns(type, 8 * (size_t)vectors, at, next);
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) {
            v[c] = load8(type, at + bytes_of(type, 8 * (size_t)c));
            if (type == KV_Q8_0)
                v[c] = _mm256_mul_ps(v[c], _mm256_broadcast_ss(scale + lane));
        }
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m256 w = _mm256_broadcast_ss(r->weight + i * ATTN_LANES + lane);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                acc[i][c] = _mm256_fmadd_ps(w, v[c], acc[i][c]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            _mm256_store_ps(mix + (size_t)i * p->value_pad + 8 * c, acc[i][c]);
}

/* All columns of `rows` rows: as wide tiles as registers allow, then narrower ones. */
INLINE void mix_rows(enum kv_type type, int rows, const struct attn_page *p,
                     const struct attn_rows *r, uintptr_t next)
{
    int column = 0, left = p->value_pad / 8;
    for (; rows == 1 && type != KV_Q8_0 && left >= 8; left -= 8, column += 64)
        mix_tile(type, rows, 8, p, r, column, next);
    for (; rows <= 2 && left >= 4; left -= 4, column += 32)
        mix_tile(type, rows, 4, p, r, column, next);
    for (; left >= 2; left -= 2, column += 16)
        mix_tile(type, rows, 2, p, r, column, next);
}

/* ---- softmax ---- */

/* exp_step, with 0 below and NaN for NaN; x is at most EXP_MAX. */
INLINE __m256 exp_capped(__m256 x)
{
    __m256 shift = _mm256_set1_ps(EXP_SHIFT);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), shift);
    __m256 n = _mm256_sub_ps(shifted, shift);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LO), r);
    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C6), r, _mm256_set1_ps(EXP_C5));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C4));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(EXP_C2));
    __m256 y = _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r);
    y = _mm256_add_ps(_mm256_set1_ps(1.0f), y);
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
    y = _mm256_and_ps(y, _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MIN), _CMP_NLT_UQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

INLINE __m256 exp_any(__m256 x)
{
    __m256 huge = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MAX), _CMP_GT_OQ);
    return _mm256_blendv_ps(exp_capped(x), _mm256_set1_ps(INFINITY), huge);
}

INLINE __m256 tanh_any(__m256 x)
{
    __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    __m256 e = exp_capped(_mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_andnot_ps(sign, x)));
    __m256 y = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
}

/* Lane i of the result: the tree of v[i]'s lanes. Eight trees at once take half the shuffles of
 * one after the other, and do not wait for each other. */
#define TREES(op, v)                                                                               \
    PAIR_UP(op, PAIR_UP(op, HALVES(op, v[0], v[4]), HALVES(op, v[1], v[5]), 0x44, 0xee),           \
            PAIR_UP(op, HALVES(op, v[2], v[6]), HALVES(op, v[3], v[7]), 0x44, 0xee), 0x88, 0xdd)
#define HALVES(op, a, b)             op(HALF(a, b, 0x20), HALF(a, b, 0x31))
#define HALF(a, b, halves)           _mm256_permute2f128_ps(a, b, halves)
#define PAIR_UP(op, a, b, low, high) op(_mm256_shuffle_ps(a, b, low), _mm256_shuffle_ps(a, b, high))

INLINE __m256 max_trees(const __m256 v[8])
{
    return TREES(_mm256_max_ps, v);
}

INLINE __m256 sum_trees(const __m256 v[8])
{
    return TREES(_mm256_add_ps, v);
}

/* Lanes [first, last) of 8 from lane `from` on: all bits set. */
INLINE __m256i lanes_between(int first, int last, int from)
{
    __m256i lane = _mm256_add_epi32(_mm256_set1_epi32(from),
                                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane));
}

/* Cap and slope for 8 scores of row i from lane `from` on. */
INLINE __m256 shape_scores(const struct attn_page *p, const struct attn_rows *r, int i, int from,
                           __m256 x)
{
    if (p->cap > 0) {
        x = tanh_any(_mm256_mul_ps(x, _mm256_set1_ps(p->inv_cap)));
        x = _mm256_mul_ps(_mm256_set1_ps(p->cap), x);
    }
    if (r->slope) {
        __m256i far = _mm256_add_epi32(_mm256_set1_epi32(p->position + from - r->position[i]),
                                       _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        x = _mm256_fmadd_ps(_mm256_set1_ps(r->slope[i]), _mm256_cvtepi32_ps(far), x);
    }
    return x;
}

/* Most models do neither, and softmax goes without. */
static void shape_all(const struct attn_page *p, const struct attn_rows *r)
{
    float *at = r->weight;
    for (int i = 0; i < r->n; i++)
        for (int lane = 0; lane < ATTN_LANES; lane += 8, at += 8)
            _mm256_storeu_ps(at, shape_scores(p, r, i, lane, _mm256_loadu_ps(at)));
}

/* What row i has seen, at most, in each of 8 lanes. */
INLINE __m256 row_most(const struct attn_rows *r, int i, const __m256 seen[4])
{
    const float *at = r->weight + (size_t)i * ATTN_LANES;
    __m256 lowest = _mm256_set1_ps(-INFINITY), most = lowest;
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        __m256 x = _mm256_blendv_ps(lowest, _mm256_loadu_ps(at + 8 * v), seen[v]);
        most = _mm256_max_ps(x, most);
    }
    return most;
}

/* The weights of row i, and the first two halvings of their sum. */
INLINE __m256 row_weights(const struct attn_rows *r, int i, const float *top, const __m256 seen[4])
{
    float *at = r->weight + (size_t)i * ATTN_LANES;
    __m256 t = _mm256_broadcast_ss(top), x[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        x[v] = exp_capped(_mm256_sub_ps(_mm256_loadu_ps(at + 8 * v), t));
        x[v] = _mm256_and_ps(x[v], seen[v]);
        _mm256_storeu_ps(at + 8 * v, x[v]);
    }
    return _mm256_add_ps(_mm256_add_ps(x[0], x[2]), _mm256_add_ps(x[1], x[3]));
}

static void softmax(const struct attn_page *p, const struct attn_rows *r)
{
    __m256 seen[4], v[8];
    for (int i = 0; i < 4; i++)
        seen[i] = _mm256_castsi256_ps(lanes_between(p->first, p->last, 8 * i));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = _mm256_setzero_ps(); /* of rows that are not there */
    if (p->cap > 0 || r->slope)
        shape_all(p, r);
    for (int i = 0; i < r->n; i += 8) {
        _Alignas(32) float top[8];
        int n = r->n - i < 8 ? r->n - i : 8;
        __m256i rows = lanes_between(0, n, 0);
        __m256 old = _mm256_maskload_ps(r->top + i, rows);
        for (int k = 0; k < n; k++)
            v[k] = row_most(r, i + k, seen);
        _mm256_store_ps(top, _mm256_max_ps(max_trees(v), old));
        for (int k = 0; k < n; k++)
            v[k] = row_weights(r, i + k, &top[k], seen);
        __m256 rescale = exp_capped(_mm256_sub_ps(old, _mm256_load_ps(top)));
        __m256 sum = _mm256_maskload_ps(r->sum + i, rows);
        sum = _mm256_fmadd_ps(sum, rescale, sum_trees(v));
        _mm256_maskstore_ps(r->top + i, rows, _mm256_load_ps(top));
        _mm256_maskstore_ps(r->rescale + i, rows, rescale);
        _mm256_maskstore_ps(r->sum + i, rows, sum);
    }
}

/* ---- the rest ---- */

static void merge(float *a, const float *b, float scale_a, float scale_b, int n)
{
    for (int i = 0; i < n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_set1_ps(scale_a));
        x = _mm256_fmadd_ps(_mm256_loadu_ps(b + i), _mm256_set1_ps(scale_b), x);
        _mm256_storeu_ps(a + i, x);
    }
}

static void exp_all(float *x, size_t n)
{
    for (; n >= 8; n -= 8, x += 8)
        _mm256_storeu_ps(x, exp_any(_mm256_loadu_ps(x)));
    __m256i some = lanes_between(0, (int)n, 0);
    if (n)
        _mm256_maskstore_ps(x, some, exp_any(_mm256_maskload_ps(x, some)));
}

INLINE __m128i to_f16_8(__m256 x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

INLINE __m128i to_bf16_8(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i even = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i half = _mm256_blendv_epi8(_mm256_srli_epi32(even, 16),
                                      _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

#define CONVERT(name)                                                                              \
    static void name(const float *x, uint16_t *out, int n)                                         \
    {                                                                                              \
        for (; n >= 8; n -= 8, x += 8, out += 8)                                                   \
            _mm_storeu_si128((void *)out, name##_8(_mm256_loadu_ps(x)));                           \
        uint16_t last[8];                                                                          \
        __m256i some = lanes_between(0, n, 0);                                                     \
        _mm_storeu_si128((void *)last, name##_8(_mm256_maskload_ps(x, some)));                     \
        memcpy(out, last, (size_t)n * sizeof *out);                                                \
    }

CONVERT(to_f16)
CONVERT(to_bf16)

#include "attn_body.h"

void attn_ops_avx2(struct attn_ops *ops)
{
    *ops = (struct attn_ops)ATTN_OPS;
}
