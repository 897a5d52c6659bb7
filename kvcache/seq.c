#include "cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

static void seq_free(struct kv_seq *s)
{
    for (int g = 0; g < KV_MAX_GROUPS; g++)
        free(s->blocks[g]);
    free(s->path);
    free(s->prompt);
    free(s);
}

static struct kv_seq *seq_new(struct kv_cache *c, uint64_t salt, int blocks)
{
    struct kv_seq *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->cache = c;
    s->salt = salt;
    s->in_tree = c->config.share;
    if (!kv_path_reserve(s, blocks)) {
        seq_free(s);
        return NULL;
    }
    return s;
}

static void seq_enter(struct kv_seq *s)
{
    struct kv_cache *c = s->cache;
    s->serial = ++c->last_serial;
    s->next = c->running;
    if (s->next)
        s->next->prev = s;
    c->running = s;
    c->clock++;
}

static int count_public(const struct kv_cache *c, const int32_t *tokens, int n)
{
    int most = 0;
    for (const struct kv_public_prefix *p = c->publics; p; p = p->next)
        most = kv_max(most, kv_common(p->tokens, p->n, tokens, n));
    return most;
}

static bool seq_announce(struct kv_seq *s, const int32_t *tokens, int n)
{
    if (!s->in_tree || n == 0)
        return true;
    s->prompt = malloc((size_t)n * sizeof *tokens);
    if (!s->prompt)
        return false;
    memcpy(s->prompt, tokens, (size_t)n * sizeof *tokens);
    s->n_prompt = n;
    s->n_public = count_public(s->cache, tokens, n);
    return true;
}

int kv_seq_open(struct kv_cache *c, uint64_t salt, const int32_t *tokens, int n, int limit,
                struct kv_seq **out, struct kv_match *match, struct err *err)
{
    limit = kv_max(kv_min(limit, n), 0);
    struct kv_seq *s = seq_new(c, salt, kv_blocks_for(n) + 1);
    if (!s || !seq_announce(s, tokens, n)) {
        if (s)
            seq_free(s);
        return err_set(err, ERR_NOMEM, "no memory for a sequence of %d tokens", n);
    }
    seq_enter(s);
    s->limit = limit;
    int matched = s->in_tree ? kv_match(s, tokens, limit) : 0;
    match->tokens = s->length;
    match->miss = kv_miss_reason(s, tokens, n, limit, matched);
    c->queried_tokens += (uint64_t)n;
    c->misses[match->miss]++;
    *out = s;
    return 0;
}

void kv_seq_close(struct kv_seq *s)
{
    if (!s)
        return;
    struct kv_cache *c = s->cache;
    kv_path_advance(s);
    kv_path_cut_waiters(s, s->ready);
    c->clock++;
    while (s->n_path)
        kv_path_pop(s);
    if (s->next)
        s->next->prev = s->prev;
    if (s->prev)
        s->prev->next = s->next;
    else
        c->running = s->next;
    seq_free(s);
    while (c->bare_cached > c->most_nodes && kv_evict_one(c))
        ;
}

int kv_seq_fork(struct kv_seq *s, struct kv_seq **out, struct err *err)
{
    struct kv_cache *c = s->cache;
    assert(kv_seq_ready(s) == s->length);
    if (s->detached)
        return err_set(err, ERR_UNSUPPORTED, "a sequence that has left the tree cannot be forked");
    struct kv_seq *f = seq_new(c, s->salt, s->n_path + 1);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for a sequence of %d tokens", s->length);
    seq_enter(f);
    for (int i = 0; i < s->n_path; i++)
        kv_path_push(f, s->path[i], s->length);
    f->length = f->ready = s->length;
    *out = f;
    return 0;
}

/* ---- what it has ---- */

int kv_seq_length(const struct kv_seq *s)
{
    return s->length;
}

int kv_seq_ready(const struct kv_seq *s)
{
    kv_path_advance((struct kv_seq *)s); /* a cache of what the path says */
    return s->ready;
}

void *const *kv_seq_blocks(const struct kv_seq *s, int group)
{
    return s->blocks[group];
}

