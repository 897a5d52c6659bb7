#include "mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* One line before the buffer remembers how it was made. */
struct header {
    size_t mapped_bytes; /* 0: from aligned_alloc */
    char pad[MEM_LINE - sizeof(size_t)];
};

#define BIG_BYTES ((size_t)1 << 20)
#define HUGE_BYTES                                                                                 \
    ((uintptr_t)2 << 20) /* of a huge page; where they are larger, this does nothing */

void *mem_alloc(size_t count, size_t bytes)
{
    size_t total;
    if (!mem_mul(count, bytes, &total) || total > SIZE_MAX / 2)
        return NULL;
    total = mem_round_up(total + sizeof(struct header), MEM_LINE);
    struct header *h;
    if (total >= BIG_BYTES) {
        h = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (h == MAP_FAILED)
            return NULL;
        h->mapped_bytes = total;
    } else {
        h = aligned_alloc(MEM_LINE, total);
        if (!h)
            return NULL;
        memset(h, 0, total);
    }
    return h + 1;
}

void mem_use_huge_pages(void *p, size_t bytes)
{
    uintptr_t first = ((uintptr_t)p + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    uintptr_t last = ((uintptr_t)p + bytes) / HUGE_BYTES * HUGE_BYTES;
    if (first < last)
        madvise((void *)first, last - first, MADV_HUGEPAGE);
}

void mem_free(void *p)
{
    if (!p)
        return;
    struct header *h = (struct header *)p - 1;
    if (h->mapped_bytes)
        munmap(h, h->mapped_bytes);
    else
        free(h);
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

struct mem_chunk {
    struct mem_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

#define CHUNK_BYTES 4000u

void *mem_arena_alloc(struct mem_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = mem_round_up(bytes, 16);
    struct mem_chunk *c = a->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        c = calloc(1, sizeof *c + size);
        if (!c)
            return NULL;
        c->size = size;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    a->total_bytes += bytes;
    return p;
}

char *mem_arena_strndup(struct mem_arena *a, const char *s, size_t n)
{
    char *copy = mem_arena_alloc(a, n + 1);
    if (copy && n)
        memcpy(copy, s, n);
    return copy;
}

void mem_arena_finish(struct mem_arena *a)
{
    while (a->chunks) {
        struct mem_chunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
    a->total_bytes = 0;
}
