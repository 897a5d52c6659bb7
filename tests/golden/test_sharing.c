/* What is computed when prompts have something in common: to the token, on a model of full
 * attention and on one with windows. */

#include "testlib.h"

#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT 8192
#define PREFIX  1500

static const char *models[] = {"llama-gqa", "gemma3"};

static void open_model(struct rig *r, const char *model, int pool_tokens, int threads)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/model.gguf", GOLDEN_DIR, model);
    const struct rig_options o = {
        .path = path, .context = CONTEXT, .pool_tokens = pool_tokens, .threads = threads};
    rig_open(r, &o);
}

/* The same prefix for each, then tokens of its own. */
static void fill(int32_t *tokens, int n, int common, uint64_t own)
{
    uint64_t seed = 4711;
    for (int i = 0; i < n; i++) {
        if (i == common)
            seed = own * 1000003 + 1;
        tokens[i] = (int32_t)(3 + test_random(&seed) % 250);
    }
    if (common < n)
        tokens[common] = (int32_t)(3 + own % 250); /* they part here, not later */
}

static struct rig_ask ask_for(const int32_t *tokens, int n, int max_tokens)
{
    return (struct rig_ask){.tokens = tokens,
                            .n = n,
                            .max_tokens = max_tokens,
                            .logprobs = 0,
                            .prompt_logprobs = JOB_NO_LOGPROBS};
}

/* Four at once with a prefix in common and 20 tokens of their own; how many prompt tokens they
 * computed together. */
static uint64_t four_compute(struct rig *r, int *cached)
{
    static int32_t tokens[4][PREFIX + 20];
    struct rig_ask asks[4];
    struct rig_answer answers[4] = {0};
    struct engine_stats before = rig_stats(r), after;
    for (int i = 0; i < 4; i++) {
        fill(tokens[i], PREFIX + 20, PREFIX, (uint64_t)i + 1);
        asks[i] = ask_for(tokens[i], PREFIX + 20, 8);
    }
    rig_ask(r, asks, 4, answers);
    rig_check_idle(r);
    after = rig_stats(r);
    *cached = 0;
    for (int i = 0; i < 4; i++) {
        *cached += answers[i].cached;
        rig_answer_finish(&answers[i]);
    }
    assert_int_equal(after.prompt_tokens - before.prompt_tokens, 4 * (PREFIX + 20));
    assert_int_equal(after.prompt_cached_tokens - before.prompt_cached_tokens, *cached);
    assert_int_equal(after.recomputed_tokens, before.recomputed_tokens);
    return after.prompt_computed_tokens - before.prompt_computed_tokens;
}

static void four_with_a_cached_prefix_compute_their_own_tokens_only(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        static int32_t prefix[PREFIX];
        struct rig r;
        struct rig_answer answer = {0};
        int cached;
        open_model(&r, models[m], 0, 1);
        fill(prefix, PREFIX, PREFIX, 0);
        const struct rig_ask first = ask_for(prefix, PREFIX, 1);
        rig_ask(&r, &first, 1, &answer);
        assert_int_equal(answer.cached, 0);
        assert_int_equal(answer.miss, KV_MISS_NEVER);
        rig_answer_finish(&answer);
        assert_int_equal(four_compute(&r, &cached), 80);
        assert_int_equal(cached, 4 * PREFIX);
        rig_close(&r);
    }
}

static void four_on_a_cold_cache_compute_the_prefix_once(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct rig r;
        int cached;
        open_model(&r, models[m], 0, 2);
        assert_int_equal(four_compute(&r, &cached), PREFIX + 80);
        assert_int_equal(cached, 3 * PREFIX);
        rig_close(&r);
    }
}

/* A prompt branches off where nobody has marked anything. */
static void a_branch_recomputes_what_is_its_own_and_at_most_a_block(void **state)
{
    (void)state;
    static const int shared[] = {1500, 1472, 1471, 1473, 33, 1999};
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
            static int32_t one[2000], other[2000];
            struct rig r;
            struct rig_answer answers[2] = {0};
            open_model(&r, models[m], 0, 1);
            fill(one, 2000, shared[i], 1);
            fill(other, 2000, shared[i], 2);
            const struct rig_ask asks[] = {ask_for(one, 2000, 4), ask_for(other, 2000, 4)};
            rig_ask(&r, &asks[0], 1, &answers[0]);
            rig_ask(&r, &asks[1], 1, &answers[1]);
            assert_true(answers[1].cached <= shared[i]);
            assert_true(2000 - answers[1].cached <= 2000 - shared[i] + KV_BLOCK_TOKENS);
            rig_close(&r);
            rig_answer_finish(&answers[0]);
            rig_answer_finish(&answers[1]);
        }
}

