#include "siphash.h"

#include <stdbool.h>

static uint64_t rotate(uint64_t v, int bits)
{
    return v << bits | v >> (64 - bits);
}

static void rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

/* Little-endian, whatever the machine. */
static uint64_t word(const unsigned char *p, size_t n)
{
    uint64_t w = 0;
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)p[i] << (8 * i);
    return w;
}

uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    size_t whole = bytes / 8 * 8;
    for (size_t i = 0; i <= whole; i += 8) {
        bool last = i == whole;
        uint64_t m = last ? word(p + i, bytes - whole) | (uint64_t)bytes << 56 : word(p + i, 8);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
