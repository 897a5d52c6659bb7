#include "kvcache.h"
#include "mem.h"
#include "testlib.h"

#include <stdlib.h>
#include <string.h>

/* What the cache promises, one behaviour a test. Tokens are counted up from a start, so that a
 * prompt is told by where it begins and how long it is. */

#define BLOCK 256
#define MOST  4096

struct fixture {
    struct kv_cache *cache;
    int32_t tokens[MOST];
};

static struct kv_config one_group(int window, int blocks)
{
    return (struct kv_config){.groups = 1,
                              .group = {{window ? "window" : "full", window, BLOCK}},
                              .arena_bytes = (size_t)blocks * BLOCK,
                              .share = true};
}

static struct kv_config full_and_window(int window, int blocks)
{
    return (struct kv_config){.groups = 2,
                              .group = {{"full", 0, BLOCK}, {"window", window, 5 * BLOCK}},
                              .arena_bytes = (size_t)blocks * 6 * BLOCK,
                              .share = true};
}

static struct kv_cache *create(struct kv_config config)
{
    struct kv_cache *c = NULL;
    struct err err;
    if (kv_create(&config, &c, &err))
        fail_msg("%s", err.text);
    return c;
}

/* n tokens: `shared` of a text that all share, then of one that begins at `own`. */
static const int32_t *text(int shared, int own, int n)
{
    static int32_t tokens[MOST];
    for (int i = 0; i < n; i++)
        tokens[i] = i < shared ? i : own + i;
    return tokens;
}

static struct kv_seq *open_seq(struct kv_cache *c, uint64_t salt, const int32_t *tokens, int n,
                               struct kv_match *match)
{
    struct kv_seq *s = NULL;
    struct kv_match m;
    struct err err;
    if (kv_seq_open(c, salt, tokens, n, n - 1, &s, match ? match : &m, &err))
        fail_msg("%s", err.text);
    return s;
}

static void extend(struct kv_seq *s, const int32_t *tokens, int to)
{
    int from = kv_seq_length(s);
    assert_int_equal(kv_seq_extend(s, tokens + from, to - from), 0);
}

/* Computes what is missing of the prompt, in pieces of at most 32. */
static void finish(struct kv_seq *s, const int32_t *tokens, int n)
{
    while (kv_seq_length(s) < n) {
        int to = kv_seq_length(s) + 32;
        extend(s, tokens, to < n ? to : n);
        kv_seq_commit(s, kv_seq_length(s));
    }
}

static struct kv_seq *run(struct kv_cache *c, uint64_t salt, const int32_t *tokens, int n)
{
    struct kv_seq *s = open_seq(c, salt, tokens, n, NULL);
    finish(s, tokens, n);
    return s;
}

static struct kv_match look(struct kv_cache *c, uint64_t salt, const int32_t *tokens, int n)
{
    struct kv_match match;
    kv_seq_close(open_seq(c, salt, tokens, n, &match));
    return match;
}

static struct kv_stats stats(const struct kv_cache *c)
{
    struct kv_stats s;
    kv_check(c);
    kv_stats(c, &s);
    assert_int_equal(s.bytes_free + s.bytes_used + s.bytes_cached, s.block_bytes_total);
    return s;
}

/* ---- alone ---- */

static void create_says_what_is_wrong(void **state)
{
    (void)state;
    struct kv_cache *c;
    struct err err;
    struct kv_config config = one_group(0, 1);
    config.arena_bytes = BLOCK - 1;
    assert_int_equal(kv_create(&config, &c, &err), ERR_ARG);
    assert_non_null(strstr(err.text, "not enough"));
    config = one_group(0, 1);
    config.groups = KV_MAX_GROUPS + 1;
    assert_int_equal(kv_create(&config, &c, &err), ERR_ARG);
    config = one_group(0, 1);
    config.group[0].window = -1;
    assert_int_equal(kv_create(&config, &c, &err), ERR_ARG);
    kv_destroy(NULL);
    kv_seq_close(NULL);
}

static void blocks_are_aligned_and_distinct(void **state)
{
    (void)state;
    struct kv_config config = full_and_window(64, 8);
    config.group[0].block_bytes = 100; /* not a multiple of a line */
    struct kv_cache *c = create(config);
    struct kv_seq *s = run(c, 0, text(100, 0, 100), 100);
    for (int g = 0; g < 2; g++)
        for (int i = g; i < 4; i++) {
            assert_int_equal((uintptr_t)kv_seq_blocks(s, g)[i] % MEM_LINE, 0);
            for (int j = g; j < i; j++)
                assert_ptr_not_equal(kv_seq_blocks(s, g)[i], kv_seq_blocks(s, g)[j]);
        }
    kv_seq_close(s);
    kv_destroy(c);
}

