#include "formats/codec.h"

/* Six bits per scale: four in the halves of bytes 0 to 7, two in bytes 8 to 11. */
static int scale_of(const uint8_t *scales, int s)
{
    int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    return (low | (scales[8 + s % 4] >> 2 * (s / 4) & 3) << 4) - 32;
}

/* 32 bytes of third bits (bit b of byte i: value 32 b + i), 64 bytes of low bits as in Q2_K, 12
 * bytes of scales, f16 d. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *high = block, *low = block + 32, *scales = block + 96;
    for (int b = 0; b < 8; b++, out++) {
        out->d = load_u16(block + 108);
        for (int h = 0; h < 2; h++)
            out->scale[h] = (int8_t)scale_of(scales, 2 * b + h);
        for (int i = 0; i < 32; i++)
            out->code[i] = (uint8_t)((low[32 * (b / 4) + i] >> 2 * (b % 4) & 3) | (high[i] >> b & 1)
                                                                                      << 2);
    }
}

const struct codec codec_q3_k = {codes, NULL, VALUES_3, SCALES_K16, 4, NULL};
