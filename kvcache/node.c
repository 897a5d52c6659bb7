#include "cache.h"
#include "mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kv_node_chunk {
    struct kv_node_chunk *next;
    struct kv_node node[KV_NODE_CHUNK];
};

/* The heap grows with the pool, so that making a node evictable never needs memory. */
static bool pool_grow(struct kv_cache *c)
{
    size_t cap = c->pool_nodes + KV_NODE_CHUNK;
    if (cap > c->heap_cap) {
        size_t heap_cap = 2 * cap;
        struct kv_node **heap = realloc(c->heap, heap_cap * sizeof *heap);
        if (!heap)
            return false;
        c->heap = heap;
        c->heap_cap = heap_cap;
    }
    struct kv_node_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        return false;
    chunk->next = c->chunks;
    c->chunks = chunk;
    for (int i = KV_NODE_CHUNK - 1; i >= 0; i--) {
        chunk->node[i].parent = c->free_nodes;
        c->free_nodes = &chunk->node[i];
    }
    c->pool_nodes = cap;
    c->free_count += KV_NODE_CHUNK;
    return true;
}

bool kv_node_reserve(struct kv_cache *c, size_t n)
{
    while (c->free_count < n)
        if (!pool_grow(c))
            return false;
    return true;
}

void kv_node_pools_finish(struct kv_cache *c)
{
    while (c->chunks) {
        struct kv_node_chunk *next = c->chunks->next;
        free(c->chunks);
        c->chunks = next;
    }
    free(c->heap);
}

void kv_node_visit(const struct kv_cache *c, void (*visit)(void *arg, const struct kv_node *n),
                   void *arg)
{
    for (const struct kv_node_chunk *chunk = c->chunks; chunk; chunk = chunk->next)
        for (int i = 0; i < KV_NODE_CHUNK; i++)
            if (chunk->node[i].id)
                visit(arg, &chunk->node[i]);
}

/* ---- blocks ---- */

static size_t *count_of(struct kv_cache *c, int group, int refs)
{
    struct kv_counts *k = &c->counts[group];
    return refs == 0 ? &k->cached : refs == 1 ? &k->held : &k->shared;
}

void kv_node_ref(struct kv_cache *c, struct kv_node *n, int group, int by)
{
    assert(n->block[group] != KV_NO_BLOCK && n->refs[group] + by >= 0);
    --*count_of(c, group, n->refs[group]);
    n->refs[group] += by;
    ++*count_of(c, group, n->refs[group]);
}

bool kv_node_has_block(const struct kv_cache *c, const struct kv_node *n)
{
    for (int g = 0; g < c->config.groups; g++)
        if (n->block[g] != KV_NO_BLOCK)
            return true;
    return false;
}

static void take_block(struct kv_cache *c, struct kv_node *n, int group)
{
    while ((n->block[group] = kv_arena_take(&c->arena, group, n)) == KV_NO_BLOCK) {
        bool evicted = kv_evict_one(c);
        assert(evicted);
        (void)evicted;
    }
    c->counts[group].cached++;
}

void kv_node_drop_block(struct kv_cache *c, struct kv_node *n, int group)
{
    assert(n->refs[group] == 0);
    c->counts[group].cached--;
    kv_arena_give(&c->arena, group, n->block[group]);
    n->block[group] = KV_NO_BLOCK;
    n->kept &= (uint8_t) ~(1u << group);
}

struct kv_node *kv_node_create(struct kv_cache *c, uint64_t salt, int depth)
{
    struct kv_node *n = c->free_nodes;
    assert(n);
    c->free_nodes = n->parent;
    c->free_count--;
    memset(n, 0, sizeof *n);
    c->last_id += c->last_id == UINT32_MAX ? 2 : 1; /* 0 marks a free node */
    n->id = c->last_id;
    n->salt = salt;
    n->depth = depth;
    n->heap_at = -1;
    n->used = ++c->clock;
    n->born = n->touched = c->now;
    for (int g = 0; g < KV_MAX_GROUPS; g++)
        n->block[g] = KV_NO_BLOCK;
    for (int g = 0; g < c->config.groups; g++)
        take_block(c, n, g);
    return n;
}

void kv_node_destroy(struct kv_cache *c, struct kv_node *n)
{
    assert(n->users == 0 && !n->children && !n->in_tree && n->heap_at < 0);
    for (int g = 0; g < c->config.groups; g++)
        if (n->block[g] != KV_NO_BLOCK)
            kv_node_drop_block(c, n, g);
    n->id = 0;
    n->parent = c->free_nodes;
    c->free_nodes = n;
    c->free_count++;
}
