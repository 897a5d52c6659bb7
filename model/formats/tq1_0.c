#include "formats/codec.h"

/* Five digits of base three in a byte, as a fraction of 256: digit n is the integer part of three
 * times the fraction that is left after n digits. */
static uint8_t digit(uint8_t byte, int n)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (uint8_t)((uint8_t)(byte * power[n]) * 3 >> 8);
}

/* 48 bytes of five digits: 32 bytes give values 0 to 159 (digit n of byte i: 32 n + i), 16 bytes
 * values 160 to 239; 4 bytes of four digits give the rest; f16 d. The weight is d (digit - 1). */
static void codes(const uint8_t *block, struct codes *out)
{
    for (int b = 0; b < 8; b++) {
        out[b].d = load_u16(block + 52);
        out[b].scale[0] = 1;
    }
    for (int i = 0; i < 256; i++) {
        uint8_t v = i < 160   ? digit(block[i % 32], i / 32)
                    : i < 240 ? digit(block[32 + i % 16], (i - 160) / 16)
                              : digit(block[48 + i % 4], (i - 240) / 4);
        out[i / 32].code[i % 32] = v;
    }
}

const struct codec codec_tq1_0 = {codes, NULL, VALUES_2, SCALES_K, 1, NULL};
