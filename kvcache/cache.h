#ifndef KVCACHE_CACHE_H
#define KVCACHE_CACHE_H

#include "arena.h"
#include "kvcache.h"

/* What the files of this folder share.
 *
 * A node is up to 32 positions of one chain of tokens: those of one block in each group. Only full
 * nodes have children, so depth d holds positions [32 d, 32 d + 32). Siblings are kept in the order
 * of their tokens (a treap); chains that part within a block are siblings with equal first tokens,
 * each with its own copy of the shared slots. The order goes by salt first: that is all the
 * separation of tenants takes. A node under another salt than its parent's follows a public prefix.
 *
 * A running sequence is a path of nodes from depth 0. It holds a reference on every block that it
 * still needs; a node without users and a block without references may be evicted. A node outside
 * the tree (sharing off, or detached) lives as long as its users. */

struct kv_node {
    struct kv_node *parent;       /* NULL at depth 0 */
    struct kv_node *children;     /* root of their treap */
    struct kv_node *left, *right; /* in the treap of siblings */
    struct kv_node *same_hash;    /* in the index of chains */
    struct kv_seq *writer;        /* who is to store the rest, as long as n > stored */
    uint64_t salt;
    uint64_t chain;       /* hash of the tokens before this node, without salt */
    int64_t key;          /* in the heap: the lowest is evicted first */
    int64_t used;         /* when last, by the cache's clock */
    double born, touched; /* seconds, by kv_tick: made; last gained or lost a user */
    uint32_t id;          /* settles ties of the order; its hash is the treap's priority */
    uint32_t hits;        /* prefixes that were resumed in this node */
    int32_t depth;
    int32_t users;   /* running sequences */
    int32_t heap_at; /* -1: not evictable */
    uint32_t block[KV_MAX_GROUPS];
    int32_t refs[KV_MAX_GROUPS]; /* running sequences that hold the block */
    uint8_t n, stored;           /* tokens, and how many of them have keys and values */
    uint8_t hit_tokens;          /* most tokens of this node that a hit has used */
    uint8_t kept;                /* bit g: the group's block belongs to a marked window */
    bool in_tree;
    int32_t tokens[KV_BLOCK_TOKENS];
};

struct kv_seq {
    struct kv_cache *cache;
    struct kv_seq *next, *prev; /* of the running ones */
    uint64_t serial;            /* the older produces, the younger waits */
    uint64_t salt;
    bool in_tree, detached;
    int length, ready;
    int n_path;
    struct kv_node **path;        /* [n_path] */
    void **blocks[KV_MAX_GROUPS]; /* [n_path] */
    int first[KV_MAX_GROUPS];     /* blocks from here on are held, earlier entries are NULL */
    int cap;                      /* of path and blocks */
    int32_t *prompt;              /* what it is going to produce */
    int n_prompt;
    int n_public; /* leading tokens of these that a public prefix has */
    bool told;    /* those of them that do not fill a block are public, or cannot be */
    int limit;    /* what it would take of the prompt from others */
    int counted;  /* tokens that have been counted as hits */
};

struct kv_public_prefix {
    struct kv_public_prefix *next;
    int n;
    int32_t tokens[];
};

struct kv_counts { /* blocks by state */
    size_t held, shared, cached;
};

struct kv_cache {
    struct kv_config config;
    struct kv_arena arena;
    struct kv_counts counts[KV_MAX_GROUPS];
    struct kv_seq *running;
    uint64_t last_serial;
    struct kv_public_prefix *publics;

    struct kv_node *roots;
    struct kv_node_chunk *chunks; /* pool of nodes */
    struct kv_node *free_nodes;   /* linked by parent */
    size_t pool_nodes, free_count;
    size_t bare_cached; /* nodes without block and user, kept for their descendants */
    size_t most_nodes;  /* that can hold a block */
    uint32_t last_id;
    struct kv_node **index; /* by chain and first token; [index_mask + 1] */
    size_t index_mask;

