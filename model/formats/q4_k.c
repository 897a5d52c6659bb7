#include "formats/codec.h"

#include "formats/k_scales.h"

/* f16 d, f16 min, 12 bytes of scales, 128 bytes of codes: 32 bytes hold 64 values, the low halves
 * the first 32. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *low = block + 16;
    for (int b = 0; b < 8; b++, out++) {
        out->d = load_u16(block);
        out->min = load_u16(block + 2);
        k_scales(block + 4, b, out);
        for (int i = 0; i < 32; i++)
            out->code[i] = low[32 * (b / 2) + i] >> 4 * (b % 2) & 15;
    }
}

const struct codec codec_q4_k = {codes, NULL, VALUES_4, SCALES_K_MIN, 0, NULL};
