#include "cache.h"

#include <assert.h>

/* Age is counted in nodes made since a node was last used. What is dear to compute again counts as
 * younger, what is hardly ever asked for as older: the sum is a node's key, and the lowest key goes
 * first. So a key changes only with its node, and a heap will do. */

/* ---- the heap ---- */

static void heap_put(struct kv_cache *c, size_t at, struct kv_node *n)
{
    c->heap[at] = n;
    n->heap_at = (int32_t)at;
}

bool kv_evict_before(const struct kv_node *a, const struct kv_node *b)
{
    return a->key < b->key || (a->key == b->key && a->depth > b->depth);
}

static void heap_up(struct kv_cache *c, size_t at)
{
    struct kv_node *n = c->heap[at];
    while (at > 0 && kv_evict_before(n, c->heap[(at - 1) / 2])) {
        heap_put(c, at, c->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(c, at, n);
}

static void heap_down(struct kv_cache *c, size_t at)
{
    struct kv_node *n = c->heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= c->heap_n)
            break;
        if (child + 1 < c->heap_n && kv_evict_before(c->heap[child + 1], c->heap[child]))
            child++;
        if (!kv_evict_before(c->heap[child], n))
            break;
        heap_put(c, at, c->heap[child]);
        at = child;
    }
    heap_put(c, at, n);
}

static void heap_remove(struct kv_cache *c, struct kv_node *n)
{
    size_t at = (size_t)n->heap_at;
    struct kv_node *last = c->heap[--c->heap_n];
    n->heap_at = -1;
    if (last == n)
        return;
    heap_put(c, at, last);
    heap_up(c, at);
    heap_down(c, (size_t)last->heap_at);
}

/* ---- worth ---- */

static bool is_leaf(const struct kv_node *n)
{
    return n->users == 0 && !n->children;
}

/* A window block that no sequence holds. Those of a leaf go with the leaf. */
static bool is_loose(const struct kv_cache *c, const struct kv_node *n, int group)
{
    return c->config.group[group].window && n->block[group] != KV_NO_BLOCK && n->refs[group] == 0;
}

static int64_t leaf_key(const struct kv_cache *c, const struct kv_node *n)
{
    int64_t lifetime = (int64_t)c->most_nodes;
    int64_t deep = kv_min(n->depth * KV_BLOCK_TOKENS, 8192);
    return n->used + lifetime / 4 * deep / 8192 + (n->kept ? lifetime / 2 : 0);
}

/* Few prompts branch in the middle of a chain; most that do, do so at a mark, and losing a marked
 * window costs all tokens back to the mark before. */
static int64_t loose_key(const struct kv_cache *c, const struct kv_node *n, int group)
{
    int64_t lifetime = (int64_t)c->most_nodes;
    bool kept = n->kept >> group & 1;
    return n->used + (kept ? lifetime : -lifetime / 2);
}

static int loosest_group(const struct kv_cache *c, const struct kv_node *n)
{
    int best = -1;
    for (int g = 0; g < c->config.groups; g++)
        if (is_loose(c, n, g) && (best < 0 || loose_key(c, n, g) < loose_key(c, n, best)))
            best = g;
    return best;
}

bool kv_evict_can(const struct kv_cache *c, const struct kv_node *n)
{
    return n->in_tree && (is_leaf(n) || loosest_group(c, n) >= 0);
}

void kv_evict_update(struct kv_cache *c, struct kv_node *n)
{
    if (!kv_evict_can(c, n)) {
        if (n->heap_at >= 0)
            heap_remove(c, n);
        return;
    }
    n->key = is_leaf(n) ? leaf_key(c, n) : loose_key(c, n, loosest_group(c, n));
    if (n->heap_at < 0) {
        assert(c->heap_n < c->heap_cap);
        heap_put(c, c->heap_n++, n);
    }
    heap_up(c, (size_t)n->heap_at);
    heap_down(c, (size_t)n->heap_at);
}

/* ---- what has been evicted ---- */

#define GHOST_TOKENS 16 /* fewer in common are not called a loss */

static uint32_t *ghost_slot(const struct kv_cache *c, uint64_t hash)
{
    return &c->ghosts[hash & c->ghost_mask];
}

