#ifndef MODEL_FORMATS_K_SCALES_H
#define MODEL_FORMATS_K_SCALES_H

#include "formats/codec.h"

/* The 12 bytes of Q4_K and Q5_K: eight scales and eight offsets of six bits. The first four of each
 * are the low bits of bytes 0 to 7; the others are split between bytes 8 to 11 and the high bits
 * of bytes 0 to 7. */
static inline void k_scales(const uint8_t *s, int b, struct codes *out)
{
    if (b < 4) {
        out->scale[0] = s[b] & 63;
        out->offset[0] = s[b + 4] & 63;
    } else {
        out->scale[0] = (int8_t)((s[b + 4] & 15) | s[b - 4] >> 6 << 4);
        out->offset[0] = (int8_t)(s[b + 4] >> 4 | s[b] >> 6 << 4);
    }
}

#endif