/* Turn after turn a conversation grows by its own answer and a few words. */
static void a_conversation_computes_only_what_is_new(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        static int32_t tokens[4000];
        struct rig r;
        int n = 300;
        open_model(&r, models[m], 0, 1);
        fill(tokens, n, n, 0);
        for (int turn = 0, had = 0; turn < 20; turn++) {
            struct rig_answer answer = {0};
            const struct rig_ask ask = ask_for(tokens, n, 50);
            rig_ask(&r, &ask, 1, &answer);
            /* the last token of an answer is drawn, never computed */
            assert_int_equal(answer.cached, turn ? had - 1 : 0);
            memcpy(tokens + n, answer.ids, 50 * sizeof *tokens);
            had = n + 50;
            for (n = had; n < had + 13; n++)
                tokens[n] = 3 + n % 200;
            rig_answer_finish(&answer);
        }
        rig_close(&r);
    }
}

static void another_salt_shares_nothing_and_says_so(void **state)
{
    (void)state;
    static int32_t tokens[200];
    struct rig r;
    struct rig_answer answers[3] = {0};
    open_model(&r, models[0], 0, 1);
    fill(tokens, 200, 200, 0);
    struct rig_ask ask = ask_for(tokens, 200, 4);
    ask.salt = 1;
    rig_ask(&r, &ask, 1, &answers[0]);
    ask.salt = 2;
    rig_ask(&r, &ask, 1, &answers[1]);
    assert_int_equal(answers[1].cached, 0);
    assert_int_equal(answers[1].miss, KV_MISS_SALT);
    ask.salt = 1;
    rig_ask(&r, &ask, 1, &answers[2]);
    assert_int_equal(answers[2].cached, 199);
    assert_int_equal(answers[2].miss, KV_MISS_NONE);
    struct engine_stats st = rig_stats(&r);
    assert_int_equal(st.misses[KV_MISS_NEVER], 1);
    assert_int_equal(st.misses[KV_MISS_SALT], 1);
    assert_int_equal(st.misses[KV_MISS_NONE], 1);
    rig_close(&r);
    for (int i = 2; i >= 0; i--) {
        assert_true(rig_answer_equal(&answers[0], &answers[i]));
        rig_answer_finish(&answers[i]);
    }
}

/* ---- a pool that holds four of them ---- */

#define LONG  4000
#define CROWD 64

static void a_crowd_passes_through_a_small_pool(void **state)
{
    (void)state;
    int crowd = getenv("ROPEWALK_TEST_SHORT") ? 12 : CROWD, prompt = LONG - 60;
    for (int m = 0; m < 2; m++) {
        int32_t *tokens = malloc((size_t)(crowd * LONG) * sizeof *tokens);
        struct rig_ask asks[CROWD];
        struct rig_answer alone[CROWD] = {0}, together[CROWD] = {0};
        struct rig r;
        for (int i = 0; i < crowd; i++) {
            fill(tokens + i * LONG, prompt, 0, (uint64_t)i);
            asks[i] = ask_for(tokens + i * LONG, prompt, 60);
            asks[i].temperature = i % 2;
            asks[i].seed = (uint64_t)i;
        }
        open_model(&r, models[m], 0, 2);
        for (int i = 0; i < crowd; i++)
            rig_ask(&r, &asks[i], 1, &alone[i]);
        rig_close(&r);
        open_model(&r, models[m], 4 * LONG, 2);
        rig_ask(&r, asks, crowd, together);
        struct engine_stats st = rig_stats(&r);
        printf("    %s: %llu preemptions, %llu tokens computed again\n", models[m],
               (unsigned long long)st.preemptions, (unsigned long long)st.recomputed_tokens);
        assert_int_equal(st.prompt_tokens, crowd * prompt);
        rig_close(&r);
        for (int i = 0; i < crowd; i++) {
            assert_int_equal(together[i].finish, FINISH_LENGTH);
            assert_true(rig_answer_equal(&alone[i], &together[i]));
            rig_answer_finish(&alone[i]);
            rig_answer_finish(&together[i]);
        }
        free(tokens);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_with_a_cached_prefix_compute_their_own_tokens_only),
        cmocka_unit_test(four_on_a_cold_cache_compute_the_prefix_once),
        cmocka_unit_test(a_branch_recomputes_what_is_its_own_and_at_most_a_block),
        cmocka_unit_test(a_conversation_computes_only_what_is_new),
        cmocka_unit_test(another_salt_shares_nothing_and_says_so),
        cmocka_unit_test(a_crowd_passes_through_a_small_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
