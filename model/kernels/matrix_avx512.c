#include "kernels/avx512.h"
#include "kernels/fetch.h"

#include <limits.h>

/* Products with 8-bit dot products of 512 bits: u8 weights times s8 activations, 16 rows to a
 * register. Signed weights are counted from an offset (128, or 8 for Q4_0, 32 with scales per 16);
 * the accumulator starts at minus that times the sum of the activations, so that the integer is
 * exact. */

enum { MOST8 = 8 }; /* tokens of a tile of 8-bit activations */

/* Where a kernel's weights come from: a packed format, or a panel of its flavour. */
struct shape {
    bool panel;
    bool factored; /* scales as those of a panel, values packed */
    enum values_kind values;
    enum scales_kind scales;
    int bias;
    const int8_t *table;
    enum flavour flavour;
    int groups, tokens;
    bool wide; /* activations of 16 bits */
};

/* ---- weights ---- */

INLINE __m512i load(const uint8_t *p)
{
    return _mm512_load_si512(p);
}

/* Bits [from, from + n) of each byte, moved to start at `to`; what else is there is masked off. */
INLINE __m512i bits(__m512i v, int from, int to, int n)
{
    __m512i moved = from > to   ? _mm512_srli_epi16(v, (unsigned)(from - to))
                    : from < to ? _mm512_slli_epi16(v, (unsigned)(to - from))
                                : v;
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)(((1 << n) - 1) << to)));
}

INLINE __m512i nibbles(const uint8_t *p, int j)
{
    return bits(load(p + j % 4 * QUAD_BYTES), j / 4 * 4, 0, 4);
}

INLINE __m512i pairs(const uint8_t *p, int j, int to)
{
    return bits(load(p + j / 4 * QUAD_BYTES), j % 4 * 2, to, 2);
}

INLINE __m512i codes(const uint8_t *p, int j, enum values_kind kind)
{
    switch (kind) {
    case VALUES_2:
        return pairs(p, j, 0);
    case VALUES_3:
        return _mm512_or_si512(pairs(p, j, 0), bits(load(p + 128), j, 2, 1));
    case VALUES_5:
        return _mm512_or_si512(nibbles(p, j), bits(load(p + 256), j, 4, 1));
    case VALUES_6:
        return _mm512_or_si512(nibbles(p, j), pairs(p + 256, j, 4));
    case VALUES_8:
        return load(p + j * QUAD_BYTES);
    default:
        return nibbles(p, j);
    }
}

/* What the unsigned weight of a shape counts too much: 0, 8 (Q4_0 from its codes) or 128; 32 with
 * factors per 16. */
INLINE int offset_of(const struct shape *s)
{
    if (s->flavour == FLAVOUR_MIN || s->flavour == FLAVOUR_HALF_MIN)
        return 0;
    if (s->flavour == FLAVOUR_HALF)
        return 32;
    return s->bias == 8 && !s->panel ? 8 : 128;
}

/* Quad j of a block as unsigned bytes. */
INLINE __m512i quad(const uint8_t *p, int j, const struct shape *s)
{
    if (s->panel)
        return load(p + j * QUAD_BYTES);
    __m512i c = codes(p, j, s->values);
    if (s->table) {
        __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)s->table));
        return _mm512_shuffle_epi8(_mm512_xor_si512(t, _mm512_set1_epi8((char)0x80)), c);
    }
    int add = offset_of(s) - s->bias;
    return add ? _mm512_add_epi8(c, _mm512_set1_epi8((char)add)) : c;
}

/* ---- scales ---- */

struct factors {
    __m512 d, s[2], m[2];
};

INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 small(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 negative(__m512 v)
{
    return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

INLINE struct factors panel_factors(const uint8_t *plane, int b, enum flavour flavour)
{
    const float *p = (const float *)plane + (size_t)b * 16 * (size_t)flavour_panel_scales[flavour];
    struct factors f = {.d = _mm512_load_ps(p)};
    if (flavour == FLAVOUR_MIN)
        f.m[0] = _mm512_load_ps(p + 16);
    for (int h = 0; h < 2 && flavour >= FLAVOUR_HALF; h++) {
        f.s[h] = _mm512_load_ps(p + 16 + 16 * h);
        if (flavour == FLAVOUR_HALF_MIN)
            f.m[h] = _mm512_load_ps(p + 48 + 16 * h);
    }
    return f;
}

INLINE struct factors packed_factors(const uint8_t *plane, int b, enum scales_kind kind)
{
    const uint8_t *super = plane + scales_super_offset(kind, b);
    const uint8_t *p = plane + scales_offset(kind, b);
    struct factors f = {.d = _mm512_setzero_ps()};
    switch (kind) {
    case SCALES_F16_MIN:
        f.m[0] = halves(p + 32);
        /* fallthrough */
    case SCALES_F16:
        f.d = halves(p);
        break;
    case SCALES_BF16:
        f.d = _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
        break;
    case SCALES_K_MIN:
        f.m[0] = negative(_mm512_mul_ps(halves(super + 32), small(p + 16)));
        /* fallthrough */
    case SCALES_K:
        f.d = _mm512_mul_ps(halves(super), small(p));
        break;
    case SCALES_K16_MIN:
        f.m[0] = negative(_mm512_mul_ps(halves(super + 32), small(p + 32)));
        f.m[1] = negative(_mm512_mul_ps(halves(super + 32), small(p + 48)));
        /* fallthrough */
    case SCALES_K16:
        f.d = halves(super);
        f.s[0] = small(p);
        f.s[1] = small(p + 16);
        break;
    default:
        break;
    }
    return f;
}

INLINE struct factors factors(const uint8_t *plane, int b, const struct shape *s)
{
    return s->panel || s->factored ? panel_factors(plane, b, s->flavour)
                                   : packed_factors(plane, b, s->scales);
}

/* ---- the product ---- */

/* Integer sums of quads [j0, j1) of one block, for one plane of activations. */
INLINE void dots(__m512i (*sum)[TILE_MAX], const uint8_t *const *values, const int8_t *q,
                 size_t record, int j0, int j1, const struct shape *s)
{
    UNROLL for (int j = j0; j < j1; j++)
    {
        __m512i w[2];
        UNROLL for (int g = 0; g < s->groups; g++) w[g] = quad(values[g], j, s);
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            int32_t four;
            memcpy(&four, q + (size_t)t * record + 4 * j, sizeof four);
            __m512i a = _mm512_set1_epi32(four);
            UNROLL for (int g = 0; g < s->groups; g++)
                sum[g][t] = _mm512_dpbusd_epi32(sum[g][t], w[g], a);
        }
    }
}

INLINE const struct act_block *record_at(const uint8_t *act, int t, size_t bytes)
{
    return (const struct act_block *)(act + (size_t)t * bytes);
}

INLINE int32_t start(const struct act_block *a, int half, const struct shape *s)
{
    int offset = offset_of(s);
    if (offset == 0)
        return 0;
    return offset == 8 ? a->n8 : offset == 128 ? a->n128 : a->n32[half];
}

/* The integers of quads [j0, j1): with 16-bit activations 255 * high + low. */
INLINE void integers(__m512i (*sum)[TILE_MAX], const uint8_t *const *values, const uint8_t *act,
                     int j0, int j1, const struct shape *s)
{
    size_t record = s->wide ? sizeof(struct act_block16) : sizeof(struct act_block);
    const int8_t *q = record_at(act, 0, record)->q;
    UNROLL for (int t = 0; t < s->tokens; t++) UNROLL for (int g = 0; g < s->groups; g++)
        sum[g][t] = s->wide ? _mm512_setzero_si512()
                            : _mm512_set1_epi32(start(record_at(act, t, record), j0 / 4, s));
    dots(sum, values, q, record, j0, j1, s);
    if (!s->wide)
        return;
    UNROLL for (int t = 0; t < s->tokens; t++) UNROLL for (int g = 0; g < s->groups; g++)
        sum[g][t] = _mm512_add_epi32(
            _mm512_sub_epi32(_mm512_slli_epi32(sum[g][t], 8), sum[g][t]),
            _mm512_set1_epi32(start(record_at(act, t, record), j0 / 4, s)));
    dots(sum, values, q + 32, record, j0, j1, s);
}

INLINE __m512 chain(__m512 acc, __m512 p, const struct factors *f, const struct act_block *a,
                    enum flavour flavour)
{
    acc = _mm512_fmadd_ps(p, _mm512_mul_ps(f->d, _mm512_set1_ps(a->d)), acc);
    if (flavour == FLAVOUR_MIN)
        acc = _mm512_fmadd_ps(f->m[0], _mm512_set1_ps(a->dsum), acc);
    if (flavour == FLAVOUR_HALF_MIN) {
        acc = _mm512_fmadd_ps(f->m[0], _mm512_set1_ps(a->dsum16[0]), acc);
        acc = _mm512_fmadd_ps(f->m[1], _mm512_set1_ps(a->dsum16[1]), acc);
    }
    return acc;
}

/* One block into the accumulators. */
INLINE void block(__m512 (*acc)[TILE_MAX], const uint8_t *const *values,
                  const uint8_t *const *scales, int b, const uint8_t *act, const struct shape *s)
{
    size_t record = s->wide ? sizeof(struct act_block16) : sizeof(struct act_block);
    bool half = s->flavour >= FLAVOUR_HALF;
    __m512i sum[2][TILE_MAX];
    __m512 p[2][TILE_MAX];
    struct factors f[2];
    UNROLL for (int g = 0; g < s->groups; g++) f[g] = factors(scales[g], b, s);
    integers(sum, values, act, 0, half ? 4 : 8, s);
    UNROLL for (int g = 0; g < s->groups; g++) UNROLL for (int t = 0; t < s->tokens; t++)
        p[g][t] = half ? _mm512_mul_ps(_mm512_cvtepi32_ps(sum[g][t]), f[g].s[0])
                       : _mm512_cvtepi32_ps(sum[g][t]);
    if (half) {
        integers(sum, values, act, 4, 8, s);
        UNROLL for (int g = 0; g < s->groups; g++) UNROLL for (int t = 0; t < s->tokens; t++)
            p[g][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[g][t]), f[g].s[1], p[g][t]);
    }
    UNROLL for (int t = 0; t < s->tokens; t++) UNROLL for (int g = 0; g < s->groups; g++)
        acc[g][t] = chain(acc[g][t], p[g][t], &f[g], record_at(act, t, record), s->flavour);
}

