#include "formats/codec.h"

/* 128 bytes of low bits, 64 bytes of high bits, 16 signed scales, f16 d. Of each 128 values, 64
 * bytes hold the low bits (low halves: the first 64 values) and 32 bytes the high ones. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    for (int b = 0; b < 8; b++, out++) {
        int half = b / 4, part = b % 4;
        out->d = load_u16(block + 208);
        memcpy(out->scale, scales + 2 * b, 2);
        for (int i = 0; i < 32; i++)
            out->code[i] = (uint8_t)((low[64 * half + 32 * (part & 1) + i] >> 4 * (part / 2) & 15) |
                                     (high[32 * half + i] >> 2 * part & 3) << 4);
    }
}

const struct codec codec_q6_k = {codes, NULL, VALUES_6, SCALES_K16, 32, NULL};
