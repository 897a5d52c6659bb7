#include "formats/codec.h"

/* Twice the value of a four-bit float (sign, two bits of exponent, one of fraction). */
static const int8_t table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* An exponent e that means 2^(e - 127), here halved because the table is doubled; as bfloat16,
 * which has room for the two subnormal ones. */
static void codes(const uint8_t *block, struct codes *out)
{
    int e = block[0];
    out->d = (uint16_t)(e < 2 ? 0x20 << e : (e - 1) << 7);
    for (int i = 0; i < 16; i++) {
        out->code[i] = block[1 + i] & 15;
        out->code[i + 16] = block[1 + i] >> 4;
    }
}

const struct codec codec_mxfp4 = {codes, NULL, VALUES_TABLE, SCALES_BF16, 0, table};
