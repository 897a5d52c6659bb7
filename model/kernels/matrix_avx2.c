#include "kernels/avx2.h"
#include "kernels/fetch.h"

#include <limits.h>

/* Products with AVX2. A group of 16 rows is two halves of 8. Three ways:
 *
 *   unsigned bytes  pairs of weights times signed activations are added in 16 bits as long as that
 *                   cannot overflow (a whole block of 4-bit weights), then in 32. Where the bytes
 *                   count a bias too much, 16 bits hold the sum of 32 values of up to 5 bits, or
 *                   of 16 of 6 bits, if it begins with minus bias times their activations: what is
 *                   added already then counts (code - bias) x, what is not -bias x, either at most
 *                   bias |x|. Where 16 values share a factor, multiplying by that brings them to
 *                   32 bits
 *   signed bytes    |w| times the activation with w's sign
 *   words           activations as words, of 8 bits or of 16, times weights widened to words in a
 *                   panel */

/* Keeps the compiler from reassociating sums, which makes it spill. */
#define PIN(v) __asm__("" : "+x"(v))

enum { HALF_BYTES = 32, TILE = 4 };

enum {
    WHOLE = 0, /* all that share a factor, or the block; 8 bits only */
    SIGNED = 1 /* none: signed bytes */
};

/* Where a kernel's weights come from: a packed format, or a panel of the same integers. */
struct shape {
    bool panel;
    bool words;    /* activations are words, and so is the panel */
    bool factored; /* scales as those of a panel, values packed */
    enum values_kind values;
    enum scales_kind scales;
    int bias;  /* what the multiplied bytes count too much */
    int steps; /* quads that 16 bits can sum, or one of the following */
    const int8_t *table;
    enum flavour flavour;
    int tokens;
    bool wide; /* activations of two planes */
};

/* ---- weights ---- */

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* Bits [from, from + n) of each byte, moved to start at `to`; what else is there is masked off. */
INLINE __m256i bits(__m256i v, int from, int to, int n)
{
    __m256i moved = from > to   ? _mm256_srli_epi16(v, from - to)
                    : from < to ? _mm256_slli_epi16(v, to - from)
                                : v;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(((1 << n) - 1) << to)));
}

INLINE __m256i nibbles(const uint8_t *p, int j)
{
    return bits(load(p + j % 4 * QUAD_BYTES), j / 4 * 4, 0, 4);
}

INLINE __m256i pairs(const uint8_t *p, int j, int to)
{
    return bits(load(p + j / 4 * QUAD_BYTES), j % 4 * 2, to, 2);
}

INLINE __m256i codes(const uint8_t *p, int j, enum values_kind kind)
{
    switch (kind) {
    case VALUES_2:
        return pairs(p, j, 0);
    case VALUES_3:
        return _mm256_or_si256(pairs(p, j, 0), bits(load(p + 128), j, 2, 1));
    case VALUES_5:
        return _mm256_or_si256(nibbles(p, j), bits(load(p + 256), j, 4, 1));
    case VALUES_6:
        return _mm256_or_si256(nibbles(p, j), pairs(p + 256, j, 4));
    case VALUES_8:
        return _mm256_xor_si256(load(p + j * QUAD_BYTES), _mm256_set1_epi8((char)0x80));
    default:
        return nibbles(p, j);
    }
}

/* Quad j of 8 rows: unsigned bytes that count s->bias too much, or signed ones. */
INLINE __m256i quad(const uint8_t *p, int j, const struct shape *s)
{
    if (s->panel)
        return load(p + j * QUAD_BYTES);
    __m256i c = codes(p, j, s->values);
    if (!s->table)
        return c;
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)s->table)), c);
}

/* ---- scales ---- */

struct factors {
    __m256 d, s[2], m[2];
};

INLINE __m256 halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256i small_integers(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE __m256 small(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(small_integers(p));
}

INLINE __m256i small_words(const uint8_t *p)
{
    __m256i v = small_integers(p);
    return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa);
}

