#include "cache.h"

#include <stdlib.h>
#include <string.h>

bool kv_path_reserve(struct kv_seq *s, int blocks)
{
    if (blocks <= s->cap)
        return true;
    int cap = kv_max(kv_max(blocks, s->cap + s->cap / 2), 8);
    struct kv_node **path = realloc(s->path, (size_t)cap * sizeof *path);
    if (!path)
        return false;
    s->path = path;
    for (int g = 0; g < s->cache->config.groups; g++) {
        void **blocks_of = realloc(s->blocks[g], (size_t)cap * sizeof *blocks_of);
        if (!blocks_of)
            return false;
        s->blocks[g] = blocks_of;
    }
    s->cap = cap;
    return true;
}

/* ---- references ---- */

static void hold(struct kv_seq *s, int i, int group)
{
    struct kv_node *n = s->path[i];
    kv_node_ref(s->cache, n, group, 1);
    s->blocks[group][i] = kv_arena_at(&s->cache->arena, group, n->block[group]);
}

/* Outside the tree nobody else can find a block that its users have let go. */
static void let_go(struct kv_seq *s, int i, int group)
{
    struct kv_node *n = s->path[i];
    s->blocks[group][i] = NULL;
    kv_node_ref(s->cache, n, group, -1);
    if (n->refs[group] == 0 && !n->in_tree)
        kv_node_drop_block(s->cache, n, group);
}

static void add_user(struct kv_cache *c, struct kv_node *n)
{
    if (n->users++ == 0 && n->in_tree && !kv_node_has_block(c, n))
        c->bare_cached--;
    n->used = c->clock;
    n->touched = c->now;
}

void kv_path_push(struct kv_seq *s, struct kv_node *n, int length)
{
    struct kv_cache *c = s->cache;
    int i = s->n_path++;
    bool again = n->users == 0 && n->stored > 0; /* it lay in the tree unused */
    double gap = c->now - n->touched;
    s->path[i] = n;
    add_user(c, n);
    for (int g = 0; g < c->config.groups; g++) {
        s->blocks[g][i] = NULL;
        if ((i + 1) * KV_BLOCK_TOKENS > kv_first_needed(c, g, length))
            hold(s, i, g);
        else
            s->first[g] = i + 1;
        if (again && s->blocks[g][i])
            buckets_add(&c->ages.reuse, kv_age_bounds, gap, 1);
    }
    kv_evict_update(c, n);
}

/* Tokens without keys and values go with the one who was to store them. */
static void leave_writing(struct kv_seq *s, struct kv_node *n)
{
    if (n->writer != s)
        return;
    n->writer = NULL;
    if (n->n > n->stored && n->stored > 0)
        kv_tree_retoken(s->cache, n, n->stored, NULL, 0);
}

static void remove_user(struct kv_seq *s, struct kv_node *n)
{
    struct kv_cache *c = s->cache;
    leave_writing(s, n);
    n->used = c->clock;
    n->touched = c->now;
    if (--n->users > 0) {
        kv_evict_update(c, n);
    } else if (!n->in_tree) {
        kv_node_destroy(c, n);
    } else {
        bool bare = !kv_node_has_block(c, n);
        c->bare_cached += bare;
        if (n->stored == 0 || (bare && !n->children))
            kv_evict_leaf(c, n);
        else
            kv_evict_update(c, n);
    }
}

void kv_path_pop(struct kv_seq *s)
{
    int i = s->n_path - 1;
    for (int g = 0; g < s->cache->config.groups; g++) {
        if (s->blocks[g][i])
            let_go(s, i, g);
        s->first[g] = kv_min(s->first[g], i);
    }
    s->n_path = i;
    remove_user(s, s->path[i]);
}

void kv_path_copy(struct kv_seq *s, int i, int tokens)
{
    struct kv_cache *c = s->cache;
    struct kv_node *from = s->path[i], *to = kv_node_create(c, s->salt, i);
    memcpy(to->tokens, from->tokens, (size_t)tokens * sizeof *to->tokens);
    to->n = (uint8_t)tokens;
    to->stored = (uint8_t)kv_min(from->stored, tokens);
    to->writer = to->stored < to->n ? s : NULL;
    to->parent = from->parent;
    for (int g = 0; g < c->config.groups; g++) {
        if (!s->blocks[g][i]) {
            kv_node_drop_block(c, to, g);
            continue;
        }
        memcpy(kv_arena_at(&c->arena, g, to->block[g]), s->blocks[g][i],
               c->arena.group[g].block_bytes);
        c->copied_blocks++;
        let_go(s, i, g);
        s->path[i] = to;
        hold(s, i, g);
        s->path[i] = from;
    }
    s->path[i] = to;
    add_user(c, to);
    remove_user(s, from);
}

/* ---- windows ---- */

void kv_path_release(struct kv_seq *s, int n)
{
    for (int g = 0; g < s->cache->config.groups; g++) {
        int end = kv_min(kv_first_needed(s->cache, g, n) / KV_BLOCK_TOKENS, s->n_path);
        for (; s->first[g] < end; s->first[g]++) {
            struct kv_node *node = s->path[s->first[g]];
            let_go(s, s->first[g], g);
            node->used = s->cache->clock;
            kv_evict_update(s->cache, node);
        }
    }
}