static void extend_without_room_changes_nothing(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 4));
    const int32_t *t = text(200, 0, 200);
    struct kv_seq *s = run(c, 0, t, 100);
    assert_int_equal(kv_seq_extend(s, t + 100, 29), ERR_BUSY);
    assert_int_equal(kv_seq_length(s), 100);
    assert_int_equal(kv_seq_extend(s, t + 100, 28), 0);
    kv_seq_commit(s, 128);
    assert_int_equal(stats(c).blocks_held[0], 4);
    kv_seq_close(s);
    assert_int_equal(stats(c).blocks_cached[0], 4);
    kv_destroy(c);
}

static void fits_is_what_a_lone_sequence_can_reach(void **state)
{
    (void)state;
    struct kv_config configs[] = {one_group(0, 7), one_group(40, 5), full_and_window(40, 9)};
    for (int k = 0; k < 3; k++) {
        struct kv_cache *c = create(configs[k]);
        int n = 0;
        while (n + 1 < MOST && kv_fits(c, n + 1))
            n++;
        assert_true(n >= 7 * 32 || k != 0);
        struct kv_seq *s = run(c, 0, text(MOST, 0, n), n); /* fails when there is no room */
        kv_seq_close(s);
        kv_destroy(c);
    }
}

static void window_group_holds_no_more_than_its_window(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(40, 64));
    struct kv_seq *s = run(c, 0, text(MOST, 0, 1000), 1000);
    assert_true(stats(c).blocks_held[0] <= 3);
    assert_null(kv_seq_blocks(s, 0)[0]);
    assert_null(kv_seq_blocks(s, 0)[29]);     /* positions 928 .. 959 */
    assert_non_null(kv_seq_blocks(s, 0)[30]); /* 961 is needed to compute 1000 */
    assert_non_null(kv_seq_blocks(s, 0)[31]);
    assert_true(stats(c).blocks_cached[0] >= 29);
    kv_seq_close(s);
    kv_destroy(c);
}

static void truncate_returns_to_the_window_while_it_is_held(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(40, 64));
    struct kv_seq *s = run(c, 0, text(MOST, 0, 1000), 1000);
    kv_seq_truncate(s, 500);
    assert_int_equal(kv_seq_length(s), 500);
    assert_non_null(kv_seq_blocks(s, 0)[14]); /* 461 is needed to compute 500 */
    kv_check(c);
    kv_seq_close(s);
    kv_destroy(c);
}

static void rejected_draft_leaves_no_trace(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 4));
    const int32_t *t = text(100, 0, 128);
    struct kv_seq *s = run(c, 0, t, 100);
    for (int i = 0; i < 50; i++) {
        int32_t draft[] = {900 + i, 901, 902, 903};
        assert_int_equal(kv_seq_extend(s, draft, 4), 0);
        kv_seq_commit(s, 101);
        kv_seq_truncate(s, 100);
    }
    assert_int_equal(stats(c).copied_blocks, 0);
    assert_int_equal(stats(c).blocks_held[0], 4);
    kv_seq_close(s);
    kv_destroy(c);
}

/* ---- shared prefixes ---- */

static void prefix_is_reused_token_by_token(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    kv_seq_close(run(c, 0, text(75, 1000, 200), 200));
    struct kv_match m = look(c, 0, text(75, 2000, 120), 120);
    assert_int_equal(m.tokens, 75);
    assert_int_equal(m.miss, KV_MISS_NEVER);
    m = look(c, 0, text(75, 1000, 200), 200); /* all of it but the last token, always computed */
    assert_int_equal(m.tokens, 199);
    assert_int_equal(m.miss, KV_MISS_NONE);
    kv_check(c);
    kv_destroy(c);
}

static void sharers_write_into_their_own_copy(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(40, 1000, 60);
    struct kv_seq *a = run(c, 0, t, 60);
    memset(kv_seq_blocks(a, 0)[1], 'a', BLOCK);
    t = text(40, 2000, 60);
    struct kv_seq *b = open_seq(c, 0, t, 60, NULL);
    assert_int_equal(kv_seq_length(b), 40);
    assert_int_equal(stats(c).blocks_shared[0], 2);
    extend(b, t, 60);
    assert_ptr_equal(kv_seq_blocks(a, 0)[0], kv_seq_blocks(b, 0)[0]);
    assert_ptr_not_equal(kv_seq_blocks(a, 0)[1], kv_seq_blocks(b, 0)[1]);
    assert_memory_equal(kv_seq_blocks(a, 0)[1], kv_seq_blocks(b, 0)[1], BLOCK);
    assert_int_equal(stats(c).copied_blocks, 1);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_destroy(c);
}