INLINE __m256 negative(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* All for 8 rows of a group, h counts halves. */
INLINE struct factors panel_factors(const uint8_t *plane, int b, int h, enum flavour flavour)
{
    const float *p = (const float *)plane + 8 * h;
    p += (size_t)b * 16 * (size_t)flavour_panel_scales[flavour];
    struct factors f = {.d = _mm256_load_ps(p)};
    if (flavour == FLAVOUR_MIN)
        f.m[0] = _mm256_load_ps(p + 16);
    for (int i = 0; i < 2 && flavour >= FLAVOUR_HALF; i++) {
        f.s[i] = _mm256_load_ps(p + 16 + 16 * i);
        if (flavour == FLAVOUR_HALF_MIN)
            f.m[i] = _mm256_load_ps(p + 48 + 16 * i);
    }
    return f;
}

INLINE struct factors packed_factors(const uint8_t *plane, int b, int h, enum scales_kind kind)
{
    const uint8_t *super = plane + scales_super_offset(kind, b) + 16 * h;
    const uint8_t *p = plane + scales_offset(kind, b) + 8 * h;
    const uint8_t *p16 = p + 8 * h; /* where elements have two bytes */
    struct factors f = {.d = _mm256_setzero_ps()};
    switch (kind) {
    case SCALES_F16_MIN:
        f.m[0] = halves(p16 + 32);
        /* fallthrough */
    case SCALES_F16:
        f.d = halves(p16);
        break;
    case SCALES_BF16:
        f.d = _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p16)), 16));
        break;
    case SCALES_K_MIN:
        f.m[0] = negative(_mm256_mul_ps(halves(super + 32), small(p + 16)));
        /* fallthrough */
    case SCALES_K:
        f.d = _mm256_mul_ps(halves(super), small(p));
        break;
    case SCALES_K16_MIN:
        f.m[0] = negative(_mm256_mul_ps(halves(super + 32), small(p + 32)));
        f.m[1] = negative(_mm256_mul_ps(halves(super + 32), small(p + 48)));
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

INLINE struct factors factors(const uint8_t *plane, int b, int h, const struct shape *s)
{
    return s->panel || s->factored ? panel_factors(plane, b, h, s->flavour)
                                   : packed_factors(plane, b, h, s->scales);
}

/* In place of factors.s, with activations of 8 bits: the factor of half i twice in each lane. */
INLINE __m256i factor_words(const uint8_t *plane, int b, int h, int i, const struct shape *s)
{
    if (s->panel || s->factored) {
        int at = 16 * (b * flavour_panel_scales[s->flavour] + 1 + i) + 8 * h;
        return _mm256_load_si256((const __m256i *)((const float *)plane + at));
    }
    return small_words(plane + scales_offset(s->scales, b) + 16 * i + 8 * h);
}

/* ---- the product ---- */

INLINE size_t record_bytes(const struct shape *s)
{
    return s->wide || s->words ? sizeof(struct act_block16) : sizeof(struct act_block);
}

INLINE const struct act_block *record_at(const uint8_t *act, int t, const struct shape *s)
{
    return (const struct act_block *)(act + (size_t)t * record_bytes(s));
}

/* Products of quad j, pairs of k added: 16 bits. */
INLINE __m256i products(__m256i w, __m256i magnitude, __m256i a, const struct shape *s)
{
    return s->steps == SIGNED ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w))
                              : _mm256_maddubs_epi16(w, a);
}

/* Sums of quads [j0, j0 + n), n quads being what 16 bits can hold; from what acc holds if `more`.
 */
INLINE void word_sums(__m256i (*acc)[MOST], const uint8_t *values, const uint8_t *act, size_t plane,
                      int j0, int n, bool more, const struct shape *s)
{
    UNROLL for (int j = j0; j < j0 + n; j++)
    {
        __m256i w[2], magnitude[2];
        UNROLL for (int h = 0; h < 2; h++)
        {
            w[h] = quad(values + h * HALF_BYTES, j, s);
            magnitude[h] = s->steps == SIGNED ? _mm256_abs_epi8(w[h]) : w[h];
        }
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            int32_t four;
            memcpy(&four, record_at(act, t, s)->q + plane + 4 * j, sizeof four);
            __m256i a = _mm256_set1_epi32(four);
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256i p = products(w[h], magnitude[h], a, s);
                acc[h][t] = j == j0 && !more ? p : _mm256_add_epi16(acc[h][t], p);
                PIN(acc[h][t]);
            }
        }
    }
}

