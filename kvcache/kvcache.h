#ifndef KVCACHE_KVCACHE_H
#define KVCACHE_KVCACHE_H

#include "buckets.h"
#include "err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The KV cache: which tokens' keys and values are held, and who uses them.
 *
 * Keys and values live in blocks of KV_BLOCK_TOKENS positions. A layer group is a set of layers
 * that need the same past; each sequence has one list of blocks per group. All blocks come from one
 * arena and are reference-counted. A prefix tree maps token chains (salted per tenant) to blocks,
 * at token granularity, and running sequences take part in it: what one produces another may use at
 * once.
 *
 * The cache knows bytes per block, never what a key means. One thread (the engine's) makes all
 * calls. */

#define KV_BLOCK_TOKENS 32
#define KV_MAX_GROUPS   4

struct kv_group_config {
    const char *name; /* "full", "window", ...; for people */
    int window; /* positions [p - window + 1, p] are needed to compute position p; 0: all before p
                 */
    size_t block_bytes; /* of all layers of the group together, for KV_BLOCK_TOKENS positions */
};

struct kv_config {
    int groups;
    struct kv_group_config group[KV_MAX_GROUPS];
    size_t arena_bytes; /* for blocks; bookkeeping comes on top, see kv_overhead_bytes */
    bool share;         /* false: no prefix is ever reused */
};

/* Salts keep tenants apart. The top bit is not theirs: it parts sequences whose keys and values
 * differ though their tokens are the same (a model's second variant of positions). What is computed
 * under KV_SALT_PUBLIC may be reused under every salt of the same variant, for prefixes that an
 * operator has named. */
#define KV_SALT_VARIANT ((uint64_t)1 << 63)
#define KV_SALT_PUBLIC  (KV_SALT_VARIANT - 1)

static inline uint64_t kv_salt(uint64_t tenant, int variant)
{
    return (tenant & ~KV_SALT_VARIANT) | (variant ? KV_SALT_VARIANT : 0);
}

struct kv_cache;
struct kv_seq;

/* Bookkeeping bytes that a cache of this configuration takes besides arena_bytes, at most; 0 when
 * kv_create would refuse the configuration. On top come 4 bytes a token of each running prompt and
 * 8 (1 + groups) bytes per 32 positions of each running sequence; and where no group is full, a
 * node (some 300 bytes) per 32 positions that a running sequence's windows have left behind. */
size_t kv_overhead_bytes(const struct kv_config *config);

/* The arena is reserved at once and touched page by page as blocks are first used. Block sizes are
 * rounded up to 64 bytes; blocks are 64-aligned. ERR_ARG, ERR_LIMIT, ERR_NOMEM. */
int kv_create(const struct kv_config *config, struct kv_cache **out, struct err *err);
void kv_destroy(struct kv_cache *c); /* accepts NULL; every sequence must be closed */

/* Names a prefix public: as much of it as any sequence computes is kept under the public salt, so
 * that every tenant finds it, and of several that want it at once one computes. (Where it ends
 * within a block, that block is copied; not when there is no room.) The cache copies the tokens.
 * ERR_NOMEM. */
int kv_public(struct kv_cache *c, const int32_t *tokens, int n, struct err *err);

/* Why a prefix was not reused further than it was. */
enum kv_miss {
    KV_MISS_NONE,    /* all that could be reused was */
    KV_MISS_NEVER,   /* these tokens have never been seen */
    KV_MISS_EVICTED, /* they were held once (at least 16 more, and not too long ago) */
    KV_MISS_SALT,    /* they are held, for another salt */
    KV_MISS_WINDOW,  /* more tokens are in the tree, a window group has let go */
    KV_MISS_SHORT,   /* fewer than are worth waiting for, or sharing is off */
    KV_MISS_COUNT
};

/* "never_seen" ... a word for metrics and answers. */
const char *kv_miss_name(enum kv_miss miss);

struct kv_match {
    int tokens; /* leading positions that need not be computed (some may still be in production) */
    enum kv_miss miss;
};

/* A new sequence with the prompt tokens[0, n): finds the longest reusable prefix of at most `limit`
 * tokens (limit < n, so that the last prompt token is always computed), and attaches its blocks.
 * The cache copies the tokens. Then kv_seq_length == match->tokens. ERR_NOMEM on failure. */
int kv_seq_open(struct kv_cache *c, uint64_t salt, const int32_t *tokens, int n, int limit,
                struct kv_seq **out, struct kv_match *match, struct err *err);

/* Positions the sequence has (attached or extended). */
int kv_seq_length(const struct kv_seq *s);

/* Leading positions whose keys and values are stored, <= kv_seq_length. Less than the length while
 * another sequence is still producing what this one attached; when that producer closes or is cut,
 * the length drops to what is stored, and this sequence computes the rest itself. */
int kv_seq_ready(const struct kv_seq *s);

/* The sequence that produces position kv_seq_ready(s) of s, or NULL when s itself does. A waiter
 * lends it its priority.
 *
 * Also when ready == length: an older sequence that stands at the very same place and whose prompt
 * goes on alike is going to produce what s needs next. So, before a prompt is extended: call
 * kv_seq_rematch, and when there is a producer then, leave s out of this step. Of several that want
 * the same, the oldest has no producer: somebody always goes on. */
struct kv_seq *kv_seq_producer(const struct kv_seq *s);

/* Prompt of a running sequence: after waiting, the tree may hold more of its prompt than at open.
 * Attaches as kv_seq_open does, up to `limit`, when kv_seq_ready == kv_seq_length; returns the new
 * length. */
int kv_seq_rematch(struct kv_seq *s, const int32_t *tokens, int n, int limit);

/* Makes positions [length, length + n) writable and appends the tokens. A block in which another
 * has use for the slots that follow is copied first (who merely reads earlier slots of it is not
 * disturbed). Evicts unused blocks when needed. Returns 0, or with nothing changed ERR_BUSY when
 * the arena has no room (then try fewer tokens, or preempt somebody: whom kv_fits, 32 tokens at a
 * time always fit alone), decided before anything is evicted, or ERR_NOMEM when the lists cannot
 * grow. Only when ready == length, or when the positions after ready are this sequence's own.
 *
 * A new block's bytes are zero or what was stored in a block of the same group: never those of
 * another group's layout. */
int kv_seq_extend(struct kv_seq *s, const int32_t *tokens, int n);

/* Keys and values of all positions before n are stored: others may use them, and blocks that have
 * left every window are released to the tree. A block that is now full and whose very tokens the
 * tree has twice (equal answers, a recomputed window) is replaced by its twin. n <= length. */
void kv_seq_commit(struct kv_seq *s, int n);

/* Drops positions >= n. Where a window group no longer holds what position n needs, the length
 * falls further, to where the sequence can resume: ask kv_seq_length. Positions that were never
 * committed (a rejected draft) can always be dropped to the letter. */
void kv_seq_truncate(struct kv_seq *s, int n);

/* A second sequence with the same past (all of it must be ready); later writes copy. ERR_NOMEM;
 * ERR_UNSUPPORTED for a detached sequence. */
int kv_seq_fork(struct kv_seq *s, struct kv_seq **out, struct err *err);

/* The present committed length is a likely place to resume (end of prompt, end of answer): a whole
 * window is kept here longest. */
void kv_seq_mark(struct kv_seq *s);

/* The sequence leaves the tree (its positions no longer follow from its tokens, as after a context
 * shift): from now on it neither gives nor takes shared blocks. What it waited for is cut off.
 * ERR_BUSY when private copies find no room. */
int kv_seq_detach(struct kv_seq *s);

void kv_seq_close(
    struct kv_seq *s); /* accepts NULL; its blocks stay in the tree while memory allows */

/* The blocks of a group: entry i holds positions [32 i, 32 i + 32); NULL where released. Valid
 * until the next kv_seq_ call that changes any sequence: making room may move blocks. */
void *const *kv_seq_blocks(const struct kv_seq *s, int group);

/* Can a sequence grow to n positions if it were alone in the cache? Windows count what they hold
 * when it grows and commits by at most KV_BLOCK_TOKENS at a time; longer pieces need more. */
bool kv_fits(const struct kv_cache *c, int n);

/* How long blocks live, in seconds by the clock of kv_tick. */
struct kv_ages {
    struct buckets lifetime; /* of those evicted: since they were taken */
    struct buckets idle;     /* of those evicted: since a sequence last used them */
    struct buckets reuse;    /* of those that came to be used again: how long nobody did */
};
extern const double kv_age_bounds[];

struct kv_stats {
    size_t block_bytes_total;            /* the arena, as far as blocks can use it */
    size_t blocks_free[KV_MAX_GROUPS];   /* could be had at once for the group (unused arena) */
    size_t blocks_held[KV_MAX_GROUPS];   /* used by exactly one running sequence */
    size_t blocks_shared[KV_MAX_GROUPS]; /* used by two or more */
    size_t blocks_cached[KV_MAX_GROUPS]; /* in the tree only: evictable */
    size_t bytes_free, bytes_used, bytes_cached; /* free + used + cached = total */
    uint64_t queried_tokens, hit_tokens;         /* of prompts; attached */
    uint64_t evicted_blocks, copied_blocks;
    uint64_t misses[KV_MISS_COUNT];
    struct kv_ages ages;
};
void kv_stats(const struct kv_cache *c, struct kv_stats *out);

/* What time it is, for kv_ages: once a step is often enough. */
void kv_tick(struct kv_cache *c, double seconds);

/* The hottest prefixes, most used first; for the debug page. tokens are valid during the call. */
struct kv_prefix {
    const int32_t *tokens;
    int n; /* whole blocks; less than one only when no more was ever shared */
    uint64_t hits;
    int users; /* running sequences */
};
void kv_visit_prefixes(const struct kv_cache *c, int most,
                       void (*visit)(void *arg, const struct kv_prefix *prefix), void *arg);

/* Aborts when a count or link is wrong; for tests. */
void kv_check(const struct kv_cache *c);

#endif