static void conversation_goes_on_without_a_copy(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(MOST, 0, 500);
    kv_seq_close(run(c, 0, t, 150));
    struct kv_match m;
    struct kv_seq *s = open_seq(c, 0, t, 300, &m);
    assert_int_equal(m.tokens, 150);
    finish(s, t, 300);
    assert_int_equal(stats(c).copied_blocks, 0);
    kv_seq_close(s);
    assert_int_equal(stats(c).blocks_cached[0], 10);
    kv_destroy(c);
}

static void salts_keep_tenants_apart(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    kv_seq_close(run(c, 7, text(100, 0, 100), 100));
    struct kv_match m = look(c, 8, text(100, 0, 100), 100);
    assert_int_equal(m.tokens, 0);
    assert_int_equal(m.miss, KV_MISS_SALT);
    assert_int_equal(look(c, 7, text(100, 0, 100), 100).tokens, 99);
    kv_destroy(c);
}

static void public_prefix_serves_all_and_learns_from_none(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    kv_seq_close(run(c, KV_SALT_PUBLIC, text(75, 0, 75), 75));
    kv_seq_close(run(c, 7, text(75, 1000, 200), 200));
    assert_int_equal(look(c, 7, text(75, 1000, 200), 200).tokens, 199);
    struct kv_match m = look(c, 8, text(75, 1000, 200), 200);
    assert_int_equal(m.tokens, 75);
    assert_int_equal(m.miss, KV_MISS_SALT);
    assert_int_equal(look(c, KV_SALT_PUBLIC, text(75, 1000, 200), 200).tokens, 75);
    kv_check(c);
    kv_destroy(c);
}

static void whoever_computes_a_named_prefix_computes_it_for_all(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    assert_int_equal(kv_public(c, text(75, 0, 75), 75, NULL), 0);
    kv_seq_close(run(c, 7, text(75, 1000, 200), 200));
    assert_int_equal(look(c, 7, text(75, 1000, 200), 200).tokens, 199);
    struct kv_match m = look(c, 8, text(75, 1000, 200), 200);
    assert_int_equal(m.tokens, 75); /* what follows in the third block is tenant 7's */
    assert_int_equal(m.miss, KV_MISS_SALT);
    kv_check(c);
    kv_destroy(c);
}

static void tenants_wait_for_each_other_as_far_as_a_prefix_is_named(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    assert_int_equal(kv_public(c, text(75, 0, 75), 75, NULL), 0);
    int32_t one[200], other[200];
    memcpy(one, text(75, 1000, 200), sizeof one);
    memcpy(other, text(75, 2000, 200), sizeof other);
    struct kv_seq *a = open_seq(c, 7, one, 200, NULL), *b = open_seq(c, 8, other, 200, NULL);
    assert_ptr_equal(kv_seq_producer(b), a);
    finish(a, one, 200);
    assert_int_equal(kv_seq_rematch(b, other, 200, 199), 75);
    assert_null(kv_seq_producer(b));
    finish(b, other, 200);
    kv_check(c);
    kv_seq_close(a);
    kv_seq_close(b);
    assert_int_equal(look(c, 7, one, 200).tokens, 199);
    assert_int_equal(look(c, 8, other, 200).tokens, 199);
    kv_destroy(c);
}

/* It was going to say what is public, and says something else. */
static void a_broken_word_is_not_made_public(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    assert_int_equal(kv_public(c, text(75, 0, 75), 75, NULL), 0);
    struct kv_seq *s = open_seq(c, 7, text(75, 0, 75), 75, NULL);
    extend(s, text(75, 0, 75), 50);
    kv_seq_commit(s, 50);
    extend(s, text(50, 1000, 75), 75);
    kv_seq_commit(s, 75);
    kv_seq_close(s);
    assert_int_equal(look(c, 8, text(50, 1000, 75), 75).tokens, 50);
    assert_int_equal(look(c, 7, text(50, 1000, 75), 75).tokens, 74);
    kv_check(c);
    kv_destroy(c);
}

static void variants_share_nothing_not_even_public_prefixes(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    kv_seq_close(run(c, kv_salt(UINT64_MAX, 0), text(75, 0, 75), 75));
    kv_seq_close(run(c, kv_salt(7, 0), text(75, 1000, 200), 200));
    assert_int_equal(look(c, kv_salt(8, 0), text(75, 1000, 200), 200).tokens, 75);
    for (uint64_t tenant = 7; tenant < 9; tenant++) {
        struct kv_match m = look(c, kv_salt(tenant, 1), text(75, 1000, 200), 200);
        assert_int_equal(m.tokens, 0);
        assert_int_equal(m.miss, KV_MISS_NEVER);
    }
    kv_seq_close(run(c, kv_salt(KV_SALT_PUBLIC, 1), text(75, 0, 75), 75));
    assert_int_equal(look(c, kv_salt(7, 1), text(75, 1000, 200), 200).tokens, 75);
    assert_int_equal(look(c, kv_salt(7, 0), text(75, 1000, 200), 200).tokens, 199);
    kv_check(c);
    kv_destroy(c);
}