/* The kernel: `groups` groups at a time, whole tile, all blocks. */
INLINE void core(const struct core *c, const struct shape s)
{
    size_t record = s.wide ? sizeof(struct act_block16) : sizeof(struct act_block);
    size_t step = s.panel ? PANEL_VALUES : (size_t)values_bytes[s.values];
    int times = fetch_times(s.tokens, s.wide, s.values == VALUES_8 ? 4 : 2);
    for (int g0 = 0; g0 < 2 && c->rows > 16 * g0; g0 += s.groups) {
        __m512 acc[2][TILE_MAX];
        const uint8_t *values[2] = {c->values[g0], c->values[g0 + s.groups - 1]};
        const uint8_t *packed[2] = {c->scales[g0], c->scales[g0 + s.groups - 1]};
        const uint8_t *made[2] = {(const uint8_t *)c->factors[g0],
                                  (const uint8_t *)c->factors[g0 + s.groups - 1]};
        const uint8_t *const *scales = s.factored ? made : packed;
        const uint8_t *act = c->act;
        load_acc(acc, c, g0, s.groups, s.tokens);
        for (int b = 0; b < c->blocks; b++) {
            if (!s.panel && c->ahead)
                UNROLL for (int g = 0; g < s.groups; g++)
                    fetch_block(packed[g], b, c->ahead, s.values, s.scales, times);
            block(acc, values, scales, b, act, &s);
            values[0] += step;
            values[1] += step;
            act += (size_t)s.tokens * record;
        }
        store_acc(acc, c, g0, s.groups, s.tokens);
    }
}

/* ---- instances ---- */

#define FEW_TOKENS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define TOKENS(X, ...)                                                                             \
    FEW_TOKENS(X, __VA_ARGS__)                                                                     \
    X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)

/* Groups that a kernel of a panel does at once. From memory one is better: one stream. */
#define GROUPS(tokens) ((tokens) <= 6 ? 2 : 1)

#define PANEL_CORE(n, name, flavour_, wide_)                                                       \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, (struct shape){.panel = true,                                                      \
                               .flavour = flavour_,                                                \
                               .wide = wide_,                                                      \
                               .groups = GROUPS(n),                                                \
                               .tokens = n});                                                      \
    }
#define DIRECT_CORE(n, name, values_, scales_, flavour_, bias_, table_, wide_)                     \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, (struct shape){.values = values_,                                                  \
                               .scales = scales_,                                                  \
                               .flavour = flavour_,                                                \
                               .bias = bias_,                                                      \
                               .table = table_,                                                    \
                               .wide = wide_,                                                      \
                               .groups = 1,                                                        \
                               .tokens = n});                                                      \
    }
#define ENTRY(n, name, ...) [n] = name##_##n,

#define CORES(kind, tokens, name, ...)                                                             \
    tokens(kind, name,                                                                             \
           __VA_ARGS__) static core_fn *const name[TILE_MAX + 1] = {tokens(ENTRY, name, )};
