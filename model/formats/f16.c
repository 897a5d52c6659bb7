#include "formats/codec.h"

static void unpack(const uint8_t *row, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = f16_to_float(load_u16(row + 2 * i));
}

const struct codec codec_f16 = {NULL, unpack, VALUES_FLOAT, SCALES_NONE, 0, NULL};
