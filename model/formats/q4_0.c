#include "formats/codec.h"

/* f16 d; 16 bytes: the low halves are values 0 to 15, the high halves 16 to 31. */
static void codes(const uint8_t *block, struct codes *out)
{
    out->d = load_u16(block);
    for (int i = 0; i < 16; i++) {
        out->code[i] = block[2 + i] & 15;
        out->code[i + 16] = block[2 + i] >> 4;
    }
}

const struct codec codec_q4_0 = {codes, NULL, VALUES_4, SCALES_F16, 8, NULL};