static void acquire(struct kv_seq *s, int n)
{
    for (int g = 0; g < s->cache->config.groups; g++) {
        int begin = kv_first_needed(s->cache, g, n) / KV_BLOCK_TOKENS;
        while (s->first[g] > begin) {
            hold(s, --s->first[g], g);
            kv_evict_update(s->cache, s->path[s->first[g]]);
        }
    }
}

void kv_path_mark(struct kv_seq *s, int n)
{
    for (int g = 0; g < s->cache->config.groups; g++) {
        if (s->cache->config.group[g].window == 0)
            continue;
        int begin = kv_first_needed(s->cache, g, n) / KV_BLOCK_TOKENS;
        for (int i = kv_max(begin, s->first[g]); i < kv_blocks_for(n); i++) {
            s->path[i]->kept |= (uint8_t)(1u << g);
            kv_evict_update(s->cache, s->path[i]);
        }
    }
}

/* ---- length ---- */

void kv_path_advance(struct kv_seq *s)
{
    while (s->ready < s->length) {
        int i = s->ready / KV_BLOCK_TOKENS;
        int stored = kv_min(i * KV_BLOCK_TOKENS + s->path[i]->stored, s->length);
        if (stored <= s->ready)
            break;
        s->ready = stored;
    }
}

void kv_path_cut_waiters(struct kv_seq *s, int from)
{
    if (from >= s->length)
        return;
    int i = from / KV_BLOCK_TOKENS;
    struct kv_node *n = s->path[i];
    if (n->writer != s)
        return;
    for (struct kv_seq *w = s->cache->running; w; w = w->next)
        if (w != s && w->length > from && w->path[i] == n)
            kv_path_cut(w, from);
}

/* The last node of s may have tokens after position n. What s has not stored goes, and when nobody
 * else has use for it, what it has. */
static void trim_tail(struct kv_seq *s, int n)
{
    int keep = n % KV_BLOCK_TOKENS;
    struct kv_node *tail = keep ? s->path[s->n_path - 1] : NULL;
    if (!tail || tail->writer != s)
        return;
    if (tail->users == 1)
        tail->stored = (uint8_t)kv_min(tail->stored, keep);
    kv_tree_retoken(s->cache, tail, kv_max(tail->stored, keep), NULL, 0);
    if (tail->n == tail->stored)
        tail->writer = NULL;
}

void kv_path_cut(struct kv_seq *s, int n)
{
    if (n >= s->length)
        return;
    kv_path_advance(s);
    n = kv_resume_point(s->cache, s->path, n);
    kv_path_cut_waiters(s, kv_max(n, s->ready));
    while (s->n_path > kv_blocks_for(n))
        kv_path_pop(s);
    s->length = n;
    s->ready = kv_min(s->ready, n);
    trim_tail(s, n);
    acquire(s, n);
}

/* ---- changes of the tree below running sequences ---- */

void kv_path_moved(void *cache, struct kv_node *owner, int group, uint32_t block)
{
    struct kv_cache *c = cache;
    owner->block[group] = block;
    if (owner->refs[group] == 0)
        return;
    void *at = kv_arena_at(&c->arena, group, block);
    int i = owner->depth;
    for (struct kv_seq *s = c->running; s; s = s->next)
        if (i < s->n_path && s->path[i] == owner && s->blocks[group][i])
            s->blocks[group][i] = at;
}

static void merge_block(struct kv_cache *c, struct kv_node *to, struct kv_node *from, int group)
{
    int refs = from->refs[group];
    if (from->block[group] == KV_NO_BLOCK)
        return;
    if (to->block[group] == KV_NO_BLOCK) {
        kv_arena_set_owner(&c->arena, from->block[group], to);
        to->block[group] = from->block[group];
        to->refs[group] = refs;
        from->block[group] = KV_NO_BLOCK;
        from->refs[group] = 0;
        return;
    }
    kv_node_ref(c, from, group, -refs);
    kv_node_ref(c, to, group, refs);
    kv_node_drop_block(c, from, group);
}

void kv_path_merge(struct kv_cache *c, struct kv_node *to, struct kv_node *from)
{
    int i = from->depth;
    to->kept |= from->kept;
    bool was_bare_cached = to->users == 0 && !kv_node_has_block(c, to);
    for (int g = 0; g < c->config.groups; g++)
        merge_block(c, to, from, g);
    for (struct kv_seq *s = c->running; s; s = s->next) {
        if (i >= s->n_path || s->path[i] != from)
            continue;
        s->path[i] = to;
        for (int g = 0; g < c->config.groups; g++)
            if (s->blocks[g][i])
                s->blocks[g][i] = kv_arena_at(&c->arena, g, to->block[g]);
    }
    c->bare_cached -= was_bare_cached;
    to->users += from->users;
    to->hits += from->hits;
    to->hit_tokens = (uint8_t)kv_max(to->hit_tokens, from->hit_tokens);
    to->used = c->clock;
    from->users = 0;
    kv_tree_adopt(c, to, from);
    kv_tree_remove(c, from);
    kv_evict_update(c, from); /* out of the heap */
    kv_node_destroy(c, from);
    kv_evict_update(c, to);
}