/* Adds to sum what these quads give. */
INLINE void segment(__m256i (*sum)[MOST], const uint8_t *values, const uint8_t *act, size_t plane,
                    int j0, int n, bool first, const struct shape *s)
{
    __m256i acc[2][MOST];
    word_sums(acc, values, act, plane, j0, n, false, s);
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int t = 0; t < s->tokens; t++)
    {
        __m256i four = _mm256_madd_epi16(acc[h][t], _mm256_set1_epi16(1));
        sum[h][t] = first ? four : _mm256_add_epi32(sum[h][t], four);
    }
}

INLINE void dots(__m256i (*sum)[MOST], const uint8_t *values, const uint8_t *act, size_t plane,
                 int j0, int j1, const struct shape *s)
{
    int n = s->steps < j1 - j0 ? s->steps : j1 - j0;
    UNROLL for (int j = j0; j < j1; j += n) segment(sum, values, act, plane, j, n, j == j0, s);
}

/* What 16-bit activations begin with: minus bias times their sum. */
INLINE __m256i start(const struct act_block *a, int half, const struct shape *s)
{
    __m256i v = _mm256_set1_epi32(s->flavour == FLAVOUR_HALF ? a->n32[half] : a->n8);
    return s->bias == 16 ? _mm256_slli_epi32(v, 1) : v;
}

/* What 8-bit activations begin with: the same in two words a lane, as their products are added. */
INLINE __m256i start_words(const struct act_block *a, int half, const struct shape *s)
{
    __m256i v = _mm256_set1_epi32(s->flavour == FLAVOUR_HALF ? a->n32[half] : a->n8);
    bool less = s->bias == 4 || s->bias == 1;
    return less ? _mm256_srai_epi16(v, 3) : s->bias == 16 ? _mm256_slli_epi16(v, 1) : v;
}

/* The integers of quads [j0, j1): with 16-bit activations 255 * high + low. */
INLINE void integers(__m256i (*sum)[MOST], const uint8_t *values, const uint8_t *act, int j0,
                     int j1, const struct shape *s)
{
    dots(sum, values, act, 0, j0, j1, s);
    if (!s->wide)
        return;
    __m256i low[2][MOST];
    dots(low, values, act, 32, j0, j1, s);
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int t = 0; t < s->tokens; t++)
        sum[h][t] = _mm256_add_epi32(low[h][t],
                                     _mm256_sub_epi32(_mm256_slli_epi32(sum[h][t], 8), sum[h][t]));
    if (s->bias)
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            __m256i from = start(record_at(act, t, s), j0 / 4, s);
            UNROLL for (int h = 0; h < 2; h++) sum[h][t] = _mm256_add_epi32(sum[h][t], from);
        }
}

/* The integers of a block, its halves, if they have factors, times those. Less than 2^24, so other
 * levels get the same from floats. */
INLINE void whole_integers(__m256i (*sum)[MOST], const uint8_t *values, const uint8_t *scales,
                           int b, const uint8_t *act, const struct shape *s)
{
    bool half = s->flavour >= FLAVOUR_HALF;
    int quads = half ? QUADS / 2 : QUADS;
    UNROLL for (int i = 0; i < QUADS / quads; i++)
    {
        __m256i acc[2][MOST];
        if (s->bias)
            UNROLL for (int t = 0; t < s->tokens; t++)
                acc[0][t] = acc[1][t] = start_words(record_at(act, t, s), i, s);
        word_sums(acc, values, act, 0, i * quads, quads, s->bias != 0, s);
        UNROLL for (int h = 0; h < 2; h++)
        {
            __m256i f = half ? factor_words(scales, b, h, i, s) : _mm256_set1_epi16(1);
            UNROLL for (int t = 0; t < s->tokens; t++)
            {
                __m256i all = _mm256_madd_epi16(acc[h][t], f);
                sum[h][t] = i == 0 ? all : _mm256_add_epi32(sum[h][t], all);
            }
        }
    }
}

