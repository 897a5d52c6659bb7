/* What has been accepted ends, however little memory there is and however many answers are asked
 * for at once. */

#include "testlib.h"

#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKS 6
#define MOST 128 /* candidates of a request */

static int pick(uint64_t *seed, int n)
{
    return (int)(test_random(seed) % (uint64_t)n);
}

static bool in_short(void)
{
    return getenv("ROPEWALK_TEST_SHORT") != NULL;
}

/* Prompts that begin alike, at any distance from a block's end; one of them has many answers. */
static void fill(struct rig_ask *asks, int32_t tokens[ASKS][256], int context, uint64_t *seed)
{
    int crowd = pick(seed, ASKS);
    for (int i = 0; i < ASKS; i++) {
        int n = 1 + pick(seed, context - 1), from = i ? pick(seed, i) : 0;
        int common = i ? pick(seed, asks[from].n + 1) : 0;
        for (int j = 0; j < n; j++)
            tokens[i][j] = j < common ? tokens[from][j] : 3 + pick(seed, 250);
        asks[i] = (struct rig_ask){
            .tokens = tokens[i],
            .n = n,
            .max_tokens = 1 + pick(seed, context - n),
            .candidates = i == crowd ? MOST : 1 + pick(seed, 3),
            .temperature = 1,
            .seed = test_random(seed),
            .logprobs = JOB_NO_LOGPROBS,
            .prompt_logprobs = pick(seed, 4) ? JOB_NO_LOGPROBS : 0,
            .salt = (uint64_t)pick(seed, 2),
            .tenant = (uint64_t)pick(seed, 2),
            .priority = pick(seed, 3) - 1,
        };
        asks[i].shift = pick(seed, 5) == 0;
        if (asks[i].shift)
            asks[i].max_tokens += context;
    }
}

static void one_engine(const char *model, uint64_t *seed)
{
    static int32_t tokens[ASKS][256];
    static struct rig_answer answers[ASKS * MOST];
    struct rig_ask asks[ASKS];
    struct rig r;
    char path[4096];
    int context = 40 + pick(seed, 200), n = 0;
    snprintf(path, sizeof path, "%s/%s/model.gguf", GOLDEN_DIR, model);
    rig_open(&r, &(struct rig_options){
                     .path = path,
                     .window = strcmp(model, "mistral-window") ? 0 : 12, /* its file does not say */
                     .context = context,
                     .pool_tokens = context + pick(seed, 3) * 32,
                     .most_sequences = 1 << pick(seed, 7),
                     .step_tokens = 1 + pick(seed, 2) * 31 + pick(seed, 2) * 96,
                     .lookup = pick(seed, 2) * 4,
                     .no_sharing = pick(seed, 6) == 0,
                     .itl_target_ms = 1 + pick(seed, 100),
                 });
    fill(asks, tokens, engine_context(r.engine), seed);
    rig_ask(&r, asks, ASKS, answers);
    for (int i = 0; i < ASKS; n += asks[i++].candidates) {
        assert_int_equal(answers[n].error, 0);
        for (int c = n; c < n + asks[i].candidates; c++) {
            assert_int_equal(answers[c].finish, FINISH_LENGTH);
            assert_true(answers[c].n_tokens == asks[i].max_tokens);
            rig_answer_finish(&answers[c]);
        }
    }
    rig_close(&r);
}

static void every_answer_reaches_its_end_in_any_pool(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-gqa", "gemma3", "mistral-window"};
    uint64_t seed = test_seed();
    int runs = getenv("FITS_RUNS") ? atoi(getenv("FITS_RUNS")) : in_short() ? 3 : 9;
    for (int i = 0; i < runs; i++)
        one_engine(models[i % 3], &seed);
}

/* ---- slots ---- */

static struct rig_ask ask_for(const int32_t *tokens, int n, int max_tokens)
{
    return (struct rig_ask){.tokens = tokens,
                            .n = n,
                            .max_tokens = max_tokens,
                            .temperature = 1,
                            .logprobs = 0,
                            .prompt_logprobs = JOB_NO_LOGPROBS};
}

static bool has_begun(const struct engine_stats *st)
{
    return st->running == 4 && st->generated_tokens > 40;
}

static void check_same(struct rig_answer *a, struct rig_answer *b, int n)
{
    for (int i = 0; i < n; i++) {
        assert_true(rig_answer_equal(&a[i], &b[i]));
        rig_answer_finish(&a[i]);
        rig_answer_finish(&b[i]);
    }
}

/* Sixteen long choices of one request (or, of another tenant, as many requests) have all four
 * slots; who comes is served at once, and what gave way says in the end what it says alone. */
