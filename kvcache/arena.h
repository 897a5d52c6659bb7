#ifndef KVCACHE_ARENA_H
#define KVCACHE_ARENA_H

#include "kvcache.h"

/* Blocks of several sizes from one piece of memory. The arena is cut into slabs; a slab serves one
 * group while any of its blocks is in use. When a group needs a slab and another group has a
 * slab's worth of holes, that group's blocks are moved together, so that no memory is stranded: up
 * to one partly filled slab per group, whatever was taken and given back. */

struct kv_node;

#define KV_NO_BLOCK UINT32_MAX

struct kv_slab {
    int group;      /* that it serves, or served last; -1: never used */
    int used;       /* blocks in use; 0: the slab is on the free list */
    int next, prev; /* of the free list, or of the group's list of slabs with holes; -1: none */
};

struct kv_arena_group {
    size_t block_bytes;
    int per_slab;
    int holes;   /* free blocks in the group's slabs */
    int partial; /* first slab with holes, -1: none */
    int blocks;  /* in use */
};

/* A block has been moved: its owner must note the new place. */
typedef void kv_arena_moved(void *arg, struct kv_node *owner, int group, uint32_t block);

struct kv_arena {
    char *bytes;
    size_t slab_bytes;
    int slabs, free_slabs, first_free;
    int stride; /* of block numbers: slab * stride + slot */
    int groups;
    struct kv_arena_group group[KV_MAX_GROUPS];
    struct kv_slab *slab;   /* [slabs] */
    struct kv_node **owner; /* [slabs * stride], NULL: free */
    kv_arena_moved *moved;
    void *moved_arg;
};

/* Sizes only; no memory is taken. ERR_ARG when not one block of every group fits. */
int kv_arena_plan(struct kv_arena *a, const struct kv_config *config, struct err *err);
/* Bookkeeping bytes of a planned arena. */
size_t kv_arena_overhead(const struct kv_arena *a);
/* Takes the memory of a planned arena. kv_arena_finish frees also what a failed init left. */
int kv_arena_init(struct kv_arena *a, struct err *err);
void kv_arena_finish(struct kv_arena *a);

/* A block for `owner`, or KV_NO_BLOCK. May move blocks of other groups. Its bytes are zero or what
 * was stored in a block of the same group before: never those of another layout. */
uint32_t kv_arena_take(struct kv_arena *a, int group, struct kv_node *owner);
void kv_arena_give(struct kv_arena *a, int group, uint32_t block);
void kv_arena_set_owner(struct kv_arena *a, uint32_t block, struct kv_node *owner);

static inline void *kv_arena_at(const struct kv_arena *a, int group, uint32_t block)
{
    uint32_t slab = block / (uint32_t)a->stride, slot = block % (uint32_t)a->stride;
    return a->bytes + slab * a->slab_bytes + slot * a->group[group].block_bytes;
}

/* Could the arena, were it empty, hold so many blocks of each group? */
bool kv_arena_fits(const struct kv_arena *a, const int64_t *blocks);
/* Blocks that kv_arena_take would give the group, one after the other, without moving any. */
size_t kv_arena_free_blocks(const struct kv_arena *a, int group);
/* Aborts when the lists or counts are wrong. */
void kv_arena_check(const struct kv_arena *a);

#endif
