#include "formats/codec.h"

/* 16 bytes of scale (low half) and offset (high half), one per 16 values; 64 bytes of codes; f16 d,
 * f16 min. 32 bytes hold 128 values: bits 2j of byte i are value 32 j + i. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *scales = block, *low = block + 16;
    for (int b = 0; b < 8; b++, out++) {
        out->d = load_u16(block + 80);
        out->min = load_u16(block + 82);
        for (int h = 0; h < 2; h++) {
            out->scale[h] = scales[2 * b + h] & 15;
            out->offset[h] = (int8_t)(scales[2 * b + h] >> 4);
        }
        for (int i = 0; i < 32; i++)
            out->code[i] = low[32 * (b / 4) + i] >> 2 * (b % 4) & 3;
    }
}

const struct codec codec_q2_k = {codes, NULL, VALUES_2, SCALES_K16_MIN, 0, NULL};
