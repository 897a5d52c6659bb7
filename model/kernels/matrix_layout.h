#ifndef MODEL_KERNELS_MATRIX_LAYOUT_H
#define MODEL_KERNELS_MATRIX_LAYOUT_H

#include "formats/codec.h"
#include "matrix.h"

/* How weights and activations lie in memory. One layout serves every SIMD level.
 *
 * Weights are packed in groups of 16 rows: a plane of scales, then a plane of values, both by
 * blocks of 32 k. In the plane of values a vector of 64 bytes is a "quad": 16 rows x 4 consecutive
 * k, row after row; a block has 8 quads. Codes of fewer than 8 bits share vectors, bit position by
 * quad, so that unpacking is a shift and a mask:
 *
 *   4 bits   4 vectors: quad j in the low halves of vector j, quad j + 4 in the high halves
 *   2 bits   2 vectors: quad j in bits 2 (j % 4) of vector j / 4
 *   1 bit    1 vector: quad j in bit j
 *   8 bits   8 vectors
 *   5 = 4 then 1, 6 = 4 then 2, 3 = 2 then 1
 *
 * The plane of scales has, per block or per 8 blocks, arrays over the 16 rows: see scales_layout.
 * Float weights are [k][16 rows].
 *
 * A panel is a piece of the same matrix taken apart: 8 vectors of bytes per block, and floats for
 * scales, flavour_panel_scales arrays of 16 per block. It lives in a worker's scratch. A level may
 * have panels of words, of twice the bytes, in an order of its own, and factors per 16 values as
 * integers (AVX2: twice as a word in each lane). */

enum { QUADS = 8, QUAD_BYTES = 64, PANEL_VALUES = QUADS * QUAD_BYTES };

/* What a product of one block needs besides the sums of integers. */
enum flavour {
    FLAVOUR_PLAIN,    /* scale */
    FLAVOUR_MIN,      /* scale, minimum */
    FLAVOUR_HALF,     /* scale, one factor per 16 values */
    FLAVOUR_HALF_MIN, /* scale, factors, minimum per 16 values */
    FLAVOUR_COUNT
};

struct scales_layout {
    enum flavour flavour;
    int super_bytes; /* at the head of each 8 blocks: f16 d[16], then f16 min[16] */
    int block_bytes;
};
static const struct scales_layout scales_layouts[] = {
    [SCALES_F16] = {FLAVOUR_PLAIN, 0, 32},         /* u16 d[16] */
    [SCALES_BF16] = {FLAVOUR_PLAIN, 0, 32},        /* u16 d[16] */
    [SCALES_F16_MIN] = {FLAVOUR_MIN, 0, 64},       /* u16 d[16], min[16] */
    [SCALES_K] = {FLAVOUR_PLAIN, 32, 16},          /* i8 scale[16] */
    [SCALES_K_MIN] = {FLAVOUR_MIN, 64, 32},        /* i8 scale[16], offset[16] */
    [SCALES_K16] = {FLAVOUR_HALF, 32, 32},         /* i8 scale[2][16] */
    [SCALES_K16_MIN] = {FLAVOUR_HALF_MIN, 64, 64}, /* i8 scale[2][16], offset[2][16] */
};

static const int flavour_panel_scales[FLAVOUR_COUNT] = {
    [FLAVOUR_PLAIN] = 1,    /* scale */
    [FLAVOUR_MIN] = 2,      /* scale, min */
    [FLAVOUR_HALF] = 3,     /* scale, factor 0, factor 1 */
    [FLAVOUR_HALF_MIN] = 5, /* ..., min 0, min 1 */
};

static const int values_bytes[] = {
    [VALUES_2] = 128, [VALUES_3] = 192, [VALUES_4] = 256,     [VALUES_5] = 320,
    [VALUES_6] = 384, [VALUES_8] = 512, [VALUES_TABLE] = 256,
};

static inline size_t scales_offset(enum scales_kind kind, int block)
{
    const struct scales_layout *l = &scales_layouts[kind];
    return (size_t)(block / 8 + 1) * (size_t)l->super_bytes +
           (size_t)block * (size_t)l->block_bytes;
}
static inline size_t scales_super_offset(enum scales_kind kind, int block)
{
    const struct scales_layout *l = &scales_layouts[kind];
    return (size_t)(block / 8) * (size_t)(l->super_bytes + 8 * l->block_bytes);
}
/* Whole cache lines, so that the values behind it start on one. */
static inline size_t scales_plane_bytes(enum scales_kind kind, int blocks)
{
    const struct scales_layout *l = &scales_layouts[kind];
    size_t bytes = (size_t)((blocks + 7) / 8) * (size_t)l->super_bytes +
                   (size_t)blocks * (size_t)l->block_bytes;
    return (bytes + 63) / 64 * 64;
}

/* ---- activations ----
 *
 * Tokens come in tiles. A tile of w tokens that starts at token t begins t * blocks records into
 * the buffer and is [block][w] records (or, unrounded, [k][w] floats from t * cols). So a kernel
 * that does w tokens reaches everything by constant distances, and no tile is padded. */

struct act_block {
    float d;         /* x = d * q */
    float dsum;      /* d * (sum of q) */
    float dsum16[2]; /* the same over 16 values */
    /* What unsigned codes count too much: -8 and -128 times the sum of q, -32 times the sums over
     * 16 values. AVX2, 8 bits: n8 and n32 are a word of those with k % 4 < 2 and a word of the
     * others. */
    int32_t n8, n128, n32[2];
    int8_t q[32]; /* 8 bits: q. 16 bits: the high plane, q = 255 high + low */
};
/* Two planes; as words (ACT_WORDS8, ACT_WORDS16) the 16 integers of even k in place of high.q, the
 * 16 of odd k in place of low. */
struct act_block16 {
    struct act_block high;
    int8_t low[32];
};

static inline size_t act_record_bytes(enum act_kind kind)
{
    return kind == ACT_INT8 ? sizeof(struct act_block) : sizeof(struct act_block16);
}

/* Largest magnitude of a rounded activation. 255 rather than 256 between the planes keeps -128 out
 * of both, which the sign trick of AVX2 cannot negate. */
enum { ACT_PLANE = 255, ACT_MAX8 = 127, ACT_MAX16 = 127 * ACT_PLANE + 127 };

#endif