/* Up to where s would take its prompt from `older`. */
static int wanted_from(const struct kv_seq *s, const struct kv_seq *older)
{
    int end = kv_min(s->limit, s->n_prompt);
    if (older->salt == s->salt)
        return end;
    if (kv_salt_public(older->salt) != kv_salt_public(s->salt))
        return 0;
    return kv_min(end, kv_min(s->n_public, older->n_public));
}

/* Tokens that `older` is going to produce and that s wants next: both stand at the same place. */
static int announced(const struct kv_seq *s, const struct kv_seq *older)
{
    int n = s->length, last = (n - 1) / KV_BLOCK_TOKENS, end = wanted_from(s, older);
    if (older->serial >= s->serial || !older->in_tree)
        return 0;
    if (older->length != n || (n > 0 && older->path[last] != s->path[last]))
        return 0;
    if (older->n_prompt <= n || end <= n)
        return 0;
    int most = KV_WORTH_WAITING; /* more need not be compared */
    return kv_common(older->prompt + n, kv_min(older->n_prompt - n, most), s->prompt + n, end - n);
}

struct kv_seq *kv_seq_producer(const struct kv_seq *s)
{
    int ready = kv_seq_ready(s);
    if (ready < s->length) {
        struct kv_seq *writer = s->path[ready / KV_BLOCK_TOKENS]->writer;
        return writer == s ? NULL : writer;
    }
    if (!s->in_tree)
        return NULL;
    struct kv_seq *best = NULL;
    for (struct kv_seq *q = s->cache->running; q; q = q->next) {
        int common = announced(s, q);
        if (common > 0 && s->length + common >= KV_WORTH_WAITING &&
            (!best || q->serial < best->serial))
            best = q;
    }
    return best;
}

int kv_seq_rematch(struct kv_seq *s, const int32_t *tokens, int n, int limit)
{
    s->limit = limit = kv_min(limit, n);
    kv_path_advance(s);
    if (!s->in_tree || s->ready < s->length || limit <= s->length)
        return s->length;
    if (kv_path_reserve(s, kv_blocks_for(limit)))
        kv_match(s, tokens, limit);
    return s->length;
}

/* ---- extend ---- */

/* Of a node that s makes. It is public only when its whole block is to be: else the first tokens
 * of a private one would be everybody's. */
static uint64_t node_salt(const struct kv_seq *s, int i)
{
    uint64_t public = kv_salt_public(s->salt);
    bool follows = i == 0 || s->path[i - 1]->salt == public;
    return follows && (i + 1) * KV_BLOCK_TOKENS <= s->n_public ? public : s->salt;
}

/* How an extension goes about the partly filled last block. */
struct plan {
    int new_nodes;
    bool copy; /* others use the slots that follow: s takes a copy of its own */
};

static struct plan plan_extend(const struct kv_seq *s, int n)
{
    int keep = s->length % KV_BLOCK_TOKENS;
    struct plan p = {kv_blocks_for(s->length + n) - s->n_path, false};
    const struct kv_node *tail = keep ? s->path[s->n_path - 1] : NULL;
    p.copy = tail && (tail->n != keep ||
                      (tail->salt != s->salt && tail->salt != node_salt(s, s->n_path - 1)));
    p.new_nodes += p.copy;
    return p;
}

/* With no room for a copy, what nobody uses makes way: s writes over the slots that follow. */
static bool take_over_tail(struct kv_seq *s)
{
    struct kv_node *tail = s->path[s->n_path - 1];
    int keep = s->length % KV_BLOCK_TOKENS;
    if (tail->users > 1)
        return false;
    kv_evict_children(s->cache, tail, NULL);
    if (s->in_tree)
        kv_tree_remove(s->cache, tail);
    tail->n = tail->stored = (uint8_t)keep;
    tail->salt = s->salt; /* it may have been public */
    if (s->in_tree)
        kv_tree_insert(s->cache, tail);
    return true;
}

static void append_tail(struct kv_seq *s, const int32_t *tokens, int n)
{
    struct kv_node *tail = s->path[s->n_path - 1];
    kv_tree_retoken(s->cache, tail, tail->n, tokens, n);
    tail->writer = s;
    s->length += n;
}