static uint32_t ghost_tag(uint64_t hash)
{
    return (uint32_t)(hash >> 32) | 1;
}

static uint64_t ghost_hash(uint64_t salt, uint64_t chain)
{
    int32_t halves[2] = {(int32_t)(uint32_t)salt, (int32_t)(uint32_t)(salt >> 32)};
    return kv_chain_hash(chain, halves, 2);
}

static void ghost_add(struct kv_cache *c, const struct kv_node *n)
{
    int lengths[2] = {kv_min(n->n, GHOST_TOKENS), n->n};
    for (int i = 0; i < 2; i++) {
        uint64_t hash = ghost_hash(n->salt, kv_chain_hash(n->chain, n->tokens, lengths[i]));
        *ghost_slot(c, hash) = ghost_tag(hash);
    }
}

bool kv_ghost_seen(const struct kv_cache *c, uint64_t salt, uint64_t chain, const int32_t *tokens,
                   int from, int n)
{
    for (int i = 0; i < n; i++) {
        chain = kv_chain_hash(chain, tokens + i, 1);
        uint64_t hash = ghost_hash(salt, chain);
        if (i + 1 >= from && *ghost_slot(c, hash) == ghost_tag(hash))
            return true;
    }
    return false;
}

/* ---- eviction ---- */

static void count_evicted(struct kv_cache *c, const struct kv_node *n, int blocks)
{
    c->evicted_blocks += (uint64_t)blocks;
    buckets_add(&c->ages.lifetime, kv_age_bounds, c->now - n->born, (uint64_t)blocks);
    buckets_add(&c->ages.idle, kv_age_bounds, c->now - n->touched, (uint64_t)blocks);
}

static int count_blocks(const struct kv_cache *c, const struct kv_node *n)
{
    int blocks = 0;
    for (int g = 0; g < c->config.groups; g++)
        blocks += n->block[g] != KV_NO_BLOCK;
    return blocks;
}

void kv_evict_leaf(struct kv_cache *c, struct kv_node *n)
{
    while (n && is_leaf(n)) {
        struct kv_node *parent = n->parent;
        if (n->heap_at >= 0)
            heap_remove(c, n);
        c->bare_cached -= !kv_node_has_block(c, n);
        kv_tree_remove(c, n);
        kv_node_destroy(c, n);
        if (parent && kv_node_has_block(c, parent)) {
            kv_evict_update(c, parent);
            break;
        }
        n = parent;
    }
}

static void evict_loose(struct kv_cache *c, struct kv_node *n)
{
    kv_node_drop_block(c, n, loosest_group(c, n));
    count_evicted(c, n, 1);
    c->bare_cached += n->users == 0 && !kv_node_has_block(c, n);
    kv_evict_update(c, n);
}

bool kv_evict_one(struct kv_cache *c)
{
    if (c->heap_n == 0)
        return false;
    struct kv_node *n = c->heap[0];
    if (!is_leaf(n)) {
        evict_loose(c, n);
        return true;
    }
    count_evicted(c, n, count_blocks(c, n));
    ghost_add(c, n);
    kv_evict_leaf(c, n);
    return true;
}

static struct kv_node *child_but(const struct kv_node *n, const struct kv_node *but)
{
    struct kv_node *child = n->children;
    if (child && child == but)
        child = but->left ? but->left : but->right;
    return child;
}

void kv_evict_children(struct kv_cache *c, struct kv_node *n, const struct kv_node *but)
{
    struct kv_node *leaf;
    while ((leaf = child_but(n, but))) {
        while (leaf->children)
            leaf = leaf->children;
        assert(leaf->users == 0);
        count_evicted(c, leaf, count_blocks(c, leaf));
        ghost_add(c, leaf);
        kv_evict_leaf(c, leaf);
    }
}

bool kv_room(const struct kv_cache *c, int more_nodes)
{
    int64_t blocks[KV_MAX_GROUPS];
    for (int g = 0; g < c->config.groups; g++)
        blocks[g] = (int64_t)(c->counts[g].held + c->counts[g].shared) + more_nodes;
    return kv_arena_fits(&c->arena, blocks);
}
