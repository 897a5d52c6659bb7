/* soak MODEL [MINUTES]: random mixes of requests through engines of random shape, each answer
 * compared bit for bit with what the request says alone on a cold cache with one thread. */

#include "testlib.h"

#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REQUESTS  24
#define MOST      20 /* at once */
#define LONGEST   640
#define KV_CHOICE 2

static const enum kv_type kv_types[KV_CHOICE] = {KV_F16, KV_Q8_0};

struct soak {
    const char *path;
    double seconds;
    time_t end; /* set when the first answers to compare with are there */
    uint64_t random;
    int vocabulary;
    int32_t tokens[REQUESTS][LONGEST];
    struct rig_ask asks[REQUESTS];
    struct rig_answer expected[KV_CHOICE][REQUESTS];
    uint64_t answers, cancelled, preemptions, cached, engines;
};

static struct soak soak;

static int pick(struct soak *s, int n)
{
    return (int)(test_random(&s->random) % (uint64_t)n);
}

/* ---- what is asked ---- */

/* A third of the prompts begin like an earlier one. */
static void fill(struct soak *s, int i)
{
    struct rig_ask *a = &s->asks[i];
    int n = 1 + pick(s, i % 4 == 0 ? 30 : i % 4 == 1 ? LONGEST : 150), from = i ? pick(s, i) : 0;
    int common = i && pick(s, 3) == 0 ? pick(s, s->asks[from].n + 1) : 0;
    n = n > common ? n : common + 1 < LONGEST ? common + 1 : LONGEST;
    memcpy(s->tokens[i], s->tokens[from], (size_t)common * sizeof(int32_t));
    for (int j = common; j < n; j++)
        s->tokens[i][j] = pick(s, s->vocabulary);
    *a = (struct rig_ask){
        .tokens = s->tokens[i],
        .n = n,
        .max_tokens = 1 +
                      pick(s, i % 4 == 0 ? 250 : 40), /* short prompts run out of memory later */
        .temperature = i % 2 ? 0.9 : 0,
        .top_p = i % 4 == 1 ? 0.9 : 1,
        .repetition_penalty = i % 5 == 2 ? 1.2 : 1,
        .seed = test_random(&s->random),
        .logprobs = i % 3 ? 4 : JOB_NO_LOGPROBS,
        .prompt_logprobs = i % 8 == 3 ? 1 : JOB_NO_LOGPROBS,
    };
}

static void expect(struct soak *s, int kv)
{
    struct rig r;
    const struct rig_options o = {
        .path = s->path, .kv_type = kv_types[kv], .context = 1024, .no_sharing = true};
    rig_open(&r, &o);
    for (int i = 0; i < REQUESTS; i++)
        rig_ask(&r, &s->asks[i], 1, &s->expected[kv][i]);
    rig_close(&r);
}

/* ---- one engine ---- */

static struct rig_options random_shape(struct soak *s, int kv)
{
    static const int steps[] = {0, 0, 512, 128, 33, 32, 31, 7, 2, 1};
    return (struct rig_options){
        .path = s->path,
        .kv_type = kv_types[kv],
        .context = 1024,
        .threads = 1 + pick(s, 4),
        .step_tokens = steps[pick(s, 10)],
        .most_sequences = pick(s, 3) ? 0 : 1 + pick(s, 8),
        .pool_tokens = pick(s, 3) ? 700 + pick(s, 700) : 0,
        .no_sharing = pick(s, 6) == 0,
        .itl_target_ms = 1 + pick(s, 300),
    };
}

static void check(struct soak *s, int kv, int i, struct rig_answer *found, bool may_be_cut)
{
    bool cut = found->finish == FINISH_CANCELLED ||
               found->finish == FINISH_NONE; /* or never begun */
    if (cut && may_be_cut)
        s->cancelled++;
    else if (!rig_answer_equal(&s->expected[kv][i], found))
        fail_msg("request %d (prompt of %d) says something else", i, s->asks[i].n);
    s->answers++;
    s->cached += (uint64_t)found->cached;
    rig_answer_finish(found);
}

static void one_mix(struct soak *s, struct rig *r, int kv)
{
    struct job *jobs[MOST];
    int which[MOST], n = 1 + pick(s, MOST);
    bool cut[MOST];
    for (int i = 0; i < n; i++) {
        which[i] = pick(s, REQUESTS);
        struct rig_ask ask = s->asks[which[i]];
        ask.salt = (uint64_t)pick(s, 2);
        ask.tenant = (uint64_t)pick(s, 3);
        ask.priority = pick(s, 3) - 1;
        jobs[i] = rig_submit(r, &ask);
        for (int rings = pick(s, 6); i + 1 < n && rings > 0; rings--)
            rig_wait_ring(r); /* the others come later */
    }
    for (int i = 0; i < n; i++) {
        cut[i] = pick(s, 12) == 0;
        if (cut[i])
            engine_cancel(r->engine, jobs[i]);
    }
    for (int i = 0; i < n; i++) {
        struct rig_answer found = {0};
        rig_finish(r, jobs[i], &found);
        check(s, kv, which[i], &found, cut[i]);
    }
    rig_check_idle(r);
}

static void one_engine(struct soak *s)
{
    int kv = pick(s, KV_CHOICE);
    if (!s->expected[kv][0].n_tokens)
        expect(s, kv);
    if (!s->end)
        s->end = time(NULL) + (time_t)s->seconds;
    struct rig_options o = random_shape(s, kv);
    struct rig r;
    rig_open(&r, &o);
    for (int mixes = 1 + pick(s, 5); mixes > 0 && time(NULL) < s->end; mixes--)
        one_mix(s, &r, kv);
    s->preemptions += rig_stats(&r).preemptions;
    s->engines++;
    rig_close(&r);
}

static void every_answer_is_the_same(void **state)
{
    struct soak *s = *state;
    struct model *m;
    struct err err;
    const struct model_options options = {.path = s->path, .window = -1, .kernels = "auto"};
    if (model_open(&options, &m, &err))
        fail_msg("%s", err.text);
    s->vocabulary = model_plan(m)->vocabulary;
    model_destroy(m);
    s->random = test_seed();
    for (int i = 0; i < REQUESTS; i++)
        fill(s, i);
    do
        one_engine(s);
    while (time(NULL) < s->end);
    printf("%llu answers of %llu engines were the same bytes: %llu cancelled, %llu preemptions, "
           "%llu prompt tokens from the cache\n",
           (unsigned long long)s->answers, (unsigned long long)s->engines,
           (unsigned long long)s->cancelled, (unsigned long long)s->preemptions,
           (unsigned long long)s->cached);
    for (int i = 0; i < KV_CHOICE * REQUESTS; i++)
        rig_answer_finish(&s->expected[i / REQUESTS][i % REQUESTS]);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: soak MODEL [MINUTES]\n");
        return 2;
    }
    soak.path = argv[1];
    soak.seconds = 60 * (argc > 2 ? strtod(argv[2], NULL) : 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_answer_is_the_same, &soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
