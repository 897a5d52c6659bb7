#include "cache.h"
#include "mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

/* Every node in the tree holds its block of each full group. Without a full group nodes may stay
 * for the sake of their descendants: as many again. */
static size_t most_nodes(const struct kv_config *config, const struct kv_arena *a)
{
    size_t full = SIZE_MAX, any = 0;
    for (int g = 0; g < a->groups; g++) {
        size_t blocks = (size_t)a->slabs * (size_t)a->group[g].per_slab;
        any = blocks > any ? blocks : any;
        if (config->group[g].window == 0)
            full = blocks < full ? blocks : full;
    }
    return full < SIZE_MAX ? full : any;
}

static size_t power_of_two(size_t at_least)
{
    size_t n = 64;
    while (n < at_least)
        n *= 2;
    return n;
}

static bool has_full_group(const struct kv_config *config)
{
    for (int g = 0; g < config->groups; g++)
        if (config->group[g].window == 0)
            return true;
    return false;
}

size_t kv_overhead_bytes(const struct kv_config *config)
{
    struct kv_arena a;
    if (kv_arena_plan(&a, config, NULL))
        return 0;
    size_t blocks = most_nodes(config, &a);
    size_t nodes = blocks * (has_full_group(config) ? 1 : 2) + 2 * KV_NODE_CHUNK;
    size_t tables = power_of_two(blocks) * (sizeof(struct kv_node *) + 2 * sizeof(uint32_t));
    return sizeof(struct kv_cache) + kv_arena_overhead(&a) + tables + 4 * MEM_LINE +
           nodes * (sizeof(struct kv_node) + 2 * sizeof(struct kv_node *));
}

/* ---- create and destroy ---- */

static int take_memory(struct kv_cache *c, struct err *err)
{
    c->index_mask = power_of_two(c->most_nodes) - 1;
    c->ghost_mask = 2 * (c->index_mask + 1) - 1;
    c->index = mem_alloc(c->index_mask + 1, sizeof(struct kv_node *));
    c->ghosts = mem_alloc(c->ghost_mask + 1, sizeof *c->ghosts);
    if (!c->index || !c->ghosts)
        return err_set(err, ERR_NOMEM, "KV cache: no memory for the index of %zu blocks",
                       c->most_nodes);
    return kv_arena_init(&c->arena, err);
}

int kv_create(const struct kv_config *config, struct kv_cache **out, struct err *err)
{
    struct kv_cache *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ERR_NOMEM, "KV cache: out of memory");
    c->config = *config;
    int code = kv_arena_plan(&c->arena, config, err);
    if (code)
        goto fail;
    for (int g = 0; g < config->groups; g++) {
        code = ERR_ARG;
        if (config->group[g].window < 0) {
            err_set(err, code, "KV cache: group %d has the window %d, expected 0 (none) or more", g,
                    config->group[g].window);
            goto fail;
        }
    }
    c->arena.moved = kv_path_moved;
    c->arena.moved_arg = c;
    c->most_nodes = most_nodes(config, &c->arena);
    code = take_memory(c, err);
    if (code)
        goto fail;
    *out = c;
    return 0;
fail:
    kv_destroy(c);
    return code;
}

int kv_public(struct kv_cache *c, const int32_t *tokens, int n, struct err *err)
{
    struct kv_public_prefix *p = malloc(sizeof *p + (size_t)n * sizeof *tokens);
    if (!p)
        return err_set(err, ERR_NOMEM, "KV cache: no memory for a public prefix of %d tokens", n);
    memcpy(p->tokens, tokens, (size_t)n * sizeof *tokens);
    p->n = n;
    p->next = c->publics;
    c->publics = p;
    return 0;
}

void kv_destroy(struct kv_cache *c)
{
    if (!c)
        return;
    assert(!c->running);
    while (c->publics) {
        struct kv_public_prefix *next = c->publics->next;
        free(c->publics);
        c->publics = next;
    }
    kv_node_pools_finish(c);
    kv_arena_finish(&c->arena);
    mem_free(c->index);
    mem_free(c->ghosts);
    free(c);
}

