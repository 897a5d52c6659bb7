#include "cache.h"

int kv_resume_point(const struct kv_cache *c, struct kv_node *const *path, int tokens)
{
    int best = 0, held_from[KV_MAX_GROUPS] = {0};
    for (int i = 0; i < kv_blocks_for(tokens); i++) {
        int p = kv_min((i + 1) * KV_BLOCK_TOKENS, tokens);
        bool can = true;
        for (int g = 0; g < c->config.groups; g++) {
            if (path[i]->block[g] == KV_NO_BLOCK)
                held_from[g] = i + 1;
            can = can && held_from[g] <= kv_first_needed(c, g, p) / KV_BLOCK_TOKENS;
        }
        best = can ? p : best;
    }
    return best;
}

/* Under its own salt, or, as long as all before is public, also under the public one. */
static struct kv_node *find_child(const struct kv_seq *s, const struct kv_node *parent,
                                  const int32_t *tokens, int n, int *common)
{
    struct kv_node *own = kv_tree_find(s->cache, parent, s->salt, tokens, n, common);
    uint64_t shared = kv_salt_public(s->salt);
    if (s->salt == shared || (parent && parent->salt != shared) || *common == n)
        return own;
    int public_common;
    struct kv_node *public = kv_tree_find(s->cache, parent, shared, tokens, n, &public_common);
    if (public_common <= *common)
        return own;
    *common = public_common;
    return public;
}

/* Follows tokens[0, limit) from the last full node of s; writes the nodes found behind it to
 * `path` (which may be the sequence's own, beyond what it uses). */
static int follow(const struct kv_seq *s, const int32_t *tokens, int limit, struct kv_node **path)
{
    int i = s->length / KV_BLOCK_TOKENS, common = KV_BLOCK_TOKENS, matched = i * KV_BLOCK_TOKENS;
    const struct kv_node *parent = i ? path[i - 1] : NULL;
    for (; common == KV_BLOCK_TOKENS && matched < limit; i++) {
        int n = kv_min(KV_BLOCK_TOKENS, limit - matched);
        struct kv_node *child = find_child(s, parent, tokens + matched, n, &common);
        if (!child)
            break;
        path[i] = child;
        parent = child;
        matched += common;
    }
    return matched;
}

static int stored_tokens(struct kv_node *const *path, int tokens)
{
    int i = 0;
    while (i < tokens / KV_BLOCK_TOKENS && path[i]->stored == KV_BLOCK_TOKENS)
        i++;
    int stored = i * KV_BLOCK_TOKENS;
    return stored < tokens ? kv_min(stored + path[i]->stored, tokens) : tokens;
}

static void attach(struct kv_seq *s, int n)
{
    struct kv_cache *c = s->cache;
    kv_path_release(s, n);
    for (int i = s->n_path; i < kv_blocks_for(n); i++)
        kv_path_push(s, s->path[i], n);
    s->length = n;
    kv_path_advance(s);
    kv_path_mark(s, n); /* where one has branched off, others will */
    /* Whole blocks only: each who goes on within a block has a copy of it. */
    struct kv_node *last = s->path[kv_max(n / KV_BLOCK_TOKENS - 1, 0)];
    last->hits++;
    last->hit_tokens = (uint8_t)kv_max(last->hit_tokens,
                                       kv_min(n - last->depth * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS));
    c->hit_tokens += (uint64_t)kv_max(0, n - s->counted);
    s->counted = kv_max(s->counted, n);
}

int kv_match(struct kv_seq *s, const int32_t *tokens, int limit)
{
    int whole = s->length / KV_BLOCK_TOKENS;
    struct kv_node *tail = whole < s->n_path ? s->path[whole] : NULL;
    int matched = follow(s, tokens, limit, s->path);
    int p = kv_resume_point(s->cache, s->path, matched);
    int stored = stored_tokens(s->path, p);
    if (p < KV_BLOCK_TOKENS && p - stored < KV_WORTH_WAITING)
        p = stored;
    struct kv_node *found = whole < kv_blocks_for(matched) ? s->path[whole] : NULL;
    if (tail)
        s->path[whole] = tail;
    if (p <= s->length || stored < s->length) /* what s has is stored: never trade it for less */
        return matched;
    if (tail)
        kv_path_pop(s);
    s->path[whole] = found;
    attach(s, p);
    return matched;
}

const char *kv_miss_name(enum kv_miss miss)
{
    static const char *const names[KV_MISS_COUNT] = {
        [KV_MISS_NONE] = "none", [KV_MISS_NEVER] = "never_seen", [KV_MISS_EVICTED] = "evicted",
        [KV_MISS_SALT] = "salt", [KV_MISS_WINDOW] = "window",    [KV_MISS_SHORT] = "too_short",
    };
    return names[miss];
}

enum kv_miss kv_miss_reason(const struct kv_seq *s, const int32_t *tokens, int n, int limit,
                            int matched)
{
    const struct kv_cache *c = s->cache;
    if (!c->config.share)
        return KV_MISS_SHORT;
    if (s->length == limit)
        return KV_MISS_NONE;
    if (s->length < matched)
        return matched < KV_BLOCK_TOKENS ? KV_MISS_SHORT : KV_MISS_WINDOW;
    int begin = matched / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS, common = matched - begin;
    int most = kv_min(KV_BLOCK_TOKENS, n - begin);
    uint64_t chain = kv_chain_hash(0, tokens, begin);
    if (kv_tree_find_elsewhere(c, s->salt, chain, tokens + begin, most) > common)
        return KV_MISS_SALT;
    if (kv_ghost_seen(c, s->salt, chain, tokens + begin, common + 1, most))
        return KV_MISS_EVICTED;
    return KV_MISS_NEVER;
}