static void append_node(struct kv_seq *s, const int32_t *tokens, int n)
{
    struct kv_node *node = kv_node_create(s->cache, node_salt(s, s->n_path), s->n_path);
    node->parent = s->in_tree && s->n_path ? s->path[s->n_path - 1] : NULL;
    node->writer = s;
    kv_tree_retoken(s->cache, node, 0, tokens, n);
    if (s->in_tree) {
        kv_tree_insert(s->cache, node);
        if (node->parent)
            kv_evict_update(s->cache, node->parent);
    }
    kv_path_push(s, node, s->length);
    s->length += n;
}

static void copy_tail(struct kv_seq *s)
{
    int i = s->n_path - 1;
    kv_path_copy(s, i, s->length % KV_BLOCK_TOKENS);
    if (s->in_tree)
        kv_tree_insert(s->cache, s->path[i]);
}

/* Nobody shall wait for what s is not going to produce after all, nor take it for public. */
static void keep_word(struct kv_seq *s, const int32_t *tokens, int n)
{
    int expected = kv_min(s->n_prompt - s->length, n);
    int common = expected > 0 ? kv_common(s->prompt + s->length, expected, tokens, n) : expected;
    if (common == expected)
        return;
    s->n_public = kv_min(s->n_public, s->length + common);
    s->n_prompt = 0;
}

int kv_seq_extend(struct kv_seq *s, const int32_t *tokens, int n)
{
    kv_path_advance(s);
    assert(n >= 0 && (s->ready == s->length || s->path[s->ready / KV_BLOCK_TOKENS]->writer == s));
    if (n > INT32_MAX - 2 * KV_BLOCK_TOKENS - s->length)
        return ERR_BUSY;
    if (n == 0)
        return 0;
    keep_word(s, tokens, n);
    struct plan p = plan_extend(s, n);
    if (p.copy && !kv_room(s->cache, p.new_nodes) && kv_room(s->cache, p.new_nodes - 1) &&
        take_over_tail(s))
        p = plan_extend(s, n);
    if (!kv_room(s->cache, p.new_nodes))
        return ERR_BUSY;
    if (!kv_node_reserve(s->cache, (size_t)p.new_nodes) ||
        !kv_path_reserve(s, kv_blocks_for(s->length + n)))
        return ERR_NOMEM;
    if (p.copy)
        copy_tail(s);
    for (int done = 0, part; done < n; done += part) {
        int used = s->length % KV_BLOCK_TOKENS;
        part = kv_min(n - done, KV_BLOCK_TOKENS - used);
        (used ? append_tail : append_node)(s, tokens + done, part);
    }
    return 0;
}

/* ---- commit ---- */

/* A node is full: from now on it can have children, and a twin that another has made of the same
 * tokens (or an old one that has lost its window) takes its place. */
static void node_complete(struct kv_seq *s, struct kv_node *n)
{
    struct kv_node *twin = n->in_tree ? kv_tree_twin(s->cache, n) : NULL;
    if (twin)
        kv_path_merge(s->cache, twin, n);
}

static bool holds_all(const struct kv_seq *s, int i)
{
    for (int g = 0; g < s->cache->config.groups; g++)
        if (!s->blocks[g][i])
            return false;
    return true;
}

/* Are the first n tokens of node i public already? */
static bool is_public(const struct kv_seq *s, int i, int n)
{
    uint64_t public = kv_salt_public(s->salt);
    int common;
    kv_tree_find(s->cache, i ? s->path[i - 1] : NULL, public, s->path[i]->tokens, n, &common);
    return common == n || s->path[i]->salt == public || (i && s->path[i - 1]->salt != public);
}

/* A public prefix ends within node i: its tokens there are everybody's, what follows is not, so
 * they get a node of their own. */