/* ---- what fits, what is there ---- */

/* Positions that a window group holds while it grows block by block: the window before the first
 * new position, and a block of new ones, at any alignment. */
static int64_t blocks_at(const struct kv_cache *c, int group, int n)
{
    int64_t all = kv_blocks_for(n), window = c->config.group[group].window;
    if (window == 0)
        return all;
    int64_t most = (window + KV_BLOCK_TOKENS - 2) / KV_BLOCK_TOKENS + 2;
    return all < most ? all : most;
}

void kv_tick(struct kv_cache *c, double seconds)
{
    c->now = seconds;
}

bool kv_fits(const struct kv_cache *c, int n)
{
    int64_t blocks[KV_MAX_GROUPS];
    for (int g = 0; g < c->config.groups; g++)
        blocks[g] = blocks_at(c, g, n);
    return kv_arena_fits(&c->arena, blocks);
}

const double kv_age_bounds[] = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,    2,
                                5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800, 0};

void kv_stats(const struct kv_cache *c, struct kv_stats *out)
{
    *out = (struct kv_stats){.block_bytes_total = (size_t)c->arena.slabs * c->arena.slab_bytes,
                             .queried_tokens = c->queried_tokens,
                             .hit_tokens = c->hit_tokens,
                             .evicted_blocks = c->evicted_blocks,
                             .copied_blocks = c->copied_blocks,
                             .ages = c->ages};
    for (int g = 0; g < c->config.groups; g++) {
        const struct kv_counts *k = &c->counts[g];
        out->blocks_free[g] = kv_arena_free_blocks(&c->arena, g);
        out->blocks_held[g] = k->held;
        out->blocks_shared[g] = k->shared;
        out->blocks_cached[g] = k->cached;
        out->bytes_used += (k->held + k->shared) * c->arena.group[g].block_bytes;
        out->bytes_cached += k->cached * c->arena.group[g].block_bytes;
    }
    out->bytes_free = out->block_bytes_total - out->bytes_used - out->bytes_cached;
    memcpy(out->misses, c->misses, sizeof out->misses);
}

/* ---- the hottest prefixes ---- */

struct hottest {
    const struct kv_node **node; /* most hits first */
    int n, most;
};

static void consider(void *arg, const struct kv_node *n)
{
    struct hottest *h = arg;
    if (!n->in_tree || n->hits == 0)
        return;
    if (h->n == h->most && h->node[h->n - 1]->hits >= n->hits)
        return;
    int i = h->n < h->most ? h->n++ : h->n - 1;
    for (; i > 0 && h->node[i - 1]->hits < n->hits; i--)
        h->node[i] = h->node[i - 1];
    h->node[i] = n;
}

static int prefix_tokens(const struct kv_node *n, int32_t *tokens)
{
    int count = n->depth * KV_BLOCK_TOKENS + kv_min(n->hit_tokens, n->n);
    for (int used = count - n->depth * KV_BLOCK_TOKENS; n; n = n->parent, used = KV_BLOCK_TOKENS)
        memcpy(tokens + n->depth * KV_BLOCK_TOKENS, n->tokens, (size_t)used * sizeof *tokens);
    return count;
}

void kv_visit_prefixes(const struct kv_cache *c, int most,
                       void (*visit)(void *arg, const struct kv_prefix *prefix), void *arg)
{
    struct hottest h = {.most = most};
    if (most < 1 || !(h.node = calloc((size_t)most, sizeof *h.node)))
        return;
    kv_node_visit(c, consider, &h);
    for (int i = 0; i < h.n; i++) {
        const struct kv_node *n = h.node[i];
        int32_t *tokens = malloc((size_t)(n->depth + 1) * sizeof n->tokens);
        if (!tokens)
            break;
        struct kv_prefix prefix = {tokens, prefix_tokens(n, tokens), n->hits, n->users};
        visit(arg, &prefix);
        free(tokens);
    }
    free(h.node);
}
