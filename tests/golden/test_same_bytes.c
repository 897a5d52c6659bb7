/* The same request gives the same bytes: alone, in company, from the cache, in chunks of any size,
 * after preemptions, with any number of threads. Tokens, log-probabilities and text are compared
 * bit for bit with what each request said when it was alone on a cold cache with one thread. */

#include "testlib.h"

#include "rig.h"
#include "server/lookup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS 32
#define MOST     (2 * REQUESTS) /* candidates */

static bool in_short(void)
{
    return getenv("ROPEWALK_TEST_SHORT") != NULL;
}

/* ---- the requests ---- */

struct requests {
    int32_t tokens[REQUESTS][128];
    struct rig_ask asks[REQUESTS];
    int n, candidates; /* in all */
};

/* Half of the prompts begin alike, some are a beginning of another, one is a single token. */
static void fill_prompt(struct requests *q, int i, bool growing, uint64_t *seed)
{
    int n = i == 5 ? 1 : 4 + (int)(test_random(seed) % (growing ? 20 : 92)),
        common = i % 2 ? n * 3 / 4 : 0;
    for (int j = 0; j < n; j++)
        q->tokens[i][j] = j < common ? q->tokens[1][j] : (int32_t)(3 + test_random(seed) % 250);
    if (i % 8 == 6)
        memcpy(q->tokens[i], q->tokens[i - 1], sizeof q->tokens[i]);
    q->asks[i].tokens = q->tokens[i];
    q->asks[i].n = n;
}

/* growing: short prompts with long answers, which run out of memory on their way. */
static void fill(struct requests *q, int n, bool growing)
{
    static const int tops[] = {0, 3, JOB_NO_LOGPROBS, 1};
    uint64_t seed = 20261129;
    memset(q, 0, sizeof *q);
    q->n = n;
    for (int j = 0; j < 128; j++)
        q->tokens[1][j] = (int32_t)(3 + test_random(&seed) % 250);
    for (int i = 0; i < n; i++) {
        fill_prompt(q, i, growing, &seed);
        struct rig_ask *a = &q->asks[i];
        a->max_tokens = growing ? 60 + (int)(test_random(&seed) % 60)
                                : 2 + (int)(test_random(&seed) % 40);
        a->temperature = i % 3 == 0 ? 0 : i % 3 * 0.7;
        a->top_p = i % 5 == 1 ? 0.9 : 1;
        a->repetition_penalty = i % 7 == 2 ? 1.3 : 1;
        a->seed = test_random(&seed);
        a->logprobs = tops[i % 4];
        a->prompt_logprobs = i % 6 == 3 ? 2 : JOB_NO_LOGPROBS;
        a->candidates = i % 11 == 4 ? 3 : 1;
        a->priority = (int)(test_random(&seed) % 3) - 1;
        a->tenant = test_random(&seed) % 2;
        q->candidates += a->candidates;
    }
}

static void set_salt(struct requests *q, uint64_t salt, bool each_its_own)
{
    for (int i = 0; i < q->n; i++)
        q->asks[i].salt = salt + (each_its_own ? (uint64_t)i : 0);
}

/* ---- comparing ---- */

static void say_difference(const struct requests *q, int i, const struct rig_answer *a,
                           const struct rig_answer *b)
{
    int at = 0;
    while (at < a->n_tokens && at < b->n_tokens && a->ids[at] == b->ids[at])
        at++;
    fail_msg("request %d (prompt of %d, temperature %g): %d and %d tokens, the first that differs "
             "is %d (%d, %d); ends %d, %d; errors %d, %d",
             i, q->asks[i].n, q->asks[i].temperature, a->n_tokens, b->n_tokens, at,
             at < a->n_tokens ? a->ids[at] : -1, at < b->n_tokens ? b->ids[at] : -1, a->finish,
             b->finish, a->error, b->error);
}

static void compare(const struct requests *q, const struct rig_answer *expected,
                    struct rig_answer *found)
{
    for (int i = 0, at = 0; i < q->n; i++)
        for (int c = 0; c < q->asks[i].candidates; c++, at++) {
            if (!rig_answer_equal(&expected[at], &found[at]))
                say_difference(q, i, &expected[at], &found[at]);
        }
    for (int i = 0; i < q->candidates; i++)
        rig_answer_finish(&found[i]);
}

static void ask_alone(struct rig *r, const struct requests *q, struct rig_answer *answers)
{
    for (int i = 0, at = 0; i < q->n; at += q->asks[i++].candidates) {
        rig_ask(r, &q->asks[i], 1, answers + at);
        rig_check_idle(r);
    }
}

static void check_together(struct rig *r, const struct requests *q,
                           const struct rig_answer *expected)
{
    struct rig_answer answers[MOST] = {0};
    rig_ask(r, q->asks, q->n, answers);
    rig_check_idle(r);
    compare(q, expected, answers);
}

/* ---- the ways ---- */

static void reference(const struct rig_options *o, struct requests *q, struct rig_answer *expected)
{
    struct rig r;
    struct rig_options plain = *o;
    plain.threads = 1;
    plain.no_sharing = true;
    rig_open(&r, &plain);
    ask_alone(&r, q, expected);
    for (int i = 0, at = 0; i < q->n; at += q->asks[i++].candidates) {
        assert_int_equal(expected[at].n_tokens, q->asks[i].max_tokens);

        assert_int_equal(expected[at].finish, FINISH_LENGTH);
    }
    assert_int_equal(rig_stats(&r).prompt_cached_tokens, 0);
    rig_close(&r);
}

