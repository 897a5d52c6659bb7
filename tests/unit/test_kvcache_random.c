#include "kvcache.h"
#include "mem.h"
#include "testlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Random calls, and after each of them: what every sequence reads from its blocks is what belongs
 * to its own tokens. A slot's content is a hash of the salt, all tokens up to it and the group, so
 * that any mix-up shows. */

#define SEQS       10
#define LONGEST    420
#define SLOT_BYTES 8

struct model {
    struct kv_seq *seq; /* NULL: slot not in use */
    uint64_t salt;      /* of its contents: changes when the sequence leaves the tree */
    uint64_t cache_salt;
    bool detached;
    int length, ready;
    int32_t tokens[LONGEST]; /* what it has */
    int32_t plan[LONGEST];   /* what it is going to ask for */
    int n_plan;
};

struct world {
    uint64_t random;
    struct kv_config config;
    struct kv_cache *cache;
    bool public; /* one of the three salts is: then contents are told by tokens only */
    bool named;  /* there is a public prefix: contents are told by tokens only as far as it goes */
    struct model m[SEQS];
    int step, busy, waits, hits, detached;
};

static int pick(struct world *w, int n)
{
    return (int)(test_random(&w->random) % (uint64_t)n);
}

static bool chance(struct world *w, int percent)
{
    return pick(w, 100) < percent;
}

static uint64_t mix(uint64_t x, uint64_t y)
{
    uint64_t state = x * 31 + y;
    return test_random(&state);
}

static void fail_at(const struct world *w, const char *what, int i, int a, int b)
{
    fail_msg("step %d, sequence %d: %s (%d, %d)", w->step, i, what, a, b);
}

/* ---- contents ---- */

static int first_needed(const struct world *w, int group, int n)
{
    int window = w->config.group[group].window;
    return window == 0 || n - window + 1 < 0 ? 0 : n - window + 1;
}

static void *slot_of(const struct world *w, const struct model *m, int group, int p)
{
    char *block = kv_seq_blocks(m->seq, group)[p / KV_BLOCK_TOKENS];
    size_t stride = mem_round_up(w->config.group[group].block_bytes, 64) / KV_BLOCK_TOKENS;
    return block ? block + (size_t)(p % KV_BLOCK_TOKENS) * stride : NULL;
}

/* What a public prefix says; tokens that begin otherwise belong to a salt from there on. */
#define NAMED       150
#define NAMED_TOKEN 7

static uint64_t first_hash(const struct world *w, const struct model *m)
{
    return w->named && !m->detached ? 0 : m->salt;
}

static bool is_named(const struct model *m, int p)
{
    for (int i = 0; i <= p; i++)
        if (i == NAMED || m->tokens[i] != NAMED_TOKEN)
            return false;
    return true;
}

static uint64_t next_hash(const struct world *w, const struct model *m, uint64_t h, int p)
{
    bool parts = w->named && !m->detached && p <= NAMED && !is_named(m, p) &&
                 (p == 0 || is_named(m, p - 1));
    return mix(parts ? mix(h, m->salt) : h, (uint32_t)m->tokens[p]);
}

/* Writes positions [from, to), or with check compares [from, to) where the group needs them. */
static void visit(struct world *w, int i, int from, int to, bool check)
{
    struct model *m = &w->m[i];
    uint64_t h = first_hash(w, m);
    for (int p = 0; p < to; p++) {
        h = next_hash(w, m, h, p);
        for (int g = 0; g < w->config.groups && p >= from; g++) {
            uint64_t value = mix(h, (uint64_t)g);
            if (check && p < first_needed(w, g, kv_seq_producer(m->seq) ? m->length : m->ready))
                continue;
            void *slot = slot_of(w, m, g, p);
            if (!slot)
                fail_at(w, "a needed block is missing", i, g, p);
            if (!check)
                memcpy(slot, &value, sizeof value);
            else if (memcmp(slot, &value, sizeof value) != 0)
                fail_at(w, "wrong content", i, g, p);
        }
    }
}

/* ---- what must hold after every call ---- */

static void check_stats(struct world *w)
{
    struct kv_stats s;
    kv_stats(w->cache, &s);
    assert_int_equal(s.bytes_free + s.bytes_used + s.bytes_cached, s.block_bytes_total);
    if (w->config.groups == 1)
        assert_int_equal(
            (s.blocks_free[0] + s.blocks_held[0] + s.blocks_shared[0] + s.blocks_cached[0]) *
                mem_round_up(w->config.group[0].block_bytes, 64),
            s.block_bytes_total);
}