/* Of 8 and of 16 bits. */
#define DIRECT_CORES(name, ...)                                                                    \
    CORES(DIRECT_CORE, TOKENS, direct_##name, __VA_ARGS__, false)                                  \
    CORES(DIRECT_CORE, FEW_TOKENS, direct_wide_##name, __VA_ARGS__, true)

CORES(PANEL_CORE, TOKENS, panel_plain, FLAVOUR_PLAIN, false)
CORES(PANEL_CORE, TOKENS, panel_min, FLAVOUR_MIN, false)
CORES(PANEL_CORE, TOKENS, panel_half, FLAVOUR_HALF, false)
CORES(PANEL_CORE, TOKENS, panel_half_min, FLAVOUR_HALF_MIN, false)
CORES(PANEL_CORE, FEW_TOKENS, wide_plain, FLAVOUR_PLAIN, true)
CORES(PANEL_CORE, FEW_TOKENS, wide_min, FLAVOUR_MIN, true)
CORES(PANEL_CORE, FEW_TOKENS, wide_half, FLAVOUR_HALF, true)
CORES(PANEL_CORE, FEW_TOKENS, wide_half_min, FLAVOUR_HALF_MIN, true)

DIRECT_CORES(q4_0, VALUES_4, SCALES_F16, FLAVOUR_PLAIN, 8, NULL)
DIRECT_CORES(q4_1, VALUES_4, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL)
DIRECT_CORES(q5_0, VALUES_5, SCALES_F16, FLAVOUR_PLAIN, 16, NULL)
DIRECT_CORES(q5_1, VALUES_5, SCALES_F16_MIN, FLAVOUR_MIN, 0, NULL)
DIRECT_CORES(q8_0, VALUES_8, SCALES_F16, FLAVOUR_PLAIN, 128, NULL)
DIRECT_CORES(q4_k, VALUES_4, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL)
DIRECT_CORES(q5_k, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0, NULL)
DIRECT_CORES(q6_k, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32, NULL)
DIRECT_CORES(q2_k, VALUES_2, SCALES_K16_MIN, FLAVOUR_HALF_MIN, 0, NULL)
DIRECT_CORES(q3_k, VALUES_3, SCALES_K16, FLAVOUR_HALF, 4, NULL)
DIRECT_CORES(iq4_nl, VALUES_TABLE, SCALES_F16, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_NL]->table)
DIRECT_CORES(iq4_xs, VALUES_TABLE, SCALES_K, FLAVOUR_PLAIN, 0, codecs[FORMAT_IQ4_XS]->table)
DIRECT_CORES(mxfp4, VALUES_TABLE, SCALES_BF16, FLAVOUR_PLAIN, 0, codecs[FORMAT_MXFP4]->table)

/* ---- panels ---- */

INLINE void store_factors(float *p, const struct factors *f, enum flavour flavour)
{
    _mm512_store_ps(p, f->d);
    if (flavour == FLAVOUR_MIN)
        _mm512_store_ps(p + 16, f->m[0]);
    for (int h = 0; h < 2 && flavour >= FLAVOUR_HALF; h++) {
        _mm512_store_ps(p + 16 + 16 * h, f->s[h]);
        if (flavour == FLAVOUR_HALF_MIN)
            _mm512_store_ps(p + 48 + 16 * h, f->m[h]);
    }
}

/* Values of a panel are the same unsigned bytes that quad makes for itself, always with the offset
 * of a panel's kernels. */
INLINE void expand(const uint8_t *group, int blocks, int first, int count, uint8_t *values,
                   float *scales, struct shape s)
{
    size_t plane = scales_plane_bytes(s.scales, blocks);
    const uint8_t *from = group + plane + (size_t)first * (size_t)values_bytes[s.values];
    size_t n = 16 * (size_t)flavour_panel_scales[s.flavour];
    for (int b = first; b < first + count; b++) {
        struct factors f = packed_factors(group, b, s.scales);
        store_factors(scales, &f, s.flavour);
        UNROLL for (int j = 0; j < QUADS; j++)
        {
            __m512i q = quad(from, j, &s);
            if (s.bias == 8 && s.flavour == FLAVOUR_PLAIN)
                q = _mm512_add_epi8(q, _mm512_set1_epi8(120));
            _mm512_store_si512(values + j * QUAD_BYTES, q);
        }
        fetch_block(group, b, FETCH_AHEAD + plane, s.values, s.scales, 1);
        from += values_bytes[s.values];
        values += PANEL_VALUES;
        scales += n;
    }
}

#include "expand_body.h"

/* ---- whole tiles, scales made ready before ----
 *
 * With many tiles the scales of K formats are worth making once for all of them: the
 * multiplications that this takes go to the same two pipes as the products (Zen 4: 2 to 3 %). */

INLINE void make_factors(const uint8_t *group, int blocks, float *out, enum scales_kind scales,
                         enum flavour flavour)
{
    for (int b = 0; b < blocks; b++, out += 16 * flavour_panel_scales[flavour]) {
        struct factors f = packed_factors(group, b, scales);
        store_factors(out, &f, flavour);
    }
}

/* Those whose scales take most work. */
FACTORED(q4_k, SCALES_K_MIN, FLAVOUR_MIN, .values = VALUES_4, .groups = 1, .tokens = MOST8)
FACTORED(q5_k, SCALES_K_MIN, FLAVOUR_MIN, .values = VALUES_5, .groups = 1, .tokens = MOST8)

/* ---- the ceiling ---- */

static double peak(int rounds)
{
    enum { CHAINS = 12 }; /* more than the latency asks for */
    __m512i sum[CHAINS], w = _mm512_set1_epi32(rounds), a = w;
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = w;
    for (int n = 0; n < rounds; n++)
        UNROLL for (int i = 0; i < CHAINS; i++)
        {
            sum[i] = _mm512_dpbusd_epi32(sum[i], w, a);
            __asm__ volatile("" : "+v"(sum[i]));
        }
    return CHAINS * 128.0;
}

/* ---- the table ---- */

#define PANELS(plain, min, half, half_min)                                                         \
    {                                                                                              \
        [FORMAT_Q4_0] = plain, [FORMAT_Q4_1] = min, [FORMAT_Q5_0] = plain, [FORMAT_Q5_1] = min,    \
        [FORMAT_Q8_0] = plain, [FORMAT_Q2_K] = half_min, [FORMAT_Q3_K] = half,                     \
        [FORMAT_Q4_K] = min, [FORMAT_Q5_K] = min, [FORMAT_Q6_K] = half, [FORMAT_IQ4_NL] = plain,   \
        [FORMAT_IQ4_XS] = plain, [FORMAT_MXFP4] = plain, [FORMAT_TQ1_0] = plain,                   \
        [FORMAT_TQ2_0] = plain,                                                                    \
    }

#define DIRECT(prefix)                                                                             \
    {                                                                                              \
        [FORMAT_Q4_0] = prefix##q4_0, [FORMAT_Q4_1] = prefix##q4_1, [FORMAT_Q5_0] = prefix##q5_0,  \
        [FORMAT_Q5_1] = prefix##q5_1, [FORMAT_Q8_0] = prefix##q8_0, [FORMAT_Q2_K] = prefix##q2_k,  \
        [FORMAT_Q3_K] = prefix##q3_k, [FORMAT_Q4_K] = prefix##q4_k, [FORMAT_Q5_K] = prefix##q5_k,  \
        [FORMAT_Q6_K] = prefix##q6_k, [FORMAT_IQ4_NL] = prefix##iq4_nl,                            \
        [FORMAT_IQ4_XS] = prefix##iq4_xs, [FORMAT_MXFP4] = prefix##mxfp4                           \
    }

const struct matrix_ops matrix_ops_avx512 = {
    .tile = {[ACT_INT8] = MOST8, [ACT_INT16] = 4, [ACT_TILED] = 12},
    .direct_tiles = {[0 ... VALUES_TABLE] = INT_MAX},
    .fetch_ahead = FETCH_AHEAD,
    .factored_tiles = 4,
    .act_row = {act_row8_avx512, act_row16_avx512},
    .expand = {EXPANDERS(expand_), EXPANDERS(expand_)},
    .panel = {PANELS(panel_plain, panel_min, panel_half, panel_half_min),
              PANELS(wide_plain, wide_min, wide_half, wide_half_min)},
    .direct = DIRECT(direct_),
    .wide = DIRECT(direct_wide_),
    .floats =
        {
            [FORMAT_F32] = floats_f32_avx512,
            [FORMAT_F16] = floats_f16_avx512,
            [FORMAT_BF16] = floats_bf16_avx512,
        },
    .factors = {[FORMAT_Q4_K] = factors_q4_k, [FORMAT_Q5_K] = factors_q5_k},
    .factored = {[FORMAT_Q4_K] = factored_q4_k, [FORMAT_Q5_K] = factored_q5_k},
    .peak = peak,
};
