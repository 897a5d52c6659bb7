#include "formats/codec.h"

/* f16 d, f16 min; then as Q5_0. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *high = block + 4, *low = block + 8;
    out->d = load_u16(block);
    out->min = load_u16(block + 2);
    for (int i = 0; i < 16; i++) {
        out->code[i] = (uint8_t)((low[i] & 15) | (high[i / 8] >> i % 8 & 1) << 4);
        out->code[i + 16] = (uint8_t)(low[i] >> 4 | (high[2 + i / 8] >> i % 8 & 1) << 4);
    }
}

const struct codec codec_q5_1 = {codes, NULL, VALUES_5, SCALES_F16_MIN, 0, NULL};