static void sharing_switched_off_shares_nothing(void **state)
{
    (void)state;
    struct kv_config config = one_group(0, 64);
    config.share = false;
    struct kv_cache *c = create(config);
    struct kv_seq *s = run(c, 0, text(100, 0, 100), 100);
    struct kv_match m = look(c, 0, text(100, 0, 100), 100);
    assert_int_equal(m.tokens, 0);
    assert_int_equal(m.miss, KV_MISS_SHORT);
    kv_seq_close(s);
    assert_int_equal(stats(c).bytes_free, stats(c).block_bytes_total);
    kv_destroy(c);
}

static void fork_shares_all_but_what_is_written(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    struct kv_seq *s = run(c, 0, text(100, 0, 100), 100), *f[8];
    for (int i = 0; i < 8; i++)
        assert_int_equal(kv_seq_fork(s, &f[i], NULL), 0);
    assert_int_equal(stats(c).blocks_shared[0], 4);
    for (int i = 0; i < 8; i++)
        extend(f[i], text(100, 1000 * i, 110), 110);
    assert_int_equal(stats(c).blocks_shared[0], 4);
    assert_int_equal(stats(c).blocks_held[0], 8 - 1); /* one writes on where all stood */
    for (int i = 0; i < 8; i++)
        kv_seq_close(f[i]);
    kv_seq_close(s);
    kv_destroy(c);
}

static void equal_answers_end_in_the_same_blocks(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(MOST, 0, 200);
    struct kv_seq *s = run(c, 0, t, 100), *f;
    assert_int_equal(kv_seq_fork(s, &f, NULL), 0);
    for (int n = 101; n <= 170; n++) { /* both in each step, as greedy candidates do */
        extend(s, t, n);
        extend(f, t, n);
        kv_seq_commit(s, n);
        kv_seq_commit(f, n);
    }
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(kv_seq_blocks(s, 0)[i], kv_seq_blocks(f, 0)[i]);
    kv_check(c);
    kv_seq_close(s);
    kv_seq_close(f);
    kv_destroy(c);
}

/* ---- while it runs ---- */

static void waiter_attaches_what_is_still_in_production(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(MOST, 0, 300);
    struct kv_seq *a = open_seq(c, 0, t, 300, NULL);
    extend(a, t, 100);
    struct kv_seq *b = open_seq(c, 0, t, 300, NULL);
    assert_int_equal(kv_seq_length(b), 100);
    assert_int_equal(kv_seq_ready(b), 0);
    assert_ptr_equal(kv_seq_producer(b), a);
    assert_null(kv_seq_producer(a));
    kv_seq_commit(a, 70);
    assert_int_equal(kv_seq_ready(b), 70);
    kv_seq_commit(a, 100);
    assert_int_equal(kv_seq_ready(b), 100);
    extend(a, t, 200);
    assert_int_equal(kv_seq_rematch(b, t, 300, 299), 200);
    assert_ptr_equal(kv_seq_producer(b), a);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_destroy(c);
}

/* Four requests with one prefix on a cold cache, in steps of 128 tokens each: the prefix is
 * computed once, whoever comes first in a step. */
static void cold_prefix_is_computed_once(void **state)
{
    (void)state;
    struct kv_config configs[] = {one_group(0, 256), full_and_window(64, 256)};
    for (int k = 0; k < 2; k++) {
        struct kv_cache *c = create(configs[k]);
        struct kv_seq *s[4];
        int32_t prompt[4][1520];
        int computed = 0, done = 0;
        for (int i = 0; i < 4; i++) {
            memcpy(prompt[i], text(1500, 10000 * (i + 1), 1520), sizeof prompt[i]);
            s[i] = open_seq(c, 0, prompt[i], 1520, NULL);
        }
        for (int step = 0; done < 4 && step < 100; step++) {
            for (int i = 3; i >= 0; i--) { /* the youngest first: the worst order */
                kv_seq_rematch(s[i], prompt[i], 1520, 1519);
                if (kv_seq_producer(s[i]))
                    continue;
                int to = kv_seq_length(s[i]) + 128 < 1520 ? kv_seq_length(s[i]) + 128 : 1520;
                computed += to - kv_seq_length(s[i]);
                extend(s[i], prompt[i], to);
            }
            done = 0;
            for (int i = 0; i < 4; i++) {
                if (!kv_seq_producer(s[i]))
                    kv_seq_commit(s[i], kv_seq_length(s[i]));
                done += kv_seq_ready(s[i]) == 1520;
            }
            kv_check(c);
        }
        assert_int_equal(done, 4);
        assert_int_equal(computed, 1500 + 4 * 20);
        for (int i = 0; i < 4; i++)
            kv_seq_close(s[i]);
        kv_destroy(c);
    }
}