/* ---- words ----
 *
 * One multiplication for 16 products, and none to widen sums: for many tokens that is worth twice
 * the bytes (Zen 3, signed bytes of weights, 512 tokens: 240 -> 280 GOP/s on both cores; planes of
 * 16 bits: 220 -> 270).
 *
 * Words of even k and of odd k lie in vectors of their own: an arithmetic shift makes either from
 * bytes. Quad j of a panel of words is [even, odd][16 rows][2 words]; of a token's record, dword j
 * of its even half and dword j of its odd half meet it. */

enum { WORD_QUAD_BYTES = 2 * QUAD_BYTES, WORD_PANEL_VALUES = QUADS * WORD_QUAD_BYTES };

/* In a record. */
static const size_t word_half[] = {offsetof(struct act_block16, high.q),
                                   offsetof(struct act_block16, low)};

INLINE __m256i even_words(__m256i bytes)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}

INLINE __m256i odd_words(__m256i bytes)
{
    return _mm256_srai_epi16(bytes, 8);
}

/* The integers of quads [j0, j1). */
INLINE void word_integers(__m256i (*sum)[MOST], const uint8_t *values, const uint8_t *act, int j0,
                          int j1, const struct shape *s)
{
    UNROLL for (int i = 2 * j0; i < 2 * j1; i++)
    {
        __m256i w[2];
        UNROLL for (int h = 0; h < 2; h++)
        {
            w[h] = load(values + i * QUAD_BYTES + h * HALF_BYTES);
            PIN(w[h]);
        }
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            int32_t two;
            const uint8_t *record = (const uint8_t *)record_at(act, t, s);
            memcpy(&two, record + word_half[i % 2] + i / 2 * sizeof two, sizeof two);
            __m256i a = _mm256_set1_epi32(two);
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256i p = _mm256_madd_epi16(w[h], a);
                sum[h][t] = i == 2 * j0 ? p : _mm256_add_epi32(sum[h][t], p);
                PIN(sum[h][t]);
            }
        }
    }
}

/* ---- blocks ---- */

INLINE __m256 chain(__m256 acc, __m256 p, const struct factors *f, const struct act_block *a,
                    enum flavour flavour)
{
    acc = _mm256_fmadd_ps(p, _mm256_mul_ps(f->d, _mm256_set1_ps(a->d)), acc);
    if (flavour == FLAVOUR_MIN)
        acc = _mm256_fmadd_ps(f->m[0], _mm256_set1_ps(a->dsum), acc);
    if (flavour == FLAVOUR_HALF_MIN) {
        acc = _mm256_fmadd_ps(f->m[0], _mm256_set1_ps(a->dsum16[0]), acc);
        acc = _mm256_fmadd_ps(f->m[1], _mm256_set1_ps(a->dsum16[1]), acc);
    }
    return acc;
}

/* One block into the accumulators. */
INLINE void block(__m256 (*acc)[MOST], const uint8_t *values, const uint8_t *scales, int b,
                  const uint8_t *act, const struct shape *s)
{
    bool half = s->flavour >= FLAVOUR_HALF;
    __m256i sum[2][2][MOST];
    bool whole = !s->wide && !s->words && (half || s->bias);
    if (whole) {
        whole_integers(sum[0], values, scales, b, act, s);
    } else if (s->words) {
        word_integers(sum[0], values, act, 0, half ? 4 : 8, s);
        if (half)
            word_integers(sum[1], values, act, 4, 8, s);
    } else {
        integers(sum[0], values, act, 0, half ? 4 : 8, s);
        if (half)
            integers(sum[1], values, act, 4, 8, s);
    }
    UNROLL for (int h = 0; h < 2; h++)
    {
        struct factors f = factors(scales, b, h, s);
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            __m256 p = _mm256_cvtepi32_ps(sum[0][h][t]);
            if (half && !whole)
                p = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[1][h][t]), f.s[1],
                                    _mm256_mul_ps(p, f.s[0]));
            acc[h][t] = chain(acc[h][t], p, &f, record_at(act, t, s), s->flavour);
        }
    }
}

