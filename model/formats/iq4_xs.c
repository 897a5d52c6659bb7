#include "formats/codec.h"

#include "formats/iq4_table.h"

/* f16 d, 16 bits that hold the high two bits of eight scales, 4 bytes with their low halves, then
 * per 32 values 16 bytes of codes as in Q4_0. */
static void codes(const uint8_t *block, struct codes *out)
{
    const uint8_t *low = block + 8;
    int high = load_u16(block + 2);
    for (int b = 0; b < 8; b++, out++, low += 16) {
        int scale = (block[4 + b / 2] >> 4 * (b % 2) & 15) | (high >> 2 * b & 3) << 4;
        out->d = load_u16(block);
        out->scale[0] = (int8_t)(scale - 32);
        for (int i = 0; i < 16; i++) {
            out->code[i] = low[i] & 15;
            out->code[i + 16] = low[i] >> 4;
        }
    }
}

const struct codec codec_iq4_xs = {codes, NULL, VALUES_TABLE, SCALES_K, 0, iq4_table};