static void check_world(struct world *w)
{
    kv_check(w->cache);
    check_stats(w);
    for (int i = 0; i < SEQS; i++) {
        struct model *m = &w->m[i];
        if (!m->seq)
            continue;
        int length = kv_seq_length(m->seq), ready = kv_seq_ready(m->seq);
        if (length > m->length || ready < kv_seq_length(m->seq) - (m->length - m->ready) ||
            ready < (m->ready < length ? m->ready : length))
            fail_at(w, "length or ready is wrong", i, length, ready);
        if (length < m->length && length < m->ready)
            fail_at(w, "stored positions were lost", i, length, m->ready);
        m->length = length;
        m->ready = ready;
        visit(w, i, 0, ready, true);
    }
}

/* ---- calls ---- */

static int random_slot(struct world *w, bool used)
{
    for (int tries = 0; tries < 50; tries++) {
        int i = pick(w, SEQS);
        if ((w->m[i].seq != NULL) == used)
            return i;
    }
    return -1;
}

/* A prefix of somebody's tokens or plan, then a few of its own from a tiny alphabet. */
static void make_plan(struct world *w, struct model *m)
{
    const struct model *like = &w->m[pick(w, SEQS)];
    const int32_t *from = chance(w, 50) ? like->plan : like->tokens;
    int have = from == like->plan ? like->n_plan : like->length;
    int n = have > 0 && chance(w, 80) ? pick(w, have + 1) : 0;
    if (n > 0 && chance(w, 30))
        n = have;
    memmove(m->plan, from, (size_t)n * sizeof *from);
    int end = n + 1 + pick(w, chance(w, 30) ? 150 : 20);
    while (n < end && n < LONGEST - 1)
        m->plan[n++] = chance(w, 90) ? 7 : pick(w, 3);
    m->n_plan = n;
}

static int common(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int i = 0;
    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return i;
}

/* With full groups only, what a running sequence has stored is always found. (With a public salt
 * there may be a second, shorter chain of the tenant's own.) */
static void check_match(struct world *w, int i, int limit)
{
    struct model *m = &w->m[i];
    for (int g = 0; g < w->config.groups; g++)
        if (w->config.group[g].window || !w->config.share || w->public || w->named)
            return;
    for (int j = 0; j < SEQS; j++) {
        const struct model *other = &w->m[j];
        if (j == i || !other->seq || other->detached || other->cache_salt != m->cache_salt)
            continue;
        int best = common(m->plan, limit, other->tokens, other->ready);
        if (best >= KV_BLOCK_TOKENS && m->length < best)
            fail_at(w, "less reused than is there", i, m->length, best);
    }
}

static void do_open(struct world *w)
{
    int i = random_slot(w, false);
    if (i < 0)
        return;
    struct model *m = &w->m[i];
    struct kv_match match;
    make_plan(w, m);
    m->salt = (uint64_t)pick(w, 3);
    m->cache_salt = w->public && m->salt == 2 ? KV_SALT_PUBLIC : m->salt;
    m->salt = w->public ? 0 : m->salt;
    m->detached = false;
    int limit = chance(w, 80) ? m->n_plan - 1 : pick(w, m->n_plan);
    assert_int_equal(
        kv_seq_open(w->cache, m->cache_salt, m->plan, m->n_plan, limit, &m->seq, &match, NULL), 0);
    m->length = kv_seq_length(m->seq);
    m->ready = kv_seq_ready(m->seq);
    assert_int_equal(m->length, match.tokens);
    assert_true(m->length <= limit && match.miss >= 0 && match.miss < KV_MISS_COUNT);
    assert_true(w->config.share || m->length == 0);
    memcpy(m->tokens, m->plan, (size_t)m->length * sizeof *m->plan);
    w->hits += m->length;
    check_match(w, i, limit);
}

static bool is_waiting(struct world *w, struct model *m)
{
    struct kv_seq *producer = kv_seq_producer(m->seq);
    if (producer == NULL)
        return false;
    bool known = false;
    for (int i = 0; i < SEQS; i++)
        known |= w->m[i].seq == producer && &w->m[i] != m;
    assert_true(known);
    w->waits++;
    return true;
}