static void a_newcomer_gets_a_slot_at_once(void **state)
{
    (void)state;
    enum { CHOICES = 16 };
    for (int tenants = 1; tenants <= 2; tenants++) {
        static const int32_t tokens[] = {9, 8, 7, 6, 5, 4};
        struct rig_answer big[CHOICES] = {0}, alone[CHOICES] = {0}, small[2] = {0};
        struct job *jobs[CHOICES];
        struct rig r;
        char path[4096];
        int requests = tenants == 1 ? 1 : CHOICES;
        snprintf(path, sizeof path, "%s/llama-gqa/model.gguf", GOLDEN_DIR);
        struct rig_options o = {.path = path, .context = 1024, .most_sequences = 4};
        struct rig_ask many = ask_for(tokens, 6, in_short() ? 200 : 600),
                       few = ask_for(tokens, 3, 5);
        many.candidates = CHOICES / requests;
        few.tenant = (uint64_t)tenants - 1;
        rig_open(&r, &o);
        for (int i = 0; i < requests; i++)
            rig_ask(&r, &many, 1, alone + i);
        rig_ask(&r, &few, 1, &small[0]);
        rig_close(&r);
        rig_open(&r, &o);
        for (int i = 0; i < requests; i++)
            jobs[i] = rig_submit(&r, &many);
        rig_wait(&r, has_begun);
        rig_ask(&r, &few, 1, &small[1]);
        struct engine_stats st = rig_stats(&r);
        assert_true(st.running >= 3 && st.finished[FINISH_LENGTH] == 1 && st.preemptions == 1);
        for (int i = 0; i < requests; i++)
            rig_finish(&r, jobs[i], big + i);
        rig_check_idle(&r);
        check_same(big, alone, CHOICES);
        check_same(&small[0], &small[1], 1);
        rig_close(&r);
    }
}

/* What has given its slot away can be cancelled there. */
static void what_has_given_way_can_be_cancelled(void **state)
{
    (void)state;
    static const int32_t tokens[] = {9, 8, 7};
    struct rig_answer big[8] = {0}, small[3] = {0};
    struct job *jobs[3];
    struct rig r;
    char path[4096];
    snprintf(path, sizeof path, "%s/gemma3/model.gguf", GOLDEN_DIR);
    struct rig_ask many = ask_for(tokens, 3, 800), few = ask_for(tokens, 2, 800);
    many.candidates = 8;
    rig_open(&r, &(struct rig_options){.path = path, .context = 1024, .most_sequences = 4});
    struct job *j = rig_submit(&r, &many);
    rig_wait(&r, has_begun);
    for (int i = 0; i < 3; i++)
        jobs[i] = rig_submit(&r, &few);
    while (rig_stats(&r).preemptions < 3)
        rig_wait_ring(&r);
    assert_int_equal(rig_stats(&r).waiting, 3);
    engine_cancel(r.engine, j);
    rig_finish(&r, j, big);
    for (int i = 0; i < 3; i++)
        rig_finish(&r, jobs[i], &small[i]);
    rig_check_idle(&r);
    assert_int_equal(rig_stats(&r).finished[FINISH_CANCELLED], 4);
    for (int i = 0; i < 8; i++)
        rig_answer_finish(&big[i]);
    check_same(&small[0], &small[1], 1);
    rig_answer_finish(&small[2]);
    rig_close(&r);
}

/* A crowd of one tenant waits for memory; who comes of another waits for some of it at most. */
static void memory_is_divided_between_tenants(void **state)
{
    (void)state;
    enum { CROWD = 16, LONG = 1000 };
    static int32_t tokens[CROWD][LONG];
    struct rig_answer answers[CROWD] = {0}, small = {0};
    struct job *jobs[CROWD];
    struct rig r;
    char path[4096];
    uint64_t seed = 3;
    snprintf(path, sizeof path, "%s/llama-gqa/model.gguf", GOLDEN_DIR);
    rig_open(&r, &(struct rig_options){.path = path, .context = 1100, .pool_tokens = 2500});
    for (int i = 0; i < CROWD; i++) {
        for (int j = 0; j < LONG; j++)
            tokens[i][j] = 3 + pick(&seed, 250);
        struct rig_ask ask = ask_for(tokens[i], LONG, 40);
        jobs[i] = rig_submit(&r, &ask);
    }
    struct rig_ask ask = ask_for(tokens[1], 500, 30);
    ask.tenant = ask.salt = 1;
    while (rig_stats(&r).generated_tokens < 10)
        rig_wait_ring(&r);
    rig_ask(&r, &ask, 1, &small);
    assert_true(rig_stats(&r).finished[FINISH_LENGTH] <= 4);
    for (int i = 0; i < CROWD; i++) {
        rig_finish(&r, jobs[i], &answers[i]);
        rig_answer_finish(&answers[i]);
    }
    rig_answer_finish(&small);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_reaches_its_end_in_any_pool),
        cmocka_unit_test(a_newcomer_gets_a_slot_at_once),
        cmocka_unit_test(what_has_given_way_can_be_cancelled),
        cmocka_unit_test(memory_is_divided_between_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