static void nobody_waits_for_the_token_he_must_compute(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(MOST, 0, 300);
    kv_seq_close(run(c, 0, t, 99));
    struct kv_seq *a = open_seq(c, 0, t, 100, NULL), *b = open_seq(c, 0, t, 100, NULL);
    assert_int_equal(kv_seq_length(a), 99);
    assert_null(kv_seq_producer(b)); /* the last token of a prompt is always one's own */
    kv_seq_close(a);
    kv_seq_close(b);
    kv_destroy(c);
}

static void waiter_goes_on_where_its_producer_stopped(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(40, 64));
    const int32_t *t = text(MOST, 0, 300);
    struct kv_seq *a = open_seq(c, 0, t, 300, NULL);
    extend(a, t, 100);
    kv_seq_commit(a, 100);
    extend(a, t, 200);
    struct kv_seq *b = open_seq(c, 0, t, 300, NULL), *d = open_seq(c, 0, t, 300, NULL);
    assert_int_equal(kv_seq_length(b), 200);
    kv_seq_close(a);
    assert_int_equal(kv_seq_length(b), 100);
    assert_int_equal(kv_seq_ready(b), 100);
    assert_null(kv_seq_producer(b)); /* the elder of the two carries on */
    assert_ptr_equal(kv_seq_producer(d), b);
    finish(b, t, 300);
    assert_int_equal(kv_seq_rematch(d, t, 300, 299), 299);
    kv_check(c);
    kv_seq_close(b);
    kv_seq_close(d);
    kv_destroy(c);
}

static void truncation_cuts_those_who_wait(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    const int32_t *t = text(MOST, 0, 300);
    struct kv_seq *a = open_seq(c, 0, t, 300, NULL);
    extend(a, t, 200);
    kv_seq_commit(a, 50);
    struct kv_seq *b = open_seq(c, 0, t, 300, NULL);
    kv_seq_truncate(a, 120);
    assert_int_equal(kv_seq_length(b), 120);
    kv_seq_truncate(a, 20); /* what is stored stays with b */
    assert_int_equal(kv_seq_length(b), 50);
    assert_int_equal(kv_seq_ready(b), 50);
    assert_null(kv_seq_producer(b));
    kv_check(c);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_destroy(c);
}

static void a_few_tokens_are_not_worth_waiting_for(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    struct kv_seq *a = open_seq(c, 0, text(3, 1000, 50), 50, NULL);
    extend(a, text(3, 1000, 50), 50);
    struct kv_match m;
    struct kv_seq *b = open_seq(c, 0, text(3, 2000, 50), 50, &m);
    assert_int_equal(m.tokens, 0);
    assert_int_equal(m.miss, KV_MISS_SHORT);
    assert_null(kv_seq_producer(b));
    kv_seq_commit(a, 50);
    assert_int_equal(look(c, 0, text(3, 2000, 50), 50).tokens, 3); /* stored: they cost nothing */
    kv_seq_close(a);
    kv_seq_close(b);
    kv_destroy(c);
}

/* ---- windows ---- */

static void windowed_prefix_is_resumed_where_prompts_part(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(512, 200));
    kv_seq_close(run(c, 0, text(1500, 10000, 2000), 2000));
    assert_int_equal(look(c, 0, text(1500, 20000, 2000), 2000).tokens, 1500);
    kv_destroy(c);
}

/* A running windowed sequence has let go of its beginning; when memory is short that goes first,
 * but a marked window stays. */
static void marked_window_outlives_the_others(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(64, 60));
    const int32_t *t = text(MOST, 0, 1600);
    struct kv_seq *s = open_seq(c, 0, t, 1600, NULL);
    finish(s, t, 500);
    kv_seq_mark(s);
    finish(s, t, 1200);
    kv_seq_mark(s);
    kv_seq_close(s);
    struct kv_seq *other = run(c, 1, text(MOST, 0, 1500), 1500);
    assert_true(stats(c).evicted_blocks > 0);
    struct kv_match m = look(c, 0, text(500, 9000, 1600), 1600);
    assert_int_equal(m.tokens, 500);
    assert_int_equal(look(c, 0, text(MOST, 0, 1600), 1600).tokens, 1200);
    m = look(c, 0, text(800, 9000, 1600), 1600); /* nobody said that one would branch at 800 */
    assert_int_equal(m.tokens, 512);             /* the block that the mark at 500 fills up to */
    assert_int_equal(m.miss, KV_MISS_WINDOW);
    kv_seq_close(other);
    kv_destroy(c);
}

