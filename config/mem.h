#ifndef CONFIG_MEM_H
#define CONFIG_MEM_H

#include <stdbool.h>
#include <stddef.h>

#define MEM_LINE 64 /* bytes; alignment of everything that kernels read */

/* Checked sizes: false when the result does not fit (then *out is untouched). */
static inline bool mem_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool mem_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline size_t mem_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Zeroed, MEM_LINE-aligned; NULL when out of memory or when count * bytes overflows. For big
 * buffers (1 MiB and more) the pages come straight from mmap, so untouched ones cost nothing.
 * Free with mem_free. */
void *mem_alloc(size_t count, size_t bytes);
void mem_free(void *p);
/* Asks for huge pages for whatever of a big buffer has not been touched yet. For buffers that are
 * written whole and read often: touching one byte of a huge page makes all of it resident. Only
 * pages that lie wholly inside are asked for. */
void mem_use_huge_pages(void *p, size_t bytes);

/* Heap copy of n bytes plus a terminating zero; free(3) it. NULL when out of memory. */
char *mem_strndup(const char *s, size_t n);

/* An arena: many small allocations, freed all at once. Not thread-safe. */
struct mem_arena {
    struct mem_chunk *chunks;
    size_t total_bytes; /* handed out so far */
};
void *mem_arena_alloc(struct mem_arena *a,
                      size_t bytes); /* zeroed, 16-aligned; NULL when out of memory */
char *mem_arena_strndup(struct mem_arena *a, const char *s, size_t n);
void mem_arena_finish(struct mem_arena *a); /* frees everything; the arena can be used again */

#endif
