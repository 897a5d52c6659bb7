#include "formats/codec.h"

/* f16 d; 32 signed bytes. */
static void codes(const uint8_t *block, struct codes *out)
{
    out->d = load_u16(block);
    for (int i = 0; i < 32; i++)
        out->code[i] = block[2 + i] ^ 0x80;
}

const struct codec codec_q8_0 = {codes, NULL, VALUES_8, SCALES_F16, 128, NULL};