/* The kernel: one group at a time, whole tile, all blocks. */
INLINE void core(const struct core *c, const struct shape s)
{
    size_t step = s.words   ? WORD_PANEL_VALUES
                  : s.panel ? PANEL_VALUES
                            : (size_t)values_bytes[s.values];
    for (int g = 0; g < 2 && c->rows > 16 * g; g++) {
        __m256 acc[2][MOST];
        const uint8_t *values = c->values[g], *act = c->act;
        const uint8_t *scales = s.factored ? (const uint8_t *)c->factors[g] : c->scales[g];
        load_acc(acc, c, g, s.tokens);
        for (int b = 0; b < c->blocks; b++) {
            if (!s.panel && c->ahead)
                fetch_block(c->scales[g], b, c->ahead, s.values, s.scales, 1);
            block(acc, values, scales, b, act, &s);
            values += step;
            act += (size_t)s.tokens * record_bytes(&s);
        }
        store_acc(acc, c, g, s.tokens);
    }
}

/* ---- instances ---- */

#define TOKENS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)

#define PANEL_CORE(n, name, steps_, flavour_, bias_)                                               \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(                                                                                      \
            c,                                                                                     \
            (struct shape){                                                                        \
                .panel = true, .steps = steps_, .flavour = flavour_, .bias = bias_, .tokens = n}); \
    }
#define WORD_CORE(n, name, flavour_)                                                               \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, (struct shape){.panel = true, .words = true, .flavour = flavour_, .tokens = n});   \
    }
/* Of a packed format. */
#define PACKED(n, steps_, values_, scales_, flavour_, bias_, wide_)                                \
    (struct shape)                                                                                 \
    {                                                                                              \
        .steps = steps_, .values = values_, .scales = scales_, .flavour = flavour_, .bias = bias_, \
        .wide = wide_, .tokens = n                                                                 \
    }
#define DIRECT_CORE(n, name, ...)                                                                  \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, PACKED(n, __VA_ARGS__));                                                           \
    }
#define ENTRY(n, name, ...) [n] = name##_##n,

#define CORES(kind, name, ...)                                                                     \
    TOKENS(kind, name, __VA_ARGS__)                                                                \
    static core_fn *const name[TILE_MAX + 1] = {TOKENS(ENTRY, name, )};
/* Of 8 and of 16 bits. */
#define DIRECT_CORES(name, ...)                                                                    \
    CORES(DIRECT_CORE, name, __VA_ARGS__, false)                                                   \
    CORES(DIRECT_CORE, wide_##name, __VA_ARGS__, true)

/* name, steps, flavour, bias */
CORES(PANEL_CORE, panel_q4_0, WHOLE, FLAVOUR_PLAIN, 8)
CORES(PANEL_CORE, panel_tq, WHOLE, FLAVOUR_PLAIN, 1)
CORES(PANEL_CORE, panel_u4_min, 8, FLAVOUR_MIN, 0)
CORES(PANEL_CORE, panel_q5_0, WHOLE, FLAVOUR_PLAIN, 16)
CORES(PANEL_CORE, panel_u5_min, 4, FLAVOUR_MIN, 0)
CORES(PANEL_CORE, panel_s8, SIGNED, FLAVOUR_PLAIN, 0)
CORES(PANEL_CORE, panel_q2_k, WHOLE, FLAVOUR_HALF_MIN, 0)
CORES(PANEL_CORE, panel_q3_k, WHOLE, FLAVOUR_HALF, 4)
CORES(PANEL_CORE, panel_q6_k, WHOLE, FLAVOUR_HALF, 32)

/* name, flavour */
CORES(WORD_CORE, words_plain, FLAVOUR_PLAIN)
CORES(WORD_CORE, words_min, FLAVOUR_MIN)
CORES(WORD_CORE, words_half, FLAVOUR_HALF)
CORES(WORD_CORE, words_half_min, FLAVOUR_HALF_MIN)

/* name, steps (8 bits with a bias: WHOLE all the same), values, scales, flavour, bias */
DIRECT_CORES(direct_q4_0, 8, VALUES_4, SCALES_F16, FLAVOUR_PLAIN, 8)
DIRECT_CORES(direct_q4_1, 8, VALUES_4, SCALES_F16_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q5_0, 4, VALUES_5, SCALES_F16, FLAVOUR_PLAIN, 16)
DIRECT_CORES(direct_q5_1, 4, VALUES_5, SCALES_F16_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q8_0, SIGNED, VALUES_8, SCALES_F16, FLAVOUR_PLAIN, 0)
DIRECT_CORES(direct_q4_k, 8, VALUES_4, SCALES_K_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q5_k, 4, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q6_k, 2, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32)

/* ---- panels ---- */

INLINE void store_factors(const uint8_t *plane, int b, int h, float *p, const struct shape *s)
{
    struct factors f = packed_factors(plane, b, h, s->scales);
    _mm256_store_ps(p, f.d);
    if (s->flavour == FLAVOUR_MIN)
        _mm256_store_ps(p + 16, f.m[0]);
    for (int i = 0; i < 2 && s->flavour >= FLAVOUR_HALF; i++) {
        __m256 words = _mm256_castsi256_ps(factor_words(plane, b, h, i, s));
        _mm256_store_ps(p + 16 + 16 * i, s->words ? f.s[i] : words);
        if (s->flavour == FLAVOUR_HALF_MIN)
            _mm256_store_ps(p + 48 + 16 * i, f.m[i]);
    }
}

/* The weights themselves, without what unsigned codes count too much. */
INLINE __m256i signed_quad(const uint8_t *p, int j, const struct shape *s)
{
    __m256i q = quad(p, j, s);
    bool is_signed = s->table || s->values == VALUES_8;
    return is_signed ? q : _mm256_sub_epi8(q, _mm256_set1_epi8((char)s->bias));
}

INLINE void store_quad(uint8_t *p, __m256i v)
{
    _mm256_store_si256((__m256i *)p, v);
}

/* 8 rows of a block. */
INLINE void expand_half(uint8_t *values, const uint8_t *from, const struct shape *s)
{
    UNROLL for (int j = 0; j < QUADS; j++)
    {
        if (s->words) {
            __m256i v = signed_quad(from, j, s);
            store_quad(values + j * WORD_QUAD_BYTES, even_words(v));
            store_quad(values + j * WORD_QUAD_BYTES + QUAD_BYTES, odd_words(v));
        } else {
            store_quad(values + j * QUAD_BYTES, quad(from, j, s));
        }
    }
}

/* Block b of a group, whose values lie at `from`. */
INLINE void expand_block(const uint8_t *group, int b, const uint8_t *from, uint8_t *values,
                         float *scales, const struct shape *s)
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        store_factors(group, b, h, scales + 8 * h, s);
        expand_half(values + h * HALF_BYTES, from + h * HALF_BYTES, s);
    }
}

