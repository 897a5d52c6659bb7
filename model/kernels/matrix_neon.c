#include "kernels/fetch.h"
#include "kernels/neon.h"

/* Products with NEON's dot product: four s8 weights times four s8 activations into 32 bits, which
 * always holds. Every code fits a signed byte once its bias is taken off, so that there is one core
 * per flavour of scales, whatever the format. */

/* Where a kernel's weights come from: a packed format, or a panel of the same integers. */
struct shape {
    bool panel;
    enum values_kind values;
    enum scales_kind scales;
    int bias;
    const int8_t *table;
    enum flavour flavour;
    int tokens;
    bool wide; /* activations of 16 bits */
};

/* ---- weights ---- */

/* Bits [from, from + n) of each byte, moved to start at `to`. */
INLINE uint8x16_t bits(uint8x16_t v, int from, int to, int n)
{
    return (v >> (uint8_t)from & (uint8_t)((1 << n) - 1)) << (uint8_t)to;
}

INLINE uint8x16_t nibbles(const uint8_t *p, int j)
{
    return bits(vld1q_u8(p + j % 4 * QUAD_BYTES), j / 4 * 4, 0, 4);
}

INLINE uint8x16_t pairs(const uint8_t *p, int j, int to)
{
    return bits(vld1q_u8(p + j / 4 * QUAD_BYTES), j % 4 * 2, to, 2);
}

INLINE uint8x16_t codes(const uint8_t *p, int j, enum values_kind kind)
{
    switch (kind) {
    case VALUES_2:
        return pairs(p, j, 0);
    case VALUES_3:
        return pairs(p, j, 0) | bits(vld1q_u8(p + 128), j, 2, 1);
    case VALUES_5:
        return nibbles(p, j) | bits(vld1q_u8(p + 256), j, 4, 1);
    case VALUES_6:
        return nibbles(p, j) | pairs(p + 256, j, 4);
    case VALUES_8:
        return vld1q_u8(p + j * QUAD_BYTES);
    default:
        return nibbles(p, j);
    }
}

/* Quad j of 4 rows. */
INLINE int8x16_t quad(const uint8_t *p, int j, const struct shape *s)
{
    if (s->panel)
        return vld1q_s8((const int8_t *)p + j * QUAD_BYTES);
    uint8x16_t c = codes(p, j, s->values);
    if (s->table)
        return vqtbl1q_s8(vld1q_s8(s->table), c);
    return vreinterpretq_s8_u8(vsubq_u8(c, vdupq_n_u8((uint8_t)s->bias)));
}

/* ---- scales ---- */

struct factors {
    float32x4_t d, s[2], m[2];
};

INLINE float32x4_t small(const uint8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

/* All for vector v of a group, 4 rows. */
INLINE struct factors panel_factors(const uint8_t *plane, int b, int v, enum flavour flavour)
{
    const float *p = (const float *)plane + 4 * v;
    p += (size_t)b * 16 * (size_t)flavour_panel_scales[flavour];
    struct factors f = {.d = vld1q_f32(p)};
    if (flavour == FLAVOUR_MIN)
        f.m[0] = vld1q_f32(p + 16);
    for (int i = 0; i < 2 && flavour >= FLAVOUR_HALF; i++) {
        f.s[i] = vld1q_f32(p + 16 + 16 * i);
        if (flavour == FLAVOUR_HALF_MIN)
            f.m[i] = vld1q_f32(p + 48 + 16 * i);
    }
    return f;
}

INLINE float32x4_t minimum(const uint8_t *super, const uint8_t *offset)
{
    return vnegq_f32(vmulq_f32(half_floats(super + 32), small(offset)));
}

INLINE struct factors packed_factors(const uint8_t *plane, int b, int v, enum scales_kind kind)
{
    const uint8_t *super = plane + scales_super_offset(kind, b) + 8 * v;
    const uint8_t *p = plane + scales_offset(kind, b) + 4 * v;
    const uint8_t *p16 = p + 4 * v; /* where elements have two bytes */
    struct factors f = {.d = vdupq_n_f32(0)};
    switch (kind) {
    case SCALES_F16_MIN:
        f.m[0] = half_floats(p16 + 32);
        /* fallthrough */
    case SCALES_F16:
        f.d = half_floats(p16);
        break;
    case SCALES_BF16:
        f.d = bfloat_floats(p16);
        break;
    case SCALES_K_MIN:
        f.m[0] = minimum(super, p + 16);
        /* fallthrough */
    case SCALES_K:
        f.d = vmulq_f32(half_floats(super), small(p));
        break;
    case SCALES_K16_MIN:
        f.m[0] = minimum(super, p + 32);
        f.m[1] = minimum(super, p + 48);
        /* fallthrough */
    case SCALES_K16:
        f.d = half_floats(super);
        f.s[0] = small(p);
        f.s[1] = small(p + 16);
        break;
    default:
        break;
    }
    return f;
}

INLINE struct factors factors(const uint8_t *plane, int b, int v, const struct shape *s)
{
    return s->panel ? panel_factors(plane, b, v, s->flavour)
                    : packed_factors(plane, b, v, s->scales);
}

/* ---- the product ---- */

INLINE const struct act_block *record_at(const uint8_t *act, int t, const struct shape *s)
{
    size_t bytes = s->wide ? sizeof(struct act_block16) : sizeof(struct act_block);
    return (const struct act_block *)(act + (size_t)t * bytes);
}

/* Four rows times four k, those of lane `lane` of a. The lane is a number in the instruction. */
INLINE int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t a, int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, w, a, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, a, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, a, 2);
    default:
        return vdotq_laneq_s32(sum, w, a, 3);
    }
}