static void recomputing_heals_what_a_window_lost(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(64, 60));
    const int32_t *t = text(MOST, 0, 1600);
    kv_seq_close(run(c, 0, t, 1200));
    kv_seq_close(run(c, 1, text(MOST, 0, 1500), 1500));
    t = text(800, 9000, 1600);
    struct kv_seq *s = open_seq(c, 0, t, 1000, NULL);
    int resumed = kv_seq_length(s);
    size_t full_before = stats(c).blocks_held[0] + stats(c).blocks_cached[0];
    finish(s, t, 800); /* these tokens are in the tree already: their blocks are not kept twice */
    size_t full_after = stats(c).blocks_held[0] + stats(c).blocks_cached[0];
    assert_true(resumed < 800 && full_after <= full_before);
    kv_seq_close(s);
    kv_destroy(c);
}

/* ---- eviction ---- */

static void extend_evicts_least_recent(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 12));
    kv_seq_close(run(c, 0, text(0, 1000, 128), 128));
    kv_seq_close(run(c, 0, text(0, 2000, 128), 128));
    kv_seq_close(run(c, 0, text(0, 3000, 128), 128));
    assert_int_equal(look(c, 0, text(0, 1000, 128), 128).tokens, 127); /* now 2000 is the oldest */
    kv_seq_close(run(c, 0, text(0, 4000, 128), 128));
    assert_int_equal(look(c, 0, text(0, 1000, 128), 128).tokens, 127);
    assert_int_equal(look(c, 0, text(0, 3000, 128), 128).tokens, 127);
    struct kv_match m = look(c, 0, text(0, 2000, 128), 128);
    assert_int_equal(m.tokens, 0);
    assert_int_equal(m.miss, KV_MISS_EVICTED);
    assert_int_equal(stats(c).evicted_blocks, 4);
    kv_destroy(c);
}

static void running_sequences_are_never_evicted(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 8));
    const int32_t *t = text(0, 1000, 128);
    struct kv_seq *s = run(c, 0, t, 128);
    for (int i = 2; i < 20; i++)
        kv_seq_close(run(c, 0, text(0, 1000 * i, 128), 128));
    assert_int_equal(look(c, 0, text(0, 1000, 128), 128).tokens, 127);
    kv_seq_close(s);
    kv_destroy(c);
}

static void shared_prefix_outlives_its_branches(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 16));
    for (int i = 1; i < 30; i++) /* 8 blocks in common, 3 of each */
        kv_seq_close(run(c, 0, text(256, 1000 * i, 352), 352));
    assert_int_equal(look(c, 0, text(256, 99000, 300), 300).tokens, 256);
    kv_destroy(c);
}

static void preempted_sequence_resumes_from_the_tree(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(64, 60));
    const int32_t *t = text(MOST, 0, 900);
    struct kv_seq *s = open_seq(c, 0, t, 400, NULL);
    finish(s, t, 777);
    kv_seq_close(s);
    assert_int_equal(look(c, 0, t, 778).tokens, 777);
    kv_destroy(c);
}

/* Many long sequences through a small pool: whoever finds no room drops the youngest, who starts
 * again from what the tree still holds. All finish. */
static void small_pool_serves_many_by_preemption(void **state)
{
    (void)state;
    enum { MANY = 64, LONG = 1000 };
    struct kv_config configs[] = {one_group(0, 4 * LONG / 32), full_and_window(128, 2 * LONG / 32)};
    for (int k = 0; k < 2; k++) {
        struct kv_cache *c = create(configs[k]);
        struct kv_seq *s[MANY] = {NULL};
        int reached[MANY] = {0}, finished = 0, preempted = 0;
        for (int step = 0; finished < MANY && step < 20000; step++) {
            for (int i = 0; i < MANY; i++) {
                const int32_t *t = text(100, 2000 * (i + 1), LONG);
                if (reached[i] == LONG || (!s[i] && i > finished + 8))
                    continue;
                if (!s[i])
                    s[i] = open_seq(c, 0, t, reached[i] > 100 ? reached[i] : 100, NULL);
                if (kv_seq_producer(s[i]))
                    continue;
                int at = kv_seq_length(s[i]), n = LONG - at < 20 ? LONG - at : 20;
                int youngest = MANY - 1;
                while (!s[youngest])
                    youngest--;
                if (kv_seq_extend(s[i], t + at, n)) {
                    kv_seq_close(s[youngest]);
                    s[youngest] = NULL;
                    preempted++;
                    continue;
                }
                kv_seq_commit(s[i], at + n);
                reached[i] = at + n;
                if (reached[i] < LONG)
                    continue;
                kv_seq_close(s[i]);
                s[i] = NULL;
                finished++;
            }
            kv_check(c);
        }
        assert_int_equal(finished, MANY);
        assert_true(preempted > 0);
        assert_int_equal(stats(c).bytes_used, 0);
        kv_destroy(c);
    }
}

