#include "formats/codec.h"

#include "formats/k_scales.h"

/* As Q4_K with 32 bytes of fifth bits before the codes: bit b of byte i is for value 32 b + i. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *high = block + 16, *low = block + 48;
    for (int b = 0; b < 8; b++, out++) {
        out->d = load_u16(block);
        out->min = load_u16(block + 2);
        k_scales(block + 4, b, out);
        for (int i = 0; i < 32; i++)
            out->code[i] = (uint8_t)((low[32 * (b / 2) + i] >> 4 * (b % 2) & 15) |
                                     (high[i] >> b & 1) << 4);
    }
}

const struct codec codec_q5_k = {codes, NULL, VALUES_5, SCALES_K_MIN, 0, NULL};
