#include "formats/codec.h"

/* 64 bytes of codes 0 to 2, arranged as in Q2_K; f16 d. The weight is d (code - 1). */
static void codes(const uint8_t *block, struct codes *out)
{
    for (int b = 0; b < 8; b++, out++) {
        out->d = load_u16(block + 64);
        out->scale[0] = 1;
        for (int i = 0; i < 32; i++)
            out->code[i] = block[32 * (b / 4) + i] >> 2 * (b % 4) & 3;
    }
}

const struct codec codec_tq2_0 = {codes, NULL, VALUES_2, SCALES_K, 1, NULL};
