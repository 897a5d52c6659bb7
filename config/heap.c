#include "heap.h"

#include <malloc.h>

#define MAP_BYTES  (128 << 10) /* blocks from this size on have a mapping of their own */
#define TRIM_BYTES (512 << 10) /* free memory that is kept for later */
#define MUCH_BYTES (2 << 20)
#define ARENAS     2

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)

void heap_setup(void)
{
    mallopt(M_ARENA_MAX, ARENAS);
    mallopt(M_MMAP_THRESHOLD, MAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    mallopt(M_TOP_PAD, 64 << 10);
}

size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

void heap_trim(void)
{
    struct mallinfo2 m = mallinfo2();
    if (m.fordblks > MUCH_BYTES)
        malloc_trim(TRIM_BYTES);
}

#else

void heap_setup(void)
{
}

size_t heap_bytes(void)
{
    return 0;
}

void heap_trim(void)
{
}

#endif
