#ifndef MODEL_KERNELS_FETCH_H
#define MODEL_KERNELS_FETCH_H

#include "kernels/ops.h"
#include "mem.h"

/* Fetching weights before they are read.
 *
 * Into the second level: on Zen 4 the first has too few places for lines on their way (14 GB/s a
 * core against 24), and holds less than is fetched ahead. A fetch that finds no free place is
 * dropped, and the load that comes for the line then waits for memory: so, where a step waits for
 * memory and nothing else, AVX-512 asks for each line again and again, each time nearer. That is
 * what takes one core of Zen 4 from 26 to 35 GB/s, and two from 46 to 56; with more work to a byte
 * it only costs (2 % at 4 tokens of Q4_K, 5 % of Q6_K).
 *
 * On Zen 3 (AVX2) it costs always: one fetch, and a near one, is best. Two cores read Q4_K for one
 * token with 28 GB/s when each line is asked for four times from 8,192 bytes on, 31 when once from
 * there, 33 when once from 320 to 1,536 bytes on, and 26 without fetches; Q8_0 the same, 27, 30, 33
 * and 29. */

enum { FETCH_TIMES = 4, FETCH_STEP = 1536 };

/* How often a kernel of so many tokens asks, which waits for memory with up to `most`. */
static inline int fetch_times(int tokens, bool wide, int most)
{
    return (wide ? 2 * tokens : tokens) <= most ? FETCH_TIMES : 1;
}

static inline void fetch_lines(const uint8_t *p, int bytes, int times)
{
#pragma GCC unroll 4
    for (int n = 0; n < times; n++, p -= FETCH_STEP)
#pragma GCC unroll 16
        for (int i = 0; i < bytes; i += MEM_LINE)
            __builtin_prefetch(p + i, 0, 2);
}

/* What lies `ahead` bytes behind block b of a group, were scales and values mixed: so the fetches
 * walk through memory without gaps. Constant but for the pointer, b and ahead. */
static inline __attribute__((always_inline)) void fetch_block(const uint8_t *group, int b,
                                                              size_t ahead, enum values_kind values,
                                                              enum scales_kind scales, int times)
{
    const struct scales_layout *l = &scales_layouts[scales];
    int bytes = values_bytes[values] + l->block_bytes + l->super_bytes / 8;
    fetch_lines(group + (size_t)b * (size_t)bytes + ahead, bytes, times);
}

#endif
