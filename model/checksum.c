#include "checksum.h"

#include <string.h>

#define ODD  0x9E3779B97F4A7C15u
#define STEP 32

/* Each step maps words one to one, so that no single change is lost. */
static uint64_t take(uint64_t h, uint64_t x)
{
    h = (h ^ x) * ODD;
    return h << 29 | h >> 35;
}

uint64_t checksum(uint64_t seed, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint64_t lane[4] = {seed, seed + 1, seed + 2, seed + 3}, word[4];
    size_t left = n;
    for (; left >= STEP; left -= STEP, p += STEP) {
        memcpy(word, p, STEP);
        for (int i = 0; i < 4; i++)
            lane[i] = take(lane[i], word[i]);
    }
    memset(word, 0, STEP);
    if (left)
        memcpy(word, p, left);
    uint64_t h = take(seed, n);
    for (int i = 0; i < 4; i++)
        h = take(h, take(lane[i], word[i]));
    return h ^ h >> 32;
}
