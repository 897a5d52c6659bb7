#ifndef ATTENTION_PLAN_H
#define ATTENTION_PLAN_H

#include "attention.h"
#include "layout.h"

#include <stdatomic.h>

/* How the work of one attn_run is cut. Nothing here changes a result: a query's keys are cut into
 * chunks at fixed positions, each chunk has its own state, and states are merged in order, whether
 * one worker walks through all chunks or many share them. */

/* Queries that share a walk over the keys. */
struct attn_tile {
    const struct attn_span *span;
    int first, n;       /* queries [first, first + n) of the span */
    int chunk0, chunk1; /* chunks [chunk0, chunk1) hold all they see */
    int head_ranges, pieces;
    float *parts;    /* states of [chunk][kv head][row]; NULL when no piece is cut off */
    atomic_int left; /* items that are not done: the last one merges the parts */
};

/* What one worker does at once: some kv heads and some chunks of a tile. */
struct attn_item {
    struct attn_tile *tile;
    int head0, head1, chunk0, chunk1;
    int64_t work;
};

/* Bytes of scratch and of what is in it, behind the plan itself. */
struct attn_sizes {
    int rows; /* most rows of an item */
    size_t tiles, items, parts, worker, total;
};

struct attn_plan {
    const struct attn_shape *shape;
    struct attn_layout layout;
    struct attn_sizes sizes;
    int group; /* query heads of a kv head */
    int n_tiles, n_items;
    struct attn_tile *tiles;
    struct attn_item *items;
    float *parts;
    uint8_t *workers;
};

/* Floats of one row's state in attn_tile.parts: top, sum, padding; then mix at ATTN_PART_MIX. */
#define ATTN_PART_MIX 16
static inline size_t attn_part_floats(const struct attn_layout *l)
{
    return ATTN_PART_MIX + (size_t)l->value_pad;
}

/* First position that a query at `position` sees. */
static inline int attn_first_seen(const struct attn_shape *s, int position)
{
    return s->window > 0 && position >= s->window ? position - s->window + 1 : 0;
}

bool attn_sizes_of(struct attn_sizes *out, const struct attn_shape *s, int tokens, int context,
                   int threads); /* false: overflow */

#endif
