#include "cache.h"

#include <stdio.h>
#include <stdlib.h>

/* Counts everything anew and compares. Slow: for tests. */

#define REQUIRE(holds)                                                                             \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: the KV cache is inconsistent: %s\n", __FILE__, __LINE__,       \
                    #holds);                                                                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct totals {
    const struct kv_cache *c;
    size_t nodes, evictable, bare;
    struct kv_counts counts[KV_MAX_GROUPS];
};

/* ---- sequences ---- */

static void check_path_blocks(const struct kv_seq *s, int i)
{
    for (int g = 0; g < s->cache->config.groups; g++) {
        const struct kv_node *n = s->path[i];
        REQUIRE((s->blocks[g][i] != NULL) == (i >= s->first[g]));
        if (s->blocks[g][i])
            REQUIRE(n->block[g] != KV_NO_BLOCK &&
                    s->blocks[g][i] == kv_arena_at(&s->cache->arena, g, n->block[g]));
    }
}

static void check_seq(const struct kv_seq *s)
{
    REQUIRE(s->ready <= s->length && s->n_path == kv_blocks_for(s->length) && s->n_path <= s->cap);
    for (int i = 0; i < s->n_path; i++) {
        const struct kv_node *n = s->path[i];
        int used = kv_min(s->length - i * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS);
        REQUIRE(n->id && n->depth == i && n->n >= used);
        REQUIRE(n->salt == s->salt || (n->salt == kv_salt_public(s->salt) && !s->detached));
        REQUIRE(i == 0 || s->path[i - 1]->salt == n->salt ||
                s->path[i - 1]->salt == kv_salt_public(n->salt));
        REQUIRE(n->in_tree == s->in_tree && n->users > 0);
        REQUIRE(!s->in_tree || n->parent == (i ? s->path[i - 1] : NULL));
        REQUIRE(n->stored >= kv_min(s->ready - i * KV_BLOCK_TOKENS, used));
        check_path_blocks(s, i);
    }
    for (int g = 0; g < s->cache->config.groups; g++)
        REQUIRE(s->first[g] <=
                    kv_max(kv_first_needed(s->cache, g, s->length) / KV_BLOCK_TOKENS, 0) ||
                s->n_path == 0);
}

/* ---- nodes ---- */

static void check_users(const struct kv_cache *c, const struct kv_node *n)
{
    int users = 0, refs[KV_MAX_GROUPS] = {0};
    for (const struct kv_seq *s = c->running; s; s = s->next) {
        if (n->depth >= s->n_path || s->path[n->depth] != n)
            continue;
        users++;
        for (int g = 0; g < c->config.groups; g++)
            refs[g] += s->blocks[g][n->depth] != NULL;
    }
    REQUIRE(users == n->users);
    for (int g = 0; g < c->config.groups; g++)
        REQUIRE(refs[g] == n->refs[g]);
}

static void check_blocks(struct totals *t, const struct kv_node *n)
{
    for (int g = 0; g < t->c->config.groups; g++) {
        struct kv_counts *k = &t->counts[g];
        REQUIRE(n->block[g] != KV_NO_BLOCK || (n->refs[g] == 0 && !(n->kept >> g & 1)));
        if (n->block[g] == KV_NO_BLOCK) {
            REQUIRE(!n->in_tree || t->c->config.group[g].window > 0);
            continue;
        }
        REQUIRE(t->c->arena.owner[n->block[g]] == n);
        REQUIRE(n->in_tree || n->refs[g] > 0);
        ++*(n->refs[g] == 0 ? &k->cached : n->refs[g] == 1 ? &k->held : &k->shared);
    }
}

static void check_writer(const struct kv_node *n)
{
    REQUIRE(n->stored <= n->n && n->n > 0 && n->n <= KV_BLOCK_TOKENS);
    REQUIRE((n->writer != NULL) == (n->stored < n->n));
    REQUIRE(!n->writer || (n->writer->n_path > n->depth && n->writer->path[n->depth] == n));
}

static size_t check_order(const struct kv_node *n, const struct kv_node *parent,
                          const struct kv_node *above, const struct kv_node *below)
{
    if (!n)
        return 0;
    REQUIRE(n->in_tree && n->parent == parent);
    REQUIRE(!parent || (n->depth == parent->depth + 1 && parent->n == KV_BLOCK_TOKENS));
    REQUIRE(!above || kv_tree_before(above, n));
    REQUIRE(!below || kv_tree_before(n, below));
    return 1 + check_order(n->left, parent, above, n) + check_order(n->right, parent, n, below) +
           check_order(n->children, n, NULL, NULL);
}

static void check_node(void *arg, const struct kv_node *n)
{
    struct totals *t = arg;
    t->nodes += n->in_tree;
    t->evictable += n->heap_at >= 0;
    t->bare += n->in_tree && n->users == 0 && !kv_node_has_block(t->c, n);
    REQUIRE((n->heap_at >= 0) == kv_evict_can(t->c, n));
    REQUIRE(n->heap_at < 0 || t->c->heap[n->heap_at] == n);
    REQUIRE(n->users > 0 || n->in_tree);
    REQUIRE(n->users > 0 || n->children || kv_node_has_block(t->c, n));
    check_users(t->c, n);
    check_blocks(t, n);
    check_writer(n);
}

void kv_check(const struct kv_cache *c)
{
    struct totals t = {.c = c};
    kv_arena_check(&c->arena);
    for (const struct kv_seq *s = c->running; s; s = s->next)
        check_seq(s);
    kv_node_visit(c, check_node, &t);
    REQUIRE(check_order(c->roots, NULL, NULL, NULL) == t.nodes);
    REQUIRE(t.evictable == c->heap_n && t.bare == c->bare_cached);
    for (size_t i = 1; i < c->heap_n; i++)
        REQUIRE(!kv_evict_before(c->heap[i], c->heap[(i - 1) / 2]));
    for (int g = 0; g < c->config.groups; g++) {
        REQUIRE(t.counts[g].held == c->counts[g].held);
        REQUIRE(t.counts[g].shared == c->counts[g].shared);
        REQUIRE(t.counts[g].cached == c->counts[g].cached);
        REQUIRE((int)(t.counts[g].held + t.counts[g].shared + t.counts[g].cached) ==
                c->arena.group[g].blocks);
    }
}
