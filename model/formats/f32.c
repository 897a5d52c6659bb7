#include "formats/codec.h"

static void unpack(const uint8_t *row, int n, float *out)
{
    memcpy(out, row, (size_t)n * sizeof *out);
}

const struct codec codec_f32 = {NULL, unpack, VALUES_FLOAT, SCALES_NONE, 0, NULL};
