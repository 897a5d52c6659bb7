#ifndef ATTENTION_KERNELS_ATTN_TILE_H
#define ATTENTION_KERNELS_ATTN_TILE_H

/* What the SIMD files share. Their bodies are written once and inlined with constant type, rows and
 * columns, so that the accumulators of every combination stay in registers. */
#include "attn_ops.h"

#define INLINE static inline __attribute__((always_inline))

/* Bytes of n elements. */
INLINE size_t bytes_of(enum kv_type type, size_t n)
{
    return type == KV_F32 ? 4 * n : type == KV_Q8_0 ? n : 2 * n;
}

/* How far the next page is, so that one number serves all places of a page. */
INLINE uintptr_t distance(const void *page, const void *next)
{
    return (uintptr_t)next - (uintptr_t)page;
}

/* Memory keeps up with the arithmetic only when it is asked early and evenly: each step on a place
 * of a page asks for the same place of the next one. */
INLINE void prefetch_next(const uint8_t *at, uintptr_t next)
{
    __builtin_prefetch((const void *)((uintptr_t)at + next), 0, 3);
}

/* The rows left, in nearly equal parts of at most `most`. Only the first part prefetches the next
 * page; for the others the distance is 0 and what is prefetched is there already. */
INLINE int part_rows(int left, int most)
{
    int parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* Where lane 0 of a column of values is, and the bytes from lane to lane. */
INLINE const uint8_t *column_at(enum kv_type type, const struct attn_page *p, int column)
{
    const uint8_t *value = p->value;
    if (type != KV_Q8_0)
        return value + bytes_of(type, (size_t)column);
    return value + (size_t)(column / ATTN_GROUP) * ATTN_GROUP_BYTES + 2 * ATTN_LANES +
           column % ATTN_GROUP;
}

INLINE size_t lane_bytes(enum kv_type type, const struct attn_page *p)
{
    return type == KV_Q8_0 ? ATTN_GROUP : bytes_of(type, (size_t)p->value_pad);
}

/* Asks for `columns` columns of the next page's lane (of q8_0: of one group's). */
INLINE void prefetch_columns(enum kv_type type, size_t columns, const uint8_t *at, uintptr_t next)
{
    size_t bytes = type == KV_Q8_0 ? 1 : bytes_of(type, columns);
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes; i += 64)
        prefetch_next(at + i, next);
}

/* The 32 keys of one dimension of the next page. */
INLINE void prefetch_keys(enum kv_type type, const uint8_t *at, uintptr_t next)
{
    prefetch_next(at, next);
    if (type == KV_F32)
        prefetch_next(at + 64, next);
}

#endif
