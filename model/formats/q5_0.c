#include "formats/codec.h"

/* f16 d; 4 bytes of fifth bits, bit i for value i; then halves as in Q4_0. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *high = block + 2, *low = block + 6;
    out->d = load_u16(block);
    for (int i = 0; i < 16; i++) {
        out->code[i] = (uint8_t)((low[i] & 15) | (high[i / 8] >> i % 8 & 1) << 4);
        out->code[i + 16] = (uint8_t)(low[i] >> 4 | (high[2 + i / 8] >> i % 8 & 1) << 4);
    }
}

const struct codec codec_q5_0 = {codes, NULL, VALUES_5, SCALES_F16, 16, NULL};
