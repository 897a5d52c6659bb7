/* The engine asked directly: who leaves, who goes first, what has no end, what it shows. */

#include "testlib.h"

#include "rig.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void open_tiny(struct rig *r, struct rig_options o)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/model.gguf", GOLDEN_DIR, o.path ? o.path : "llama-gqa");
    o.path = path;
    rig_open(r, &o);
}

static int32_t *random_tokens(uint64_t seed, int n)
{
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)(3 + test_random(&seed) % 250);
    return tokens;
}

static struct rig_ask ask_for(const int32_t *tokens, int n, int max_tokens)
{
    return (struct rig_ask){.tokens = tokens,
                            .n = n,
                            .max_tokens = max_tokens,
                            .logprobs = 0,
                            .prompt_logprobs = JOB_NO_LOGPROBS};
}

/* ---- who does not get in ---- */

static void a_refusal_says_what_is_wrong_with_the_prompt(void **state)
{
    static const struct {
        int n, max_tokens, code;
        const char *says;
    } cases[] = {
        {0, 1, ERR_ARG, "prompt 0 is empty"},
        {256, 1, ERR_LIMIT, "256 tokens; the context holds 256, 1 of them for the answer"},
        {257, 0, ERR_LIMIT, "257 tokens"},
    };
    struct rig r;
    (void)state;
    open_tiny(&r, (struct rig_options){.context = 256});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err;
        int32_t *tokens = random_tokens(1, cases[i].n + 1);
        struct tok_ids prompt = {tokens, cases[i].n, cases[i].n};
        struct job *j = job_create();
        j->request = (struct job_request){
            .prompts = &prompt, .n_prompts = 1, .candidates = 1, .max_tokens = cases[i].max_tokens};
        assert_int_equal(engine_submit(r.engine, j, &err), cases[i].code);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s", err.text);
        job_unref(j);
        free(tokens);
    }
    rig_check_idle(&r);
    rig_close(&r);
}

/* ---- who leaves ---- */

static uint64_t steps_before;

static bool has_stepped(const struct engine_stats *st)
{
    return st->running > 0 && st->steps > steps_before;
}

/* Cancelled in the middle of a prompt or of an answer: at most the step that runs is finished. */
static void cancelled_work_ends_within_a_step(void **state)
{
    (void)state;
    static const int prompts[] = {8000, 10};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct rig_answer answer = {0};
        int32_t *tokens = random_tokens(1, prompts[i]);
        open_tiny(&r, (struct rig_options){.context = 1 << 14, .step_tokens = 16});
        const struct rig_ask ask = ask_for(tokens, prompts[i], 8000);
        steps_before = 0;
        struct job *j = rig_submit(&r, &ask);
        while (rig_stats(&r).steps == 0)
            ; /* a prompt tells nothing while it is computed */
        engine_cancel(r.engine, j);
        uint64_t steps = rig_stats(&r).steps;
        rig_finish(&r, j, &answer);
        assert_int_equal(answer.finish, FINISH_CANCELLED);
        assert_int_equal(answer.error, 0);
        rig_check_idle(&r);
        /* one that ran when it was told, one that was about to */
        assert_true(rig_stats(&r).steps <= steps + 2);
        assert_int_equal(rig_stats(&r).finished[FINISH_CANCELLED], 1);
        rig_answer_finish(&answer);
        rig_close(&r);
        free(tokens);
    }
}

/* One producer, several that wait for it: when it leaves they carry on from where it stopped. */
static void waiters_carry_on_when_their_producer_leaves(void **state)
{
    (void)state;
    struct rig r;
    struct rig_answer answers[4] = {0}, alone = {0};
    struct job *jobs[4];
    int32_t *tokens = random_tokens(2, 3000);
    const struct rig_ask ask = ask_for(tokens, 3000, 10);
    open_tiny(&r, (struct rig_options){.context = 4096, .step_tokens = 8});
    for (int i = 0; i < 4; i++)
        jobs[i] = rig_submit(&r, &ask);
    while (rig_stats(&r).steps < 20)
        ;
    engine_cancel(r.engine, jobs[0]);
    for (int i = 0; i < 4; i++)
        rig_finish(&r, jobs[i], &answers[i]);
    rig_check_idle(&r);
    struct engine_stats st = rig_stats(&r);
    assert_int_equal(st.prompt_computed_tokens, 3000 + 2); /* the last token of each is its own */
    rig_ask(&r,
            &(struct rig_ask){.tokens = tokens,
                              .n = 3000,
                              .max_tokens = 10,
                              .logprobs = 0,
                              .prompt_logprobs = JOB_NO_LOGPROBS,
                              .salt = 9},
            1, &alone);
    for (int i = 1; i < 4; i++)
        assert_true(rig_answer_equal(&answers[i], &alone));
    for (int i = 0; i < 4; i++)
        rig_answer_finish(&answers[i]);
    rig_answer_finish(&alone);
    rig_close(&r);
    free(tokens);
}