static void do_rematch(struct model *m)
{
    if (m->detached || common(m->tokens, m->length, m->plan, m->n_plan) < m->length)
        return;
    int limit = m->n_plan - 1, before = m->length;
    int after = kv_seq_rematch(m->seq, m->plan, m->n_plan, limit);
    assert_true(after == before || (after > before && after <= limit && m->ready == before));
    assert_int_equal(after, kv_seq_length(m->seq));
    memcpy(m->tokens, m->plan, (size_t)after * sizeof *m->plan);
    m->length = after;
    m->ready = kv_seq_ready(m->seq);
}

static int count_open(const struct world *w)
{
    int n = 0;
    for (int i = 0; i < SEQS; i++)
        n += w->m[i].seq != NULL;
    return n;
}

static void do_extend(struct world *w, struct model *m)
{
    if (chance(w, 60))
        do_rematch(m);
    if (m->ready < m->length && is_waiting(w, m))
        return;
    int n = 1 + pick(w, chance(w, 50) ? 3 : 70);
    if (m->length + n >= LONGEST)
        return;
    bool planned = chance(w, 95);
    for (int k = m->length; k < m->length + n; k++)
        m->tokens[k] = planned && k < m->n_plan ? m->plan[k] : pick(w, 2) ? 7 : pick(w, 3);
    int code = kv_seq_extend(m->seq, m->tokens + m->length, n);
    if (code) {
        assert_int_equal(code, ERR_BUSY);
        assert_int_equal(kv_seq_length(m->seq), m->length);
        w->busy++;
        if (count_open(w) == 1 && m->ready == m->length && n <= KV_BLOCK_TOKENS)
            assert_false(kv_fits(w->cache, m->length + n));
        return;
    }
    m->length += n;
    assert_int_equal(kv_seq_length(m->seq), m->length);
}

static void do_commit(struct world *w, int i)
{
    struct model *m = &w->m[i];
    if (m->ready == m->length || is_waiting(w, m))
        return;
    int n = chance(w, 80) ? m->length : m->ready + 1 + pick(w, m->length - m->ready);
    visit(w, i, m->ready, n, false);
    kv_seq_commit(m->seq, n);
    m->ready = n;
    assert_int_equal(kv_seq_ready(m->seq), n);
}

static void do_truncate(struct world *w, struct model *m)
{
    int n = chance(w, 70) && m->length > 4 ? m->length - pick(w, 4) : pick(w, m->length + 1);
    bool windows = false;
    for (int g = 0; g < w->config.groups; g++)
        windows |= w->config.group[g].window > 0;
    kv_seq_truncate(m->seq, n);
    int length = kv_seq_length(m->seq);
    assert_true(length == n || (length < n && windows));
    m->length = length;
    m->ready = m->ready < length ? m->ready : length;
}

static void do_fork(struct world *w, int i)
{
    struct model *m = &w->m[i], *f;
    int k = random_slot(w, false);
    if (k < 0 || m->ready < m->length || m->detached)
        return;
    f = &w->m[k];
    *f = *m;
    assert_int_equal(kv_seq_fork(m->seq, &f->seq, NULL), 0);
    assert_int_equal(kv_seq_length(f->seq), m->length);
}

/* A detached sequence owns its blocks: it can overwrite them, and nobody else notices. */
static void do_detach(struct world *w, int i)
{
    struct model *m = &w->m[i];
    int before = m->length;
    bool waits = m->ready < m->length && kv_seq_producer(m->seq);
    if (kv_seq_detach(m->seq)) {
        w->busy++;
        return;
    }
    m->length = kv_seq_length(m->seq);
    assert_int_equal(m->length, waits ? m->ready : before);
    m->detached = true;
    m->salt = test_random(&w->random);
    w->detached++;
    int from = 0;
    for (int g = 0; g < w->config.groups; g++) {
        int first = first_needed(w, g, m->ready);
        from = first > from ? first : from;
    }
    uint64_t h = m->salt;
    for (int p = 0; p < m->ready; p++) {
        h = mix(h, (uint32_t)m->tokens[p]);
        for (int g = 0; g < w->config.groups; g++) {
            uint64_t value = mix(h, (uint64_t)g);
            void *slot = slot_of(w, m, g, p);
            if (slot)
                memcpy(slot, &value, sizeof value);
        }
    }
}

static void count_prefix(void *arg, const struct kv_prefix *prefix)
{
    uint64_t *last = arg;
    assert_true(prefix->hits > 0 && prefix->hits <= *last && prefix->n > 0);
    assert_true(prefix->tokens[prefix->n - 1] >= 0 && prefix->tokens[prefix->n - 1] <= 7);
    *last = prefix->hits;
}

