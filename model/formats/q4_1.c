#include "formats/codec.h"

/* f16 d, f16 min; then as Q4_0. */
static void codes(const uint8_t *block, struct codes *out)
{
    out->d = load_u16(block);
    out->min = load_u16(block + 2);
    for (int i = 0; i < 16; i++) {
        out->code[i] = block[4 + i] & 15;
        out->code[i + 16] = block[4 + i] >> 4;
    }
}

const struct codec codec_q4_1 = {codes, NULL, VALUES_4, SCALES_F16_MIN, 0, NULL};