static void destroying_ends_everything(void **state)
{
    (void)state;
    struct rig r;
    struct job *jobs[8];
    struct rig_answer answers[8] = {0};
    int32_t *tokens = random_tokens(3, 500);
    open_tiny(&r, (struct rig_options){.context = 4096, .most_sequences = 3});
    const struct rig_ask ask = ask_for(tokens, 500, 3000);
    for (int i = 0; i < 8; i++)
        jobs[i] = rig_submit(&r, &ask);
    steps_before = 2;
    rig_wait(&r, has_stepped);
    engine_destroy(r.engine);
    r.engine = NULL;
    for (int i = 0; i < 8; i++) {
        assert_true(rig_read(jobs[i], &answers[i]));
        rig_answer_finish(&answers[i]);
        job_unref(jobs[i]);
    }
    kv_check(r.cache);
    rig_close(&r);
    free(tokens);
}

/* ---- who goes first ---- */

/* An urgent request comes while a pool's worth of prompt is computed: it takes the memory, and the
 * other begins again and says the same. */
static void an_urgent_request_takes_memory_from_a_prompt(void **state)
{
    (void)state;
    struct rig r;
    struct rig_answer alone[2] = {0}, both[2] = {0};
    int32_t *tokens = random_tokens(4, 4000);
    struct rig_ask asks[] = {ask_for(tokens, 2000, 20), ask_for(tokens + 2000, 2000, 20)};
    asks[1].priority = -1000;
    open_tiny(&r, (struct rig_options){.context = 2048, .no_sharing = true});
    rig_ask(&r, &asks[0], 1, &alone[0]);
    rig_ask(&r, &asks[1], 1, &alone[1]);
    rig_close(&r);
    open_tiny(&r, (struct rig_options){
                      .context = 2048, .pool_tokens = 2048, .step_tokens = 8, .no_sharing = true});
    struct job *first = rig_submit(&r, &asks[0]);
    while (rig_stats(&r).steps < 150)
        ;
    struct job *second = rig_submit(&r, &asks[1]);
    rig_finish(&r, second, &both[1]);
    assert_int_equal(rig_stats(&r).running, 1); /* the first has not ended */
    rig_finish(&r, first, &both[0]);
    struct engine_stats st = rig_stats(&r);
    assert_true(st.preemptions >= 1 && st.recomputed_tokens >= 1000);
    assert_int_equal(both[0].cached, 0);
    rig_check_idle(&r);
    assert_int_equal(rig_stats(&r).prompt_computed_tokens, 4000);
    for (int i = 0; i < 2; i++) {
        assert_true(rig_answer_equal(&alone[i], &both[i]));
        rig_answer_finish(&alone[i]);
        rig_answer_finish(&both[i]);
    }
    rig_close(&r);
    free(tokens);
}

/* ---- what has no end ---- */

/* Two thousand tokens in a context of 256. A shifted sequence computes what it keeps anew, so it
 * says the same in company, in chunks and after preemptions, and leaves nothing in the tree. */
static void an_endless_answer_goes_on_past_the_context(void **state)
{
    (void)state;
    static const char *const tiny[] = {"llama-gqa", "gemma3"};
    static const int pools[] = {448, 550}; /* windows take most of the second's memory */
    int endless = getenv("ROPEWALK_TEST_SHORT") ? 600 : 2000;
    for (int m = 0; m < 2; m++) {
        struct rig r;
        struct rig_answer answers[5] = {0};
        int32_t *tokens = random_tokens(5, 40);
        struct rig_ask ask = ask_for(tokens, 40, endless);
        ask.shift = true;
        ask.keep = 10;
        ask.temperature = 0.9;
        ask.seed = 3;
        open_tiny(&r, (struct rig_options){.path = tiny[m], .context = 256});
        rig_ask(&r, &ask, 1, &answers[0]);
        rig_close(&r);
        assert_int_equal(answers[0].n_tokens, endless);
        assert_int_equal(answers[0].finish, FINISH_LENGTH);
        open_tiny(&r,
                  (struct rig_options){
                      .path = tiny[m], .context = 256, .pool_tokens = pools[m], .step_tokens = 7});
        const struct rig_ask four[] = {ask, ask, ask, ask};
        rig_ask(&r, four, 4, answers + 1);
        assert_true(m == 1 || rig_stats(&r).preemptions > 0);
        for (int i = 4; i >= 0; i--) {
            assert_true(rig_answer_equal(&answers[0], &answers[i]));
            rig_answer_finish(&answers[i]);
        }
        rig_close(&r);
        free(tokens);
    }
}

