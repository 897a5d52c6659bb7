#include "formats/codec.h"

#include "formats/iq4_table.h"

/* As Q4_0, with a table of values. */
static void codes(const uint8_t *block, struct codes *out)
{
    out->d = load_u16(block);
    for (int i = 0; i < 16; i++) {
        out->code[i] = block[2 + i] & 15;
        out->code[i + 16] = block[2 + i] >> 4;
    }
}

const struct codec codec_iq4_nl = {codes, NULL, VALUES_TABLE, SCALES_F16, 0, iq4_table};