/* Blocks of one size must not be stranded in the other's slabs. */
static void memory_moves_between_groups(void **state)
{
    (void)state;
    struct kv_config config = {.groups = 2,
                               .group = {{"full", 0, 3 * BLOCK}, {"window", 32, 7 * BLOCK}},
                               .arena_bytes = 300 * BLOCK,
                               .share = true};
    struct kv_cache *c = create(config);
    for (int round = 0; round < 6; round++) {
        int n = 0;
        while (kv_fits(c, n + 1))
            n++;
        assert_true(n > 1500); /* long sequences: nearly all is the full group's */
        struct kv_seq *s = run(c, (uint64_t)round, text(MOST, 0, n), n);
        kv_seq_close(s);
        struct kv_seq *few[10]; /* short ones: the window group's share is larger */
        for (int i = 0; i < 10; i++)
            few[i] = run(c, (uint64_t)round, text(0, 1000 * i + 100, 64), 64);
        kv_check(c);
        for (int i = 0; i < 10; i++)
            kv_seq_close(few[i]);
    }
    stats(c);
    kv_destroy(c);
}

/* ---- leaving the tree ---- */

static void detached_sequence_neither_gives_nor_takes(void **state)
{
    (void)state;
    struct kv_cache *c = create(full_and_window(40, 64));
    const int32_t *t = text(MOST, 0, 300);
    struct kv_seq *a = run(c, 0, t, 200), *b = open_seq(c, 0, t, 200, NULL);
    assert_int_equal(kv_seq_detach(a), 0);
    assert_int_equal(kv_seq_length(a), 200);
    for (int i = 0; i < 6; i++)
        assert_ptr_not_equal(kv_seq_blocks(a, 0)[i], kv_seq_blocks(b, 0)[i]);
    assert_int_equal(stats(c).blocks_shared[0], 0);
    struct kv_seq *fork;
    assert_int_equal(kv_seq_fork(a, &fork, NULL), ERR_UNSUPPORTED);
    finish(a, t, 300);
    kv_seq_close(a);
    assert_int_equal(look(c, 0, t, 300).tokens, 200); /* what was shared before, and no more */
    kv_seq_close(b);
    kv_destroy(c);
}

static void detach_needs_room_for_copies(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 6));
    const int32_t *t = text(MOST, 0, 128);
    struct kv_seq *a = run(c, 0, t, 128), *b = open_seq(c, 0, t, 128, NULL);
    assert_int_equal(kv_seq_detach(a), ERR_BUSY);
    kv_check(c);
    kv_seq_close(b);
    assert_int_equal(kv_seq_detach(a), 0);
    assert_int_equal(stats(c).copied_blocks, 0);
    kv_seq_close(a);
    kv_destroy(c);
}

/* ---- seen from outside ---- */

static void hits_and_misses_are_counted(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 64));
    kv_seq_close(run(c, 0, text(64, 1000, 100), 100));
    look(c, 0, text(64, 2000, 100), 100);
    look(c, 0, text(64, 1000, 100), 100);
    struct kv_stats s = stats(c);
    assert_int_equal(s.queried_tokens, 300);
    assert_int_equal(s.hit_tokens, 64 + 99);
    assert_int_equal(s.misses[KV_MISS_NEVER], 2);
    assert_int_equal(s.misses[KV_MISS_NONE], 1);
    kv_destroy(c);
}

struct seen {
    int count, n[4];
    uint64_t hits[4];
    int32_t last[4];
};

static void see(void *arg, const struct kv_prefix *prefix)
{
    struct seen *seen = arg;
    seen->n[seen->count] = prefix->n;
    seen->last[seen->count] = prefix->tokens[prefix->n - 1];
    seen->hits[seen->count++] = prefix->hits;
}

static void ages_of_blocks_are_told(void **state)
{
    struct kv_cache *c = create(one_group(0, 4));
    struct kv_stats st;
    (void)state;
    kv_tick(c, 10);
    kv_seq_close(run(c, 1, text(0, 100, 64), 64)); /* two blocks */
    kv_tick(c, 13);
    kv_seq_close(run(c, 1, text(0, 100, 65), 65)); /* uses them again, and one more */
    kv_stats(c, &st);
    assert_int_equal(st.ages.reuse.count, 2);
    assert_float_equal(st.ages.reuse.sum, 2 * 3.0, 1e-9);
    assert_int_equal(st.ages.reuse.counts[11], 2); /* the bound of 5 seconds */
    assert_int_equal(st.ages.lifetime.count, 0);
    kv_tick(c, 18);
    kv_seq_close(run(c, 1, text(0, 900, 128), 128)); /* needs all four blocks */
    kv_stats(c, &st);
    assert_int_equal(st.ages.lifetime.count, st.evicted_blocks);
    assert_int_equal(st.evicted_blocks, 3);
    assert_float_equal(st.ages.lifetime.sum, 2 * 8.0 + 5, 1e-9);
    assert_float_equal(st.ages.idle.sum, 3 * 5.0, 1e-9);
    kv_check(c);
    kv_destroy(c);
}