/* Adds what the quads of one half of a block, 16 k, give for n vectors of rows. `plane` tells the
 * bytes of the activations. */
INLINE void dots(int32x4_t (*sum)[MOST], const uint8_t *values, const uint8_t *act, size_t plane,
                 int half, int n, const struct shape *s)
{
    int8x16_t a[MOST];
    UNROLL for (int t = 0; t < s->tokens; t++)
        a[t] = vld1q_s8(record_at(act, t, s)->q + plane + 16 * half);
    UNROLL for (int j = 0; j < 4; j++) UNROLL for (int v = 0; v < n; v++)
    {
        int8x16_t w = quad(values + 16 * v, 4 * half + j, s);
        UNROLL for (int t = 0; t < s->tokens; t++) sum[v][t] = dot(sum[v][t], w, a[t], j);
    }
}

INLINE void clear(int32x4_t (*sum)[MOST], int n, int tokens)
{
    UNROLL for (int v = 0; v < n; v++) UNROLL for (int t = 0; t < tokens; t++)
        sum[v][t] = vdupq_n_s32(0);
}

/* The integers of halves [first, last): with 16-bit activations 255 * high + low. */
INLINE void integers(int32x4_t (*sum)[MOST], const uint8_t *values, const uint8_t *act, int first,
                     int last, int n, const struct shape *s)
{
    clear(sum, n, s->tokens);
    UNROLL for (int half = first; half < last; half++) dots(sum, values, act, 0, half, n, s);
    if (!s->wide)
        return;
    UNROLL for (int v = 0; v < n; v++) UNROLL for (int t = 0; t < s->tokens; t++)
        sum[v][t] = vmulq_s32(sum[v][t], vdupq_n_s32(ACT_PLANE));
    UNROLL for (int half = first; half < last; half++) dots(sum, values, act, 32, half, n, s);
}

INLINE float32x4_t chain(float32x4_t acc, float32x4_t p, const struct factors *f,
                         const struct act_block *a, enum flavour flavour)
{
    acc = vfmaq_f32(acc, p, vmulq_f32(f->d, vdupq_n_f32(a->d)));
    if (flavour == FLAVOUR_MIN)
        acc = vfmaq_f32(acc, f->m[0], vdupq_n_f32(a->dsum));
    if (flavour == FLAVOUR_HALF_MIN) {
        acc = vfmaq_f32(acc, f->m[0], vdupq_n_f32(a->dsum16[0]));
        acc = vfmaq_f32(acc, f->m[1], vdupq_n_f32(a->dsum16[1]));
    }
    return acc;
}