static void without_a_shift_the_context_ends_an_answer(void **state)
{
    (void)state;
    struct rig r;
    struct rig_answer answer = {0};
    int32_t *tokens = random_tokens(6, 40);
    open_tiny(&r, (struct rig_options){.context = 256});
    const struct rig_ask ask = ask_for(tokens, 40, -1);
    rig_ask(&r, &ask, 1, &answer);
    assert_int_equal(answer.n_tokens, 256 - 40);
    assert_int_equal(answer.finish, FINISH_LENGTH);
    rig_answer_finish(&answer);
    rig_close(&r);
    free(tokens);
}

/* ---- what it shows ---- */

static int64_t blocks_of(const json_t *debug, const char *group, const char *state)
{
    size_t i;
    json_t *g;
    json_array_foreach(json_object_get(debug, "groups"), i,
                       g) if (!strcmp(json_string_value(json_object_get(g, "name")),
                                      group)) return json_integer_value(json_object_get(g, state));
    return -1;
}

/* On a windowed model the blocks that a sequence holds stop growing at the window. */
static void the_debug_view_adds_up_and_windows_stop_growing(void **state)
{
    (void)state;
    struct rig r;
    struct rig_answer answer = {0};
    int32_t *tokens = random_tokens(7, 2000);
    int64_t most_window = 0, most_full = 0;
    open_tiny(&r, (struct rig_options){.path = "gemma3", .context = 4096, .step_tokens = 32});
    const struct rig_ask ask = ask_for(tokens, 2000, 500);
    struct job *j = rig_submit(&r, &ask);
    for (bool done = false; !done; done = rig_read(j, &answer)) {
        json_t *debug = engine_debug(r.engine, false);
        assert_non_null(debug);
        const json_t *running = json_array_get(json_object_get(debug, "running"), 0);
        const json_t *blocks = json_object_get(running, "blocks");
        int64_t window = json_integer_value(json_object_get(blocks, "window"));
        int64_t full = json_integer_value(json_object_get(blocks, "full"));
        most_window = window > most_window ? window : most_window;
        most_full = full > most_full ? full : most_full;
        if (running)
            assert_true(blocks_of(debug, "window", "held") == window &&
                        blocks_of(debug, "full", "held") == full);
        json_decref(debug);
    }
    assert_true(most_window > 0 && most_window <= 3);
    assert_true(most_full >= 2000 / KV_BLOCK_TOKENS);
    job_unref(j);
    rig_answer_finish(&answer);
    rig_check_idle(&r);
    json_t *debug = engine_debug(r.engine, true);
    assert_int_equal(json_array_size(json_object_get(debug, "running")), 0);
    assert_int_equal(json_integer_value(json_object_get(debug, "bytes_total")),
                     json_integer_value(json_object_get(debug, "bytes_free")) +
                         json_integer_value(json_object_get(debug, "bytes_cached")));
    json_decref(debug);
    rig_close(&r);
    free(tokens);
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The only way to see that nothing happens is to let time pass. */
static void an_idle_engine_uses_no_cpu(void **state)
{
    (void)state;
    struct rig r;
    struct rig_answer answer = {0};
    int32_t *tokens = random_tokens(8, 20);
    open_tiny(&r, (struct rig_options){.threads = 4});
    const struct rig_ask ask = ask_for(tokens, 20, 20);
    rig_ask(&r, &ask, 1, &answer);
    rig_check_idle(&r);
    uint64_t steps = rig_stats(&r).steps;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    int64_t before = cpu_ns();
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    assert_true(cpu_ns() - before < 3000000);
    assert_int_equal(rig_stats(&r).steps, steps);
    rig_answer_finish(&answer);
    rig_close(&r);
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_says_what_is_wrong_with_the_prompt),
        cmocka_unit_test(cancelled_work_ends_within_a_step),
        cmocka_unit_test(waiters_carry_on_when_their_producer_leaves),
        cmocka_unit_test(destroying_ends_everything),
        cmocka_unit_test(an_urgent_request_takes_memory_from_a_prompt),
        cmocka_unit_test(an_endless_answer_goes_on_past_the_context),
        cmocka_unit_test(without_a_shift_the_context_ends_an_answer),
        cmocka_unit_test(the_debug_view_adds_up_and_windows_stop_growing),
        cmocka_unit_test(an_idle_engine_uses_no_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