    struct kv_node **heap;
    size_t heap_n, heap_cap;
    int64_t clock; /* nodes made so far, the measure of age */

    uint32_t *ghosts; /* hashes of chains that were evicted */
    size_t ghost_mask;

    uint64_t queried_tokens, hit_tokens, evicted_blocks, copied_blocks;
    uint64_t misses[KV_MISS_COUNT];
    double now; /* of kv_tick */
    struct kv_ages ages;
};

/* Nodes are made so many at a time. */
#define KV_NODE_CHUNK 256

/* Waiting a step for another to produce fewer tokens than this from position 0 is not worth it. */
#define KV_WORTH_WAITING 8

static inline int kv_blocks_for(int tokens)
{
    return tokens / KV_BLOCK_TOKENS + (tokens % KV_BLOCK_TOKENS != 0);
}

/* First position that computing position n (and later ones) needs in a group. */
static inline int kv_first_needed(const struct kv_cache *c, int group, int n)
{
    int window = c->config.group[group].window;
    return window == 0 || window > n ? 0 : n - window + 1;
}

static inline int kv_min(int a, int b)
{
    return a < b ? a : b;
}

static inline int kv_max(int a, int b)
{
    return a > b ? a : b;
}

/* ---- node.c: the pool of nodes and the blocks they hold ---- */

/* Makes sure that the next `n` kv_node_create need no memory. False when it cannot be had. */
bool kv_node_reserve(struct kv_cache *c, size_t n);
/* A node without users, outside the tree, with a block in every group: room has been made sure of
 * (kv_room), so it evicts what it must and does not fail. */
struct kv_node *kv_node_create(struct kv_cache *c, uint64_t salt, int depth);
/* Gives back its blocks (without references) and the node, which nothing may refer to. */
void kv_node_destroy(struct kv_cache *c, struct kv_node *n);
void kv_node_drop_block(struct kv_cache *c, struct kv_node *n, int group);
void kv_node_pools_finish(struct kv_cache *c);
/* Adds to a block's references and keeps the counts by state. */
void kv_node_ref(struct kv_cache *c, struct kv_node *n, int group, int by);
bool kv_node_has_block(const struct kv_cache *c, const struct kv_node *n);
/* Visits every node that is in use. */
void kv_node_visit(const struct kv_cache *c, void (*visit)(void *arg, const struct kv_node *n),
                   void *arg);

/* ---- tree.c: siblings in order, the index of chains ---- */

/* The public salt of the same variant. */
static inline uint64_t kv_salt_public(uint64_t salt)
{
    return salt | KV_SALT_PUBLIC;
}

/* The order of siblings: by salt, tokens, age. */
bool kv_tree_before(const struct kv_node *a, const struct kv_node *b);

/* Puts a node that has tokens among the children of its parent. */
void kv_tree_insert(struct kv_cache *c, struct kv_node *n);
void kv_tree_remove(struct kv_cache *c, struct kv_node *n);
/* Changes the tokens of a node: cuts it to `keep` and appends. */
void kv_tree_retoken(struct kv_cache *c, struct kv_node *n, int keep, const int32_t *tokens,
                     int count);
/* The child under the salt (parent NULL: of depth 0) with the most leading tokens in common with
 * tokens[0, n), n <= 32; of equals, one that holds more. *common is 0 and NULL returned when no
 * child begins alike. */
struct kv_node *kv_tree_find(const struct kv_cache *c, const struct kv_node *parent, uint64_t salt,
                             const int32_t *tokens, int n, int *common);
/* Another sibling with the very same tokens, all stored, under its salt or the public one, or NULL.
 * Siblings under the public salt exist only where all before is public. */
struct kv_node *kv_tree_twin(const struct kv_cache *c, const struct kv_node *n);
/* Moves all children of one node to another of equal depth. */
void kv_tree_adopt(struct kv_cache *c, struct kv_node *to, struct kv_node *from);
uint64_t kv_chain_hash(uint64_t chain, const int32_t *tokens, int n);
int kv_common(const int32_t *a, int n_a, const int32_t *b, int n_b);
/* Most tokens in common with tokens[0, n) of a node after `chain` under another salt of the same
 * variant. */