/* One block into the accumulators of vectors [v0, v0 + n). */
INLINE void block(float32x4_t (*acc)[MOST], const uint8_t *values, const uint8_t *scales, int b,
                  const uint8_t *act, int v0, int n, const struct shape *s)
{
    bool half = s->flavour >= FLAVOUR_HALF;
    int32x4_t sum[2][VECTORS][MOST];
    values += 16 * v0;
    integers(sum[0], values, act, 0, half ? 1 : 2, n, s);
    if (half)
        integers(sum[1], values, act, 1, 2, n, s);
    UNROLL for (int v = 0; v < n; v++)
    {
        struct factors f = factors(scales, b, v0 + v, s);
        UNROLL for (int t = 0; t < s->tokens; t++)
        {
            float32x4_t p = vcvtq_f32_s32(sum[0][v][t]);
            if (half)
                p = vfmaq_f32(vmulq_f32(p, f.s[0]), vcvtq_f32_s32(sum[1][v][t]), f.s[1]);
            acc[v0 + v][t] = chain(acc[v0 + v][t], p, &f, record_at(act, t, s), s->flavour);
        }
    }
}

/* The kernel: one group at a time, whole tile, all blocks. As many vectors of rows at once as leave
 * room for all accumulators in 32 registers. */
INLINE void core(const struct core *c, const struct shape s)
{
    size_t record = s.wide ? sizeof(struct act_block16) : sizeof(struct act_block);
    size_t step = s.panel ? PANEL_VALUES : (size_t)values_bytes[s.values];
    int n = (s.tokens <= 2 ? 4 : 2) / (s.flavour >= FLAVOUR_HALF ? 2 : 1);
    for (int g = 0; g < 2 && c->rows > 16 * g; g++) {
        float32x4_t acc[VECTORS][MOST];
        const uint8_t *values = c->values[g], *act = c->act;
        load_acc(acc, c, g, s.tokens);
        for (int b = 0; b < c->blocks; b++) {
            if (!s.panel && c->ahead)
                fetch_block(c->scales[g], b, c->ahead, s.values, s.scales, 1);
            UNROLL for (int v = 0; v < VECTORS; v += n)
                block(acc, values, c->scales[g], b, act, v, n, &s);
            values += step;
            act += (size_t)s.tokens * record;
        }
        store_acc(acc, c, g, s.tokens);
    }
}

/* ---- instances ---- */

#define TOKENS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)

#define PANEL_CORE(n, name, flavour_, wide_)                                                       \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, (struct shape){.panel = true, .flavour = flavour_, .wide = wide_, .tokens = n});   \
    }
#define DIRECT_CORE(n, name, values_, scales_, flavour_, bias_)                                    \
    static void name##_##n(const struct core *c)                                                   \
    {                                                                                              \
        core(c, (struct shape){.values = values_,                                                  \
                               .scales = scales_,                                                  \
                               .flavour = flavour_,                                                \
                               .bias = bias_,                                                      \
                               .tokens = n});                                                      \
    }
#define ENTRY(n, name, ...) [n] = name##_##n,