INLINE void expand(const uint8_t *group, int blocks, int first, int count, uint8_t *values,
                   float *scales, struct shape s)
{
    size_t plane = scales_plane_bytes(s.scales, blocks);
    const uint8_t *from = group + plane + (size_t)first * (size_t)values_bytes[s.values];
    for (int b = first; b < first + count; b++) {
        expand_block(group, b, from, values, scales, &s);
        fetch_block(group, b, FETCH_AHEAD + plane, s.values, s.scales, 1);
        from += values_bytes[s.values];
        values += s.words ? WORD_PANEL_VALUES : PANEL_VALUES;
        scales += 16 * (size_t)flavour_panel_scales[s.flavour];
    }
}

#include "expand_body.h"
PACKED_FORMATS(EXPAND, expand_words_, .words = true)

/* ---- whole tiles, scales made ready before ----
 *
 * The scales of K formats are worth making once for several tiles (Zen 3, Q4_K: 183 -> 206 GOP/s a
 * core at 16 tokens). */

INLINE void make_factors(const uint8_t *group, int blocks, float *out, enum scales_kind scales,
                         enum flavour flavour)
{
    const struct shape s = {.scales = scales, .flavour = flavour};
    for (int b = 0; b < blocks; b++, out += 16 * flavour_panel_scales[flavour])
        UNROLL for (int h = 0; h < 2; h++) store_factors(group, b, h, out + 8 * h, &s);
}

FACTORED(q4_k, SCALES_K_MIN, FLAVOUR_MIN, .values = VALUES_4, .steps = 8, .tokens = TILE)

/* ---- whole tiles, block by block ----
 *
 * Where taking weights apart is dear, a block is taken apart once for all tiles, at the same time
 * as the tiles of the block before are multiplied (Zen 3, 16 tokens, both cores: Q6_K 305 -> 375
 * GOP/s; Q4_K, whose values cost two instructions, 407 -> 390). A panel does not do that: it is
 * made first, and pays only for dozens of tokens. */