int kv_tree_find_elsewhere(const struct kv_cache *c, uint64_t salt, uint64_t chain,
                           const int32_t *tokens, int n);

/* ---- evict.c: which block goes first ---- */

/* To be called when users, references, blocks, children or marks of a node have changed: enters it
 * in the heap, moves it, or takes it out. */
void kv_evict_update(struct kv_cache *c, struct kv_node *n);
/* Is there something of this node that can be evicted now? */
bool kv_evict_can(const struct kv_cache *c, const struct kv_node *n);
/* Does a go before b? */
bool kv_evict_before(const struct kv_node *a, const struct kv_node *b);
/* Evicts what is worth least; false when nothing is evictable. */
bool kv_evict_one(struct kv_cache *c);
/* Removes the children of a node but one (or NULL), with all that follows them; nobody uses them.
 */
void kv_evict_children(struct kv_cache *c, struct kv_node *n, const struct kv_node *but);
/* Removes a node that has neither users nor children from the tree, and ancestors that were only
 * kept for it. */
void kv_evict_leaf(struct kv_cache *c, struct kv_node *n);
/* Can the blocks of so many more nodes be had, if need be by eviction? */
bool kv_room(const struct kv_cache *c, int more_nodes);
/* Was a chain of at least `from` and at most n of these tokens evicted? */
bool kv_ghost_seen(const struct kv_cache *c, uint64_t salt, uint64_t chain, const int32_t *tokens,
                   int from, int n);

/* ---- match.c: what can be resumed ---- */

/* The largest p <= tokens at which every group still holds what a sequence of that path needs to
 * compute position p: the one place that decides it. path covers `tokens`. */
int kv_resume_point(const struct kv_cache *c, struct kv_node *const *path, int tokens);
/* Attaches the longest prefix of tokens[0, limit) if it is longer than what s has. Returns how many
 * tokens the tree knows, whatever it still holds of them. */
int kv_match(struct kv_seq *s, const int32_t *tokens, int limit);
/* Why position kv_seq_length of s was not reused; matched: tokens found in the tree, whatever is
 * held of them. */
enum kv_miss kv_miss_reason(const struct kv_seq *s, const int32_t *tokens, int n, int limit,
                            int matched);

/* ---- path.c: a sequence's nodes and references ---- */

bool kv_path_reserve(struct kv_seq *s, int blocks);
/* Appends n; s holds its blocks in the groups that need them to compute position `length`. */
void kv_path_push(struct kv_seq *s, struct kv_node *n, int length);
/* Lets go of the last node. */
void kv_path_pop(struct kv_seq *s);
/* Puts a copy of the first `tokens` of node i in its place: a node outside the tree that s alone
 * uses. Room has been made sure of. */
void kv_path_copy(struct kv_seq *s, int i, int tokens);
/* Blocks that computing position n and later ones does not need are released to the tree. */
void kv_path_release(struct kv_seq *s, int n);
/* The window before position n is a likely one to resume with. */
void kv_path_mark(struct kv_seq *s, int n);
/* Others that wait for positions from `from` on, which s was to store, wait no more. */
void kv_path_cut_waiters(struct kv_seq *s, int from);
/* Brings the length down to n, or further to where s can resume. */
void kv_path_cut(struct kv_seq *s, int n);
/* Brings `ready` up to what is stored. */
void kv_path_advance(struct kv_seq *s);
/* A block has been moved (kv_arena_moved). */
void kv_path_moved(void *cache, struct kv_node *owner, int group, uint32_t block);
/* Makes `to`, which has the same tokens, take the place of `from` in the tree and in all paths. */
void kv_path_merge(struct kv_cache *c, struct kv_node *to, struct kv_node *from);

#endif