static void hottest_prefixes_come_first(void **state)
{
    (void)state;
    struct kv_cache *c = create(one_group(0, 256));
    for (int i = 1; i <= 5; i++)
        kv_seq_close(run(c, 0, text(70, 1000 * i, 100), 100));
    for (int i = 1; i <= 3; i++)
        kv_seq_close(run(c, 1, text(40, 1000 * i, 100), 100));
    struct seen seen = {0};
    kv_visit_prefixes(c, 2, see, &seen);
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.n[0], 64); /* whole blocks */
    assert_int_equal(seen.last[0], 63);
    assert_int_equal(seen.hits[0], 4);
    assert_int_equal(seen.n[1], 32);
    assert_int_equal(seen.hits[1], 2);
    kv_destroy(c);
}

static void overhead_is_small_beside_real_blocks(void **state)
{
    (void)state;
    struct kv_config config = one_group(0, 1);
    config.group[0].block_bytes = (size_t)32 * 2 * 30 * 3 * 64 * 2; /* SmolLM2 135M in f16 */
    config.arena_bytes = (size_t)1 << 30;
    assert_true(kv_overhead_bytes(&config) < config.arena_bytes / 500);
    config.arena_bytes = 10;
    assert_int_equal(kv_overhead_bytes(&config), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_says_what_is_wrong),
        cmocka_unit_test(blocks_are_aligned_and_distinct),
        cmocka_unit_test(extend_without_room_changes_nothing),
        cmocka_unit_test(fits_is_what_a_lone_sequence_can_reach),
        cmocka_unit_test(window_group_holds_no_more_than_its_window),
        cmocka_unit_test(truncate_returns_to_the_window_while_it_is_held),
        cmocka_unit_test(rejected_draft_leaves_no_trace),
        cmocka_unit_test(prefix_is_reused_token_by_token),
        cmocka_unit_test(sharers_write_into_their_own_copy),
        cmocka_unit_test(conversation_goes_on_without_a_copy),
        cmocka_unit_test(salts_keep_tenants_apart),
        cmocka_unit_test(public_prefix_serves_all_and_learns_from_none),
        cmocka_unit_test(whoever_computes_a_named_prefix_computes_it_for_all),
        cmocka_unit_test(tenants_wait_for_each_other_as_far_as_a_prefix_is_named),
        cmocka_unit_test(a_broken_word_is_not_made_public),
        cmocka_unit_test(variants_share_nothing_not_even_public_prefixes),
        cmocka_unit_test(sharing_switched_off_shares_nothing),
        cmocka_unit_test(fork_shares_all_but_what_is_written),
        cmocka_unit_test(equal_answers_end_in_the_same_blocks),
        cmocka_unit_test(waiter_attaches_what_is_still_in_production),
        cmocka_unit_test(cold_prefix_is_computed_once),
        cmocka_unit_test(nobody_waits_for_the_token_he_must_compute),
        cmocka_unit_test(waiter_goes_on_where_its_producer_stopped),
        cmocka_unit_test(truncation_cuts_those_who_wait),
        cmocka_unit_test(a_few_tokens_are_not_worth_waiting_for),
        cmocka_unit_test(windowed_prefix_is_resumed_where_prompts_part),
        cmocka_unit_test(marked_window_outlives_the_others),
        cmocka_unit_test(recomputing_heals_what_a_window_lost),
        cmocka_unit_test(extend_evicts_least_recent),
        cmocka_unit_test(running_sequences_are_never_evicted),
        cmocka_unit_test(shared_prefix_outlives_its_branches),
        cmocka_unit_test(preempted_sequence_resumes_from_the_tree),
        cmocka_unit_test(small_pool_serves_many_by_preemption),
        cmocka_unit_test(memory_moves_between_groups),
        cmocka_unit_test(detached_sequence_neither_gives_nor_takes),
        cmocka_unit_test(detach_needs_room_for_copies),
        cmocka_unit_test(hits_and_misses_are_counted),
        cmocka_unit_test(ages_of_blocks_are_told),
        cmocka_unit_test(hottest_prefixes_come_first),
        cmocka_unit_test(overhead_is_small_beside_real_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