INLINE void load_sums(__m256 (*acc)[MOST], float (*sums)[TILE][8])
{
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int t = 0; t < TILE; t++)
        acc[h][t] = _mm256_load_ps(sums[h][t]);
}

INLINE void blockwise(const struct core *c, const struct shape packed)
{
    float sums[BLOCKWISE_TILES][2][TILE][8] __attribute__((aligned(32)));
    uint8_t values[PANEL_VALUES] __attribute__((aligned(32)));
    float scales[5 * MATRIX_GROUP] __attribute__((aligned(32)));
    struct shape s = packed;
    s.panel = true;
    for (int g = 0; g < 2 && c->rows > 16 * g; g++) {
        const uint8_t *from = c->values[g];
        memset(sums, 0, (size_t)c->tiles * sizeof sums[0]);
        for (int b = 0; b < c->blocks; b++, from += values_bytes[s.values]) {
            expand_block(c->scales[g], b, from, values, scales, &packed);
            fetch_block(c->scales[g], b, c->ahead, s.values, s.scales, 1);
            const uint8_t *act = c->act + (size_t)b * TILE * sizeof(struct act_block);
            for (int i = 0; i < c->tiles; i++) {
                __m256 acc[2][MOST];
                load_sums(acc, sums[i]);
                block(acc, values, (const uint8_t *)scales, 0, act, &s);
                UNROLL for (int h = 0; h < 2; h++) UNROLL for (int t = 0; t < TILE; t++)
                    _mm256_store_ps(sums[i][h][t], acc[h][t]);
                act += (size_t)c->blocks * TILE * sizeof(struct act_block);
            }
        }
        struct core tile = *c;
        for (int i = 0; i < c->tiles; i++, tile.out += TILE * c->out_stride) {
            __m256 acc[2][MOST];
            load_sums(acc, sums[i]);
            store_acc(acc, &tile, g, TILE);
        }
    }
}

#define BLOCKWISE(name, ...)                                                                       \
    static void name(const struct core *c)                                                         \
    {                                                                                              \
        blockwise(c, PACKED(TILE, __VA_ARGS__, false));                                            \
    }
/* name, steps, values, scales, flavour, bias */
BLOCKWISE(blockwise_q5_0, WHOLE, VALUES_5, SCALES_F16, FLAVOUR_PLAIN, 16)
BLOCKWISE(blockwise_q5_1, 4, VALUES_5, SCALES_F16_MIN, FLAVOUR_MIN, 0)
BLOCKWISE(blockwise_q5_k, 4, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0)
BLOCKWISE(blockwise_q6_k, WHOLE, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32)

/* ---- the table ---- */

#define PANELS                                                                                     \
    {                                                                                              \
        [FORMAT_Q4_0] = panel_q4_0, [FORMAT_Q4_1] = panel_u4_min, [FORMAT_Q5_0] = panel_q5_0,      \
        [FORMAT_Q5_1] = panel_u5_min, [FORMAT_Q2_K] = panel_q2_k, [FORMAT_Q3_K] = panel_q3_k,      \
        [FORMAT_Q4_K] = panel_u4_min, [FORMAT_Q5_K] = panel_u5_min, [FORMAT_Q6_K] = panel_q6_k,    \
        [FORMAT_IQ4_NL] = panel_s8, [FORMAT_IQ4_XS] = panel_s8, [FORMAT_MXFP4] = panel_s8,         \
        [FORMAT_TQ1_0] = panel_tq, [FORMAT_TQ2_0] = panel_tq,                                      \
    }

#define WORD_PANELS                                                                                \
    {                                                                                              \
        [FORMAT_Q4_0] = words_plain, [FORMAT_Q4_1] = words_min, [FORMAT_Q5_0] = words_plain,       \
        [FORMAT_Q5_1] = words_min, [FORMAT_Q8_0] = words_plain, [FORMAT_Q2_K] = words_half_min,    \
        [FORMAT_Q3_K] = words_half, [FORMAT_Q4_K] = words_min, [FORMAT_Q5_K] = words_min,          \
        [FORMAT_Q6_K] = words_half, [FORMAT_IQ4_NL] = words_plain, [FORMAT_IQ4_XS] = words_plain,  \
        [FORMAT_MXFP4] = words_plain, [FORMAT_TQ1_0] = words_plain, [FORMAT_TQ2_0] = words_plain,  \
    }