#define PANEL_CORES(name, flavour)                                                                 \
    TOKENS(PANEL_CORE, name, flavour, false)                                                       \
    TOKENS(PANEL_CORE, wide_##name, flavour, true)                                                 \
    static core_fn *const name[TILE_MAX + 1] = {TOKENS(ENTRY, name, )};                            \
    static core_fn *const wide_##name[TILE_MAX + 1] = {TOKENS(ENTRY, wide_##name, )};
#define DIRECT_CORES(name, ...)                                                                    \
    TOKENS(DIRECT_CORE, name, __VA_ARGS__)                                                         \
    static core_fn *const name[TILE_MAX + 1] = {TOKENS(ENTRY, name, )};

PANEL_CORES(panel_plain, FLAVOUR_PLAIN)
PANEL_CORES(panel_min, FLAVOUR_MIN)
PANEL_CORES(panel_half, FLAVOUR_HALF)
PANEL_CORES(panel_half_min, FLAVOUR_HALF_MIN)

/* name, values, scales, flavour, bias */
DIRECT_CORES(direct_q4_0, VALUES_4, SCALES_F16, FLAVOUR_PLAIN, 8)
DIRECT_CORES(direct_q4_1, VALUES_4, SCALES_F16_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q8_0, VALUES_8, SCALES_F16, FLAVOUR_PLAIN, 128)
DIRECT_CORES(direct_q4_k, VALUES_4, SCALES_K_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q5_k, VALUES_5, SCALES_K_MIN, FLAVOUR_MIN, 0)
DIRECT_CORES(direct_q6_k, VALUES_6, SCALES_K16, FLAVOUR_HALF, 32)

/* ---- panels ---- */

INLINE void store_factors(float *p, const struct factors *f, enum flavour flavour)
{
    vst1q_f32(p, f->d);
    if (flavour == FLAVOUR_MIN)
        vst1q_f32(p + 16, f->m[0]);
    for (int i = 0; i < 2 && flavour >= FLAVOUR_HALF; i++) {
        vst1q_f32(p + 16 + 16 * i, f->s[i]);
        if (flavour == FLAVOUR_HALF_MIN)
            vst1q_f32(p + 48 + 16 * i, f->m[i]);
    }
}

INLINE void expand(const uint8_t *group, int blocks, int first, int count, uint8_t *values,
                   float *scales, struct shape s)
{
    size_t plane = scales_plane_bytes(s.scales, blocks);
    const uint8_t *from = group + plane + (size_t)first * (size_t)values_bytes[s.values];
    for (int b = first; b < first + count; b++) {
        UNROLL for (int v = 0; v < VECTORS; v++)
        {
            struct factors f = packed_factors(group, b, v, s.scales);
            store_factors(scales + 4 * v, &f, s.flavour);
            UNROLL for (int j = 0; j < QUADS; j++)
                vst1q_s8((int8_t *)values + j * QUAD_BYTES + 16 * v, quad(from + 16 * v, j, &s));
        }
        fetch_block(group, b, FETCH_AHEAD + plane, s.values, s.scales, 1);
        from += values_bytes[s.values];
        values += PANEL_VALUES;
        scales += 16 * (size_t)flavour_panel_scales[s.flavour];
    }
}

#include "expand_body.h"

/* ---- the table ---- */

#define PANELS(prefix)                                                                             \
    {                                                                                              \
        [FORMAT_Q4_0] = prefix##panel_plain, [FORMAT_Q4_1] = prefix##panel_min,                    \
        [FORMAT_Q5_0] = prefix##panel_plain, [FORMAT_Q5_1] = prefix##panel_min,                    \
        [FORMAT_Q8_0] = prefix##panel_plain, [FORMAT_Q2_K] = prefix##panel_half_min,               \
        [FORMAT_Q3_K] = prefix##panel_half, [FORMAT_Q4_K] = prefix##panel_min,                     \
        [FORMAT_Q5_K] = prefix##panel_min, [FORMAT_Q6_K] = prefix##panel_half,                     \
        [FORMAT_IQ4_NL] = prefix##panel_plain, [FORMAT_IQ4_XS] = prefix##panel_plain,              \
        [FORMAT_MXFP4] = prefix##panel_plain, [FORMAT_TQ1_0] = prefix##panel_plain,                \
        [FORMAT_TQ2_0] = prefix##panel_plain,                                                      \
    }

const struct matrix_ops matrix_ops_neon = {
    .tile = {[ACT_INT8] = 4, [ACT_INT16] = 4, [ACT_TILED] = 6},
    .direct_tiles = {[0 ... VALUES_TABLE] = 2}, /* not timed */
    .fetch_ahead = FETCH_AHEAD,
    .act_row = {act_row8_neon, act_row16_neon},
    .expand = {EXPANDERS(expand_), EXPANDERS(expand_)},
    .panel = {PANELS(), PANELS(wide_)},
    .direct =
        {
            [FORMAT_Q4_0] = direct_q4_0,
            [FORMAT_Q4_1] = direct_q4_1,
            [FORMAT_Q8_0] = direct_q8_0,
            [FORMAT_Q4_K] = direct_q4_k,
            [FORMAT_Q5_K] = direct_q5_k,
            [FORMAT_Q6_K] = direct_q6_k,
        },
    .floats =
        {
            [FORMAT_F32] = floats_f32_neon,
            [FORMAT_F16] = floats_f16_neon,
            [FORMAT_BF16] = floats_bf16_neon,
        },
};