static void do_close(struct model *m)
{
    kv_seq_close(m->seq);
    m->seq = NULL;
}

static void one_step(struct world *w)
{
    int i = random_slot(w, true), what = pick(w, 100);
    if (i < 0 || what < 12) {
        do_open(w);
    } else if (what < 52) {
        do_extend(w, &w->m[i]);
    } else if (what < 80) {
        do_commit(w, i);
    } else if (what < 85) {
        do_truncate(w, &w->m[i]);
    } else if (what < 89) {
        do_fork(w, i);
    } else if (what < 92) {
        kv_seq_mark(w->m[i].seq);
    } else if (what < 93) {
        do_detach(w, i);
    } else if (what < 99) {
        do_close(&w->m[i]);
    } else {
        uint64_t last = UINT64_MAX;
        kv_visit_prefixes(w->cache, 1 + pick(w, 8), count_prefix, &last);
    }
}

static void close_all(struct world *w)
{
    for (int i = 0; i < SEQS; i++)
        if (w->m[i].seq)
            do_close(&w->m[i]);
    kv_check(w->cache);
    struct kv_stats s;
    kv_stats(w->cache, &s);
    assert_int_equal(s.bytes_used, 0);
}

static void run(uint64_t seed, const struct kv_config *config, bool public, bool named, int steps)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->random = seed;
    w->config = *config;
    w->public = public;
    w->named = named;
    struct err err;
    if (kv_create(config, &w->cache, &err))
        fail_msg("%s", err.text);
    int32_t prefix[NAMED];
    for (int i = 0; i < NAMED; i++)
        prefix[i] = NAMED_TOKEN;
    if (named && kv_public(w->cache, prefix, NAMED, &err))
        fail_msg("%s", err.text);
    for (w->step = 0; w->step < steps; w->step++) {
        one_step(w);
        check_world(w);
    }
    struct kv_stats s;
    kv_stats(w->cache, &s);
    printf("  hits %d, waits %d, busy %d, detached %d, evicted %llu, copied %llu\n", w->hits,
           w->waits, w->busy, w->detached, (unsigned long long)s.evicted_blocks,
           (unsigned long long)s.copied_blocks);
    close_all(w);
    kv_destroy(w->cache);
    free(w);
}

/* Each with an arena for about so many positions in all. */
static const struct {
    int groups;
    struct kv_group_config group[3];
    int positions;
    bool share, public, named; /* public: one of the three salts is */
} cases[] = {
    {1, {{"full", 0, 256}}, 100000, true, false, false},
    {1, {{"full", 0, 256}}, 900, true, false, false},
    {1, {{"full", 0, 256}}, 900, false, false, false},
    {1, {{"full", 0, 256}}, 900, true, true, false},
    {2, {{"full", 0, 256}, {"window", 40, 1280}}, 1200, true, true, false},
    {1, {{"full", 0, 256}}, 900, true, false, true},
    {2, {{"full", 0, 256}, {"window", 40, 1280}}, 1200, true, false, true},
    {1, {{"window", 40, 320}}, 900, true, false, false},
    {1, {{"window", 1, 256}}, 700, true, false, false},
    {2, {{"full", 0, 256}, {"window", 40, 1280}}, 900, true, false, false},
    {2, {{"full", 0, 256}, {"window", 40, 1280}}, 100000, true, false, false},
    {2, {{"full", 0, 1024}, {"window", 33, 256}}, 700, true, false, false},
    {2, {{"window", 96, 448}, {"window", 20, 704}}, 600, true, false, false},
    {2, {{"full", 0, 512}, {"window", 64, 320}}, 700, false, false, false},
    {3, {{"full", 0, 320}, {"window", 100, 768}, {"window", 32, 1088}}, 700, true, false, false},
    {3, {{"window", 64, 256}, {"full", 0, 2048}, {"full", 0, 256}}, 1000, true, false, false},
};

static void contents_follow_tokens_whatever_is_called(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    const char *given = getenv("TEST_STEPS");
    int steps = given ? atoi(given) : 4000;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_config config = {.groups = cases[i].groups, .share = cases[i].share};
        for (int g = 0; g < config.groups; g++) {
            config.group[g] = cases[i].group[g];
            config.arena_bytes += config.group[g].block_bytes * (size_t)cases[i].positions /
                                  KV_BLOCK_TOKENS;
        }
        printf("case %zu\n", i);
        run(seed + i, &config, cases[i].public, cases[i].named, steps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_follow_tokens_whatever_is_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