/* ---- the ceiling: Q4's two instructions ---- */

static double peak(int rounds)
{
    enum { CHAINS = 10 };
    __m256i sum[CHAINS], w = _mm256_set1_epi32(rounds), a = w;
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = w;
    for (int n = 0; n < rounds; n++) {
        UNROLL for (int i = 0; i < CHAINS; i++)
        {
            PIN(a); /* else one product serves all chains */
            sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(w, a));
            PIN(sum[i]);
        }
    }
    UNROLL for (int i = 0; i < CHAINS; i++)
    {
        __asm__ volatile("" : : "x"(sum[i])); /* else nothing is computed */
    }
    return CHAINS * 64.0;
}

#define DIRECT(prefix)                                                                             \
    {                                                                                              \
        [FORMAT_Q4_0] = prefix##direct_q4_0, [FORMAT_Q4_1] = prefix##direct_q4_1,                  \
        [FORMAT_Q5_0] = prefix##direct_q5_0, [FORMAT_Q5_1] = prefix##direct_q5_1,                  \
        [FORMAT_Q8_0] = prefix##direct_q8_0, [FORMAT_Q4_K] = prefix##direct_q4_k,                  \
        [FORMAT_Q5_K] = prefix##direct_q5_k, [FORMAT_Q6_K] = prefix##direct_q6_k                   \
    }

/* From where words pay (Zen 3, 8,192 x 2,048, both cores, ms without and with words): 8 bits, Q8_0
 * with 16 tokens 2.29 and 2.43, with 32 4.73 and 4.30; IQ4_NL with 1 token 0.49 and 0.58, with 4
 * 0.86 and 0.85, with 8 1.39 and 1.33. 16 bits, 4 tokens: Q4_K 0.84 and 0.90, Q6_K 0.97 and 1.03,
 * Q8_0 1.34 and 1.12; what has no direct kernels for two planes takes words always. */
const struct matrix_ops matrix_ops_avx2 = {
    .tile = {[ACT_INT8... ACT_WORDS16] = TILE, [ACT_TILED] = 6},
    .direct_tiles = {[VALUES_4] = 8, [VALUES_5] = 16, [VALUES_6] = 16, [VALUES_8] = INT_MAX},
    .factored_tiles = 2,
    .words_from = {[MATRIX_INT8] = {[VALUES_8] = 5 * TILE + 1, [VALUES_TABLE] = TILE + 1},
                   [MATRIX_INT16] = {[VALUES_2] = 1,
                                     [VALUES_3] = 1,
                                     [VALUES_4] = TILE + 1,
                                     [VALUES_5] = TILE + 1,
                                     [VALUES_6] = TILE + 1,
                                     [VALUES_8] = TILE,
                                     [VALUES_TABLE] = 1}},
    .act_row = {act_row8_avx2, act_row16_avx2, act_words8_avx2, act_words16_avx2},
    .fetch_ahead = 1024,
    .expand = {[ACT_INT8] = EXPANDERS(expand_),
               [ACT_WORDS8] = EXPANDERS(expand_words_),
               [ACT_WORDS16] = EXPANDERS(expand_words_)},
    .panel = {[ACT_INT8] = PANELS, [ACT_WORDS8] = WORD_PANELS, [ACT_WORDS16] = WORD_PANELS},
    .direct = DIRECT(),
    .factors = {[FORMAT_Q4_K] = factors_q4_k},
    .factored = {[FORMAT_Q4_K] = factored_q4_k},
    .blockwise = {[FORMAT_Q5_0] = blockwise_q5_0,
                  [FORMAT_Q5_1] = blockwise_q5_1,
                  [FORMAT_Q5_K] = blockwise_q5_k,
                  [FORMAT_Q6_K] = blockwise_q6_k},
    .wide = DIRECT(wide_),
    .floats =
        {
            [FORMAT_F32] = floats_f32_avx2,
            [FORMAT_F16] = floats_f16_avx2,
            [FORMAT_BF16] = floats_bf16_avx2,
        },
    .peak = peak,
};
