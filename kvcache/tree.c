#include "cache.h"

#include <assert.h>
#include <string.h>

/* ---- order of siblings ---- */

int kv_common(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = kv_min(n_a, n_b), i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* A node's place among its siblings as seen by (salt, tokens): below 0 when it comes before. */
static int node_compare(const struct kv_node *node, uint64_t salt, const int32_t *tokens, int n,
                        int *common)
{
    *common = 0;
    if (node->salt != salt)
        return node->salt < salt ? -1 : 1;
    int i = *common = kv_common(node->tokens, node->n, tokens, n);
    if (i < node->n && i < n)
        return node->tokens[i] < tokens[i] ? -1 : 1;
    return node->n - n;
}

bool kv_tree_before(const struct kv_node *a, const struct kv_node *b)
{
    int common, order = node_compare(a, b->salt, b->tokens, b->n, &common);
    return order < 0 || (order == 0 && a->id < b->id);
}

/* ---- the treap: a search tree by kv_tree_before, a heap by priority ---- */

static uint32_t priority(const struct kv_node *n)
{
    uint32_t x = n->id * 0x9e3779b1u;
    x = (x ^ (x >> 15)) * 0x85ebca77u;
    return x ^ (x >> 13);
}

/* Splits t into what comes before n and what comes after. */
static void treap_split(struct kv_node *t, const struct kv_node *n, struct kv_node **before,
                        struct kv_node **after)
{
    while (t) {
        if (kv_tree_before(t, n)) {
            *before = t;
            before = &t->right;
            t = t->right;
        } else {
            *after = t;
            after = &t->left;
            t = t->left;
        }
    }
    *before = *after = NULL;
}

static struct kv_node *treap_join(struct kv_node *before, struct kv_node *after)
{
    struct kv_node *root = NULL, **at = &root;
    while (before && after) {
        if (priority(before) > priority(after)) {
            *at = before;
            at = &before->right;
            before = before->right;
        } else {
            *at = after;
            at = &after->left;
            after = after->left;
        }
    }
    *at = before ? before : after;
    return root;
}

static struct kv_node **siblings_of(struct kv_cache *c, const struct kv_node *n)
{
    return n->parent ? &n->parent->children : &c->roots;
}

static void treap_insert(struct kv_node **at, struct kv_node *n)
{
    while (*at && priority(*at) >= priority(n))
        at = kv_tree_before(*at, n) ? &(*at)->right : &(*at)->left;
    treap_split(*at, n, &n->left, &n->right);
    *at = n;
}

static void treap_remove(struct kv_node **at, struct kv_node *n)
{
    while (*at != n) {
        assert(*at);
        at = kv_tree_before(*at, n) ? &(*at)->right : &(*at)->left;
    }
    *at = treap_join(n->left, n->right);
    n->left = n->right = NULL;
}

/* ---- the index of chains, for telling why a prefix is missing ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

uint64_t kv_chain_hash(uint64_t chain, const int32_t *tokens, int n)
{
    for (int i = 0; i < n; i++)
        chain = mix(chain + 0x9e3779b97f4a7c15u + (uint32_t)tokens[i]);
    return chain;
}

static struct kv_node **index_slot(const struct kv_cache *c, uint64_t chain, int32_t first)
{
    return &c->index[kv_chain_hash(chain, &first, 1) & c->index_mask];
}

static void index_remove(struct kv_cache *c, struct kv_node *n)
{
    struct kv_node **at = index_slot(c, n->chain, n->tokens[0]);
    while (*at != n)
        at = &(*at)->same_hash;
    *at = n->same_hash;
}

int kv_tree_find_elsewhere(const struct kv_cache *c, uint64_t salt, uint64_t chain,
                           const int32_t *tokens, int n)
{
    int best = 0, looked = 0;
    const struct kv_node *node = n ? *index_slot(c, chain, tokens[0]) : NULL;
    for (; node && looked < 64; node = node->same_hash, looked++)
        if (node->chain == chain && node->salt != salt &&
            kv_salt_public(node->salt) == kv_salt_public(salt))
            best = kv_max(best, kv_common(node->tokens, node->n, tokens, n));
    return best;
}

/* ---- the tree ---- */

void kv_tree_insert(struct kv_cache *c, struct kv_node *n)
{
    assert(!n->in_tree && n->n > 0);
    n->chain = n->parent ? kv_chain_hash(n->parent->chain, n->parent->tokens, KV_BLOCK_TOKENS) : 0;
    treap_insert(siblings_of(c, n), n);
    struct kv_node **slot = index_slot(c, n->chain, n->tokens[0]);
    n->same_hash = *slot;
    *slot = n;
    n->in_tree = true;
}

void kv_tree_remove(struct kv_cache *c, struct kv_node *n)
{
    assert(n->in_tree);
    treap_remove(siblings_of(c, n), n);
    index_remove(c, n);
    n->in_tree = false;
}

void kv_tree_retoken(struct kv_cache *c, struct kv_node *n, int keep, const int32_t *tokens,
                     int count)
{
    assert(keep + count > 0 && keep + count <= KV_BLOCK_TOKENS);
    if (n->in_tree)
        treap_remove(siblings_of(c, n), n);
    if (count)
        memcpy(n->tokens + keep, tokens, (size_t)count * sizeof *tokens);
    n->n = (uint8_t)(keep + count);
    if (n->in_tree)
        treap_insert(siblings_of(c, n), n);
}

static bool holds_all(const struct kv_cache *c, const struct kv_node *n)
{
    for (int g = 0; g < c->config.groups; g++)
        if (n->block[g] == KV_NO_BLOCK)
            return false;
    return true;
}

/* A whole block in common leads on to its children. Within a block one can only resume where every
 * group's block is held; of equals, the one with more stored. */
static int64_t usefulness(const struct kv_cache *c, const struct kv_node *n, int common)
{
    int64_t whole = common == KV_BLOCK_TOKENS, held = holds_all(c, n);
    return ((whole * 2 + held) * 64 + common) * 64 + n->stored;
}

/* A sibling of exactly these tokens, all of them stored, but not `but`. */
static struct kv_node *find_stored(struct kv_node *at, uint64_t salt, const int32_t *tokens, int n,
                                   const struct kv_node *but)
{
    while (at) {
        int common, order = node_compare(at, salt, tokens, n, &common);
        if (order == 0 && at != but && at->stored == n)
            return at;
        struct kv_node *left = order == 0 ? find_stored(at->left, salt, tokens, n, but) : NULL;
        if (left)
            return left;
        at = order <= 0 ? at->right : at->left;
    }
    return NULL;
}

struct kv_node *kv_tree_twin(const struct kv_cache *c, const struct kv_node *n)
{
    struct kv_node *root = n->parent ? n->parent->children : c->roots;
    struct kv_node *twin = find_stored(root, n->salt, n->tokens, n->n, n);
    return twin ? twin : find_stored(root, kv_salt_public(n->salt), n->tokens, n->n, n);
}

/* In a search for tokens, a sibling with the longest common prefix is met on the way. Only of a
 * whole block in common there may be two, one of them still in production. */
struct kv_node *kv_tree_find(const struct kv_cache *c, const struct kv_node *parent, uint64_t salt,
                             const int32_t *tokens, int n, int *common)
{
    struct kv_node *root = parent ? parent->children : c->roots, *best = NULL;
    int64_t best_use = 0;
    *common = 0;
    for (struct kv_node *at = root; at;) {
        int alike, order = node_compare(at, salt, tokens, n, &alike);
        int64_t use = alike > 0 ? usefulness(c, at, alike) : 0;
        if (use > best_use) {
            best = at;
            best_use = use;
            *common = alike;
        }
        at = order < 0 ? at->right : at->left;
    }
    struct kv_node *stored = NULL;
    if (best && *common == KV_BLOCK_TOKENS && best->stored < KV_BLOCK_TOKENS)
        stored = find_stored(root, salt, tokens, n, best);
    return stored ? stored : best;
}

void kv_tree_adopt(struct kv_cache *c, struct kv_node *to, struct kv_node *from)
{
    while (from->children) {
        struct kv_node *child = from->children;
        treap_remove(&from->children, child);
        child->parent = to;
        treap_insert(siblings_of(c, child), child);
    }
}