static void publish_end(struct kv_seq *s, int committed)
{
    struct kv_cache *c = s->cache;
    int i = s->n_public / KV_BLOCK_TOKENS, n = s->n_public % KV_BLOCK_TOKENS;
    if (s->told || !s->in_tree || n == 0 || committed < s->n_public)
        return;
    s->told = true;
    if (is_public(s, i, n) || !holds_all(s, i) || !kv_room(c, 1) || !kv_node_reserve(c, 1))
        return;
    struct kv_node *from = s->path[i], *to = kv_node_create(c, kv_salt_public(s->salt), i);
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof *to->tokens);
    to->n = to->stored = (uint8_t)n;
    to->parent = from->parent;
    for (int g = 0; g < c->config.groups; g++)
        memcpy(kv_arena_at(&c->arena, g, to->block[g]), s->blocks[g][i],
               c->arena.group[g].block_bytes);
    kv_tree_insert(c, to);
    kv_evict_update(c, to);
    if (to->parent)
        kv_evict_update(c, to->parent);
}

void kv_seq_commit(struct kv_seq *s, int n)
{
    assert(n <= s->length);
    kv_path_advance(s);
    for (int i = s->ready / KV_BLOCK_TOKENS; i * KV_BLOCK_TOKENS < n; i++) {
        struct kv_node *node = s->path[i];
        int stored = kv_min(n - i * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS);
        if (stored <= node->stored)
            continue;
        assert(node->writer == s);
        node->stored = (uint8_t)stored;
        if (stored == node->n)
            node->writer = NULL;
        if (stored == KV_BLOCK_TOKENS)
            node_complete(s, node);
    }
    kv_path_advance(s);
    publish_end(s, n);
    kv_path_release(s, kv_max(n, 0));
}

void kv_seq_truncate(struct kv_seq *s, int n)
{
    kv_path_cut(s, kv_max(n, 0));
}

void kv_seq_mark(struct kv_seq *s)
{
    kv_path_mark(s, kv_seq_ready(s));
}

/* ---- detach ---- */

/* Somebody else uses the node, or something hangs on it besides the rest of s. */
static bool is_foreign(const struct kv_seq *s, int i)
{
    const struct kv_node *n = s->path[i], *own = i + 1 < s->n_path ? s->path[i + 1] : NULL;
    return n->users > 1 || (n->children && (n->children != own || own->left || own->right));
}

/* How many nodes must be copied: what stays in the tree keeps its ancestors there, too. */
static int count_foreign(const struct kv_seq *s)
{
    int count = s->n_path;
    while (count > 0 && !is_foreign(s, count - 1))
        count--;
    return count;
}

static void evict_branches(struct kv_seq *s)
{
    for (int i = 0; i < s->n_path; i++)
        if (s->path[i]->users == 1)
            kv_evict_children(s->cache, s->path[i], i + 1 < s->n_path ? s->path[i + 1] : NULL);
}

static void privatise(struct kv_seq *s, int i)
{
    struct kv_cache *c = s->cache;
    struct kv_node *n = s->path[i], *parent = n->parent;
    if (n->users > 1 || n->children) {
        kv_path_copy(s, i, kv_min(s->length - i * KV_BLOCK_TOKENS, KV_BLOCK_TOKENS));
    } else if (n->in_tree) {
        kv_tree_remove(c, n);
        kv_evict_update(c, n);
        if (parent)
            kv_evict_update(c, parent);
    }
    s->path[i]->parent = NULL;
    s->path[i]->salt = s->salt;
    for (int g = 0; g < c->config.groups; g++)
        if (s->path[i]->block[g] != KV_NO_BLOCK && s->path[i]->refs[g] == 0)
            kv_node_drop_block(c, s->path[i], g);
}

int kv_seq_detach(struct kv_seq *s)
{
    struct kv_cache *c = s->cache;
    kv_path_advance(s);
    if (s->detached)
        return 0;
    if (s->ready < s->length && s->path[s->ready / KV_BLOCK_TOKENS]->writer != s)
        kv_path_cut(s, s->ready); /* what another produces stays with it */
    if (!kv_room(c, count_foreign(s)))
        evict_branches(s);
    int copies = count_foreign(s);
    if (!kv_room(c, copies) || !kv_node_reserve(c, (size_t)copies))
        return ERR_BUSY;
    kv_path_cut_waiters(s, s->ready);
    for (int i = s->n_path - 1; i >= 0; i--) /* the last first: a node leaves without children */
        privatise(s, i);
    s->in_tree = false;
    s->n_public = 0;
    s->detached = true;
    return 0;
}