/* Alone again, together sharing while they run, alone and together from the cache. */
static void in_company_and_cached(const struct rig_options *o, struct requests *q,
                                  const struct rig_answer *expected)
{
    struct rig r;
    struct rig_answer answers[MOST] = {0};
    rig_open(&r, o);
    set_salt(q, 100, true);
    ask_alone(&r, q, answers);
    compare(q, expected, answers);
    struct engine_stats st = rig_stats(&r);
    if (o->lookup)
        printf("    %llu of %llu guessed tokens were right\n", (unsigned long long)st.right_tokens,
               (unsigned long long)st.guessed_tokens);
    assert_true(!o->lookup || st.guessed_tokens > 0);
    set_salt(q, 200, true);
    check_together(&r, q, expected);
    set_salt(q, 1, false);
    check_together(&r, q, expected);
    uint64_t before = rig_stats(&r).prompt_cached_tokens;
    ask_alone(&r, q, answers);
    for (int i = 0, at = 0; i < q->n; at += q->asks[i++].candidates)
        if (q->asks[i].prompt_logprobs == JOB_NO_LOGPROBS)
            assert_int_equal(answers[at].cached, q->asks[i].n - 1);
    compare(q, expected, answers);
    check_together(&r, q, expected);
    assert_true(rig_stats(&r).prompt_cached_tokens > before);
    rig_close(&r);
}

/* Of every size up to more than the longest prompt, some with each number of threads. */
static void in_chunks(const struct rig_options *o, struct requests *q,
                      const struct rig_answer *expected)
{
    int stride = in_short() ? 29 : 3, first = 1 + (in_short() ? 2 : 1) * (o->threads / 2) % stride;
    for (int size = first; size < 128 + stride; size += size < 40 ? stride : 3 * stride + 2) {
        struct rig r;
        struct rig_options chunked = *o;
        chunked.step_tokens = size;
        rig_open(&r, &chunked);
        set_salt(q, 1, false);
        check_together(&r, q, expected);
        rig_close(&r);
    }
}

/* So little memory that they take it from each other. */
static void after_preemptions(const struct rig_options *o, struct requests *q,
                              const struct rig_answer *expected)
{
    static const int pools[] = {160, 256};
    uint64_t preemptions = 0, recomputed = 0;
    for (size_t i = 0; i < 2 * sizeof pools / sizeof *pools; i++) {
        struct rig r;
        struct rig_options small = *o;
        small.pool_tokens = pools[i / 2];
        small.no_sharing = i % 2;
        rig_open(&r, &small);
        set_salt(q, 1, false);
        check_together(&r, q, expected);
        struct engine_stats st = rig_stats(&r);
        printf("    pool of %d, %s: %llu preemptions, %llu tokens computed again\n", pools[i / 2],
               i % 2 ? "not shared" : "shared", (unsigned long long)st.preemptions,
               (unsigned long long)st.recomputed_tokens);
        preemptions += st.preemptions;
        recomputed += st.recomputed_tokens;
        rig_close(&r);
    }
    /* who has nothing but windows does not grow */
    assert_true(o->window || (preemptions > 0 && recomputed > 0));
}

/* So few slots that choices give theirs to others of another tenant or request. */
static void in_few_slots(const struct rig_options *o, struct requests *q,
                         const struct rig_answer *expected)
{
    struct rig r;
    struct rig_options narrow = *o;
    narrow.most_sequences = 3;
    rig_open(&r, &narrow);
    set_salt(q, 1, false);
    check_together(&r, q, expected);
    rig_close(&r);
}

typedef void way_fn(const struct rig_options *o, struct requests *q,
                    const struct rig_answer *expected);

static void with_threads(const char *model, enum kv_type kv_type, bool growing, way_fn *const *ways)
{
    static const int threads[] = {1, 2, 4};
    char path[4096];
    struct requests *q = malloc(sizeof *q);
    struct rig_answer expected[MOST] = {0};
    snprintf(path, sizeof path, "%s/%s/model.gguf", GOLDEN_DIR, model);
    struct rig_options o = {.path = path, .kv_type = kv_type};
    o.window = strcmp(model, "mistral-window") ? 0 : 12; /* its file does not say */
    fill(q, in_short() && growing ? 24 : REQUESTS, growing);
    reference(&o, q, expected);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        o.threads = threads[i];
        o.lookup = threads[i] == 1 ? 0 : LOOKUP_MOST; /* guesses change nothing, either */
        for (int w = 0; ways[w]; w++)
            ways[w](&o, q, expected);
    }
    for (int i = 0; i < q->candidates; i++)
        rig_answer_finish(&expected[i]);
    free(q);
}

static void every_way(const char *model, enum kv_type kv_type)
{
    with_threads(model, kv_type, false, (way_fn *const[]){in_company_and_cached, in_chunks, NULL});
    with_threads(model, kv_type, true, (way_fn *const[]){after_preemptions, in_few_slots, NULL});
}

#define WAYS(name, model, kv)                                                                      \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        every_way(model, kv);                                                                      \
    }
WAYS(llama_f16, "llama-gqa", KV_F16)
WAYS(llama_q8_0, "llama-gqa", KV_Q8_0)
WAYS(windowed_f16, "gemma3", KV_F16)
WAYS(windowed_q8_0, "gemma3", KV_Q8_0)
WAYS(windows_only_f16, "mistral-window", KV_F16)
WAYS(two_variants_f16, "phi3-longrope", KV_F16) /* of positions: most pass from one to the other */
WAYS(quantised_f16, "quant-q4_k", KV_F16)
WAYS(quantised_q8_0, "quant-q4_k", KV_Q8_0)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_f16),        cmocka_unit_test(llama_q8_0),
        cmocka_unit_test(windowed_f16),     cmocka_unit_test(windowed_q8_0),
        cmocka_unit_test(windows_only_f16), cmocka_unit_test(two_variants_f16),
        cmocka_unit_test(quantised_f16),    cmocka_unit_test(quantised_q8_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
