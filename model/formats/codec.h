#ifndef MODEL_FORMATS_CODEC_H
#define MODEL_FORMATS_CODEC_H

#include "formats.h"

#include <stdint.h>
#include <string.h>

/* What a number format is, to everyone else. Most formats hold small integers ("codes") with
 * scales; 32 of them, taken apart, are `struct codes`, and all that packs, expands or dequantises
 * works from there. A new format of that kind is one function and one row. */

/* How a code becomes the integer that is multiplied: code - bias, or table[code]. */
enum values_kind {
    VALUES_FLOAT, /* no codes: the format has only unpack */
    VALUES_2,     /* bits of a code */
    VALUES_3,
    VALUES_4,
    VALUES_5,
    VALUES_6,
    VALUES_8,
    VALUES_TABLE /* 4 bits that index a table of 16 signed values */
};

/* What scales a value q to a weight. d and min are the floats of codes.d and codes.min. */
enum scales_kind {
    SCALES_F16,     /* d q */
    SCALES_BF16,    /* d q, with d in bfloat16 */
    SCALES_F16_MIN, /* d q + min */
    SCALES_K,       /* d scale[0] q; d is that of 256 values */
    SCALES_K_MIN,   /* d scale[0] q - min offset[0] */
    SCALES_K16,     /* d scale[h] q, h counts 16 values */
    SCALES_K16_MIN, /* d scale[h] q - min offset[h] */
    SCALES_NONE
};

struct codes {
    uint8_t code[32];
    uint16_t d, min;
    int8_t scale[2], offset[2];
};

struct codec {
    /* Takes one block of the file apart: block_values / 32 elements of out. NULL: VALUES_FLOAT. */
    void (*codes)(const uint8_t *block, struct codes *out);
    /* NULL: dequantise from the codes. */
    void (*unpack)(const uint8_t *row, int n, float *out);
    enum values_kind values;
    enum scales_kind scales;
    int bias;
    const int8_t *table;
};

extern const struct codec *const codecs[FORMAT_COUNT]; /* NULL: not known */

/* 32 values as numbers: w = d * s[h] * q + m[h]. Which of s and m are in use follows from the kind
 * of scales; the others are 1 and 0. */
struct values {
    int8_t q[32];
    float d, s[2], m[2];
};
void codes_values(const struct codec *codec, const struct codes *in, struct values *out);

static inline uint16_t load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float bf16_to_float(uint16_t bits)
{
    return float_from_bits((uint32_t)bits << 16);
}

/* Exact for every value, subnormals and infinities included. */
static inline float f16_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) /* keeps a NaN's payload and makes it quiet, as vcvtph2ps does */
        return float_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13 |
                               (rest > 0x7c00 ? 0x400000 : 0));
    if (rest >= 0x400)
        return float_from_bits(sign | ((rest << 13) + (112u << 23)));
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

#endif
