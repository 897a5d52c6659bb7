/* Each sampler against a naive definition of what it should do, by exact sets where it decides and
 * by frequencies where it draws. */
#include "testlib.h"

#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 40, DRAWS = 10000 };

static struct sampler *create(const struct sampler_params *p, const struct tokenizer *t,
                              int candidate)
{
    struct sampler *s = NULL;
    struct err err = {0};
    int code = sampler_create(p, t, candidate, &s, &err);
    if (code < 0)
        print_error("%s\n", err.text);
    assert_int_equal(code, 0);
    return s;
}

static int32_t pick(struct sampler *s, const float *logits, int n)
{
    float *copy = malloc((size_t)n * sizeof *copy);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    int32_t id = sampler_pick(s, copy, n);
    free(copy);
    return id;
}

static void logits_random(uint64_t *state, float *logits, int n, float spread)
{
    for (int i = 0; i < n; i++)
        logits[i] = test_uniform(state) * spread;
}

/* ---- the naive definitions ---- */

struct entry {
    int id;
    double logit, p, key;
};

static int by_p(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id - y->id;
}

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key ? 1 : -1) : x->id - y->id;
}

static void softmax(struct entry *e, int n)
{
    double total = 0;
    for (int i = 0; i < n; i++)
        total += e[i].p;
    for (int i = 0; i < n; i++)
        e[i].p /= total;
    qsort(e, (size_t)n, sizeof *e, by_p);
}

static int naive_typical(struct entry *e, int n, double typical)
{
    double entropy = 0, sum = 0;
    for (int i = 0; i < n; i++)
        entropy -= e[i].p > 0 ? e[i].p * log(e[i].p) : 0;
    for (int i = 0; i < n; i++)
        e[i].key = fabs(-log(e[i].p) - entropy);
    qsort(e, (size_t)n, sizeof *e, by_key);
    for (int i = 0; i < n; i++)
        if ((sum += e[i].p) >= typical)
            return i + 1;
    return n;
}

static int naive_top_p(const struct entry *e, int n, double top_p)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if ((sum += e[i].p) >= top_p)
            return i + 1;
    return n;
}

static int naive_sigma(struct entry *e, int n, double sigma)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < n; i++)
        mean += e[i].logit / n;
    for (int i = 0; i < n; i++)
        squares += (e[i].logit - mean) * (e[i].logit - mean) / n;
    int kept = 0;
    while (kept < n && e[kept].logit >= e[0].logit - sigma * sqrt(squares))
        kept++;
    return kept;
}

/* The distribution after everything but XTC; returns how many are left, the best first. */
static int naive(const struct sampler_params *p, const float *logits, int n, struct entry *e)
{
    for (int i = 0; i < n; i++)
        e[i] = (struct entry){i, logits[i], exp(logits[i] / p->temperature), 0};
    softmax(e, n);
    if (p->top_n_sigma > 0)
        n = naive_sigma(e, n, p->top_n_sigma);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    softmax(e, n);
    if (p->typical_p < 1)
        n = naive_typical(e, n, p->typical_p);
    softmax(e, n);
    if (p->top_p < 1)
        n = naive_top_p(e, n, p->top_p);
    softmax(e, n);
    while (p->min_p > 0 && e[n - 1].p < p->min_p * e[0].p)
        n--;
    softmax(e, n);
    return n;
}

/* Chi-squared of the counts against p[0, n); nothing may fall elsewhere. */
static void counts_check(const int *counts, const double *p, int n, int draws)
{
    double chi = 0;
    int degrees = -1;
    for (int i = 0; i < n; i++) {
        if (p[i] == 0)
            assert_int_equal(counts[i], 0);
        double expected = p[i] * draws;
        if (expected < 1)
            continue;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        degrees++;
    }
    /* Seven standard deviations: the seed differs from run to run. */
    if (chi > degrees + 7 * sqrt(2 * (degrees + 1)) + 15)
        fail_msg("chi squared %f with %d degrees", chi, degrees);
}

static void draws_count(struct sampler *s, const float *logits, int n, int draws, int *counts)
{
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int i = 0; i < draws; i++) {
        int32_t id = pick(s, logits, n);
        assert_in_range(id, 0, n - 1);
        counts[id]++;
        sampler_accept(s, id, true);
    }
}

static void frequencies_check(const struct sampler_params *p, const float *logits, int vocab)
{
    struct entry *e = calloc((size_t)vocab, sizeof *e);
    double *want = calloc((size_t)vocab, sizeof *want);
    int *counts = calloc((size_t)vocab, sizeof *counts), n = naive(p, logits, vocab, e);
    for (int i = 0; i < n; i++)
        want[e[i].id] = e[i].p;
    struct sampler *s = create(p, NULL, 0);
    int draws = vocab > VOCAB ? DRAWS / 4 : DRAWS;
    draws_count(s, logits, vocab, draws, counts);
    counts_check(counts, want, vocab, draws);
    sampler_destroy(s);
    free(e);
    free(want);
    free(counts);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    static const struct sampler_params rows[] = {
        {.temperature = 1, .top_p = 1, .typical_p = 1},
        {.temperature = 0.6, .top_p = 1, .typical_p = 1},
        {.temperature = 1.7, .top_p = 1, .typical_p = 1},
        {.temperature = 1, .top_p = 1, .typical_p = 1, .top_k = 7},
        {.temperature = 1, .top_p = 1, .typical_p = 1, .top_k = 1},
        {.temperature = 1, .top_p = 0.8, .typical_p = 1},
        {.temperature = 2, .top_p = 0.5, .typical_p = 1},
        {.temperature = 1, .top_p = 0, .typical_p = 1},
        {.temperature = 1, .top_p = 1, .typical_p = 1, .min_p = 0.1},
        {.temperature = 1, .top_p = 1, .typical_p = 0.6},
        {.temperature = 1, .top_p = 1, .typical_p = 1, .top_n_sigma = 1},
        {.temperature = 1.3, .top_p = 0.9, .typical_p = 0.95, .top_k = 20, .min_p = 0.05},
        {.temperature = 0.8, .top_p = 0.7, .typical_p = 1, .top_k = 30, .top_n_sigma = 1.5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampler_params p = rows[i];
        float logits[VOCAB];
        p.repetition_penalty = 1;
        p.seed = test_random(&random);
        logits_random(&random, logits, VOCAB, 3);
        frequencies_check(&p, logits, VOCAB);
    }
}

/* Large ones take another way: most candidates are never looked at. */
static void draws_follow_the_distribution_of_many(void **state)
{
    (void)state;
    enum { N = 5003 };
    uint64_t random = test_seed();
    float *logits = malloc(N * sizeof *logits);
    static const struct sampler_params rows[] = {
        {.temperature = 1, .top_p = 1, .typical_p = 1},
        {.temperature = 1.2, .top_p = 0.85, .typical_p = 1},
        {.temperature = 1, .top_p = 0.9, .typical_p = 1, .top_k = 12, .min_p = 0.02},
        {.temperature = 1, .top_p = 1, .typical_p = 1, .min_p = 0.01},
        {.temperature = 1, .top_p = 0.999, .typical_p = 0.7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampler_params p = rows[i];
        p.repetition_penalty = 1;
        p.seed = test_random(&random);
        logits_random(&random, logits, N, 2);
        for (int j = 0; j < 30; j++)
            logits[test_random(&random) % N] += 4 + 3 * test_uniform(&random);
        frequencies_check(&p, logits, N);
    }
    free(logits);
}

/* Which tokens can come at all, by many draws from nearly even odds. */
static void truncation_is_exact_in_large_vocabularies(void **state)
{
    (void)state;
    enum { N = 5003 };
    uint64_t random = test_seed();
    float *logits = malloc(N * sizeof *logits);
    struct entry *e = malloc(N * sizeof *e);
    static const struct sampler_params rows[] = {
        {.temperature = 4, .top_p = 1, .typical_p = 1, .top_k = 50},
        {.temperature = 3, .top_p = 0.02, .typical_p = 1},
        {.temperature = 1, .top_p = 0.9, .typical_p = 1, .min_p = 0.8},
        {.temperature = 2, .top_p = 1, .typical_p = 0.03},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampler_params p = rows[i];
        bool allowed[N] = {0};
        p.repetition_penalty = 1;
        p.seed = test_random(&random);
        logits_random(&random, logits, N, 6);
        int n = naive(&p, logits, N, e);
        for (int j = 0; j <= n; j++) /* one more: sums of floats may fall on either side */
            allowed[e[j].id] = true;
        struct sampler *s = create(&p, NULL, 0);
        for (int j = 0; j < 1000; j++) {
            int32_t id = pick(s, logits, N);
            assert_true(allowed[id]);
            sampler_accept(s, id, true);
        }
        sampler_destroy(s);
        assert_true(n > 1);
    }
    free(logits);
    free(e);
}

static void ties_go_to_the_lowest_ids(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    struct sampler_params p = sampler_params_default;
    int counts[VOCAB];
    double want[VOCAB] = {0};
    p.top_k = 4;
    for (int i = 0; i < 4; i++)
        want[i] = 0.25;
    struct sampler *s = create(&p, NULL, 0);
    draws_count(s, logits, VOCAB, DRAWS, counts);
    counts_check(counts, want, VOCAB, DRAWS);
    sampler_destroy(s);
    p.top_k = 0;
    p.top_p = 0.1; /* four of forty equals */
    s = create(&p, NULL, 0);
    draws_count(s, logits, VOCAB, DRAWS, counts);
    counts_check(counts, want, VOCAB, DRAWS);
    sampler_destroy(s);
    p.temperature = 0;
    logits[7] = logits[9] = 1;
    s = create(&p, NULL, 0);
    assert_int_equal(pick(s, logits, VOCAB), 7);
    sampler_destroy(s);
}

static void xtc_drops_all_top_choices_but_the_last(void **state)
{
    (void)state;
    float logits[VOCAB];
    double want[VOCAB] = {0};
    int counts[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -10;
    logits[3] = logf(0.5f);
    logits[5] = logf(0.3f);
    logits[8] = logf(0.15f);
    logits[9] = logf(0.05f);
    struct sampler_params p = sampler_params_default;
    p.xtc_probability = 0.4;
    p.xtc_threshold = 0.1;
    p.top_k = 4;
    want[3] = 0.6 * 0.5;
    want[5] = 0.6 * 0.3;
    want[8] = 0.6 * 0.15 + 0.4 * 0.75;
    want[9] = 0.6 * 0.05 + 0.4 * 0.25;
    struct sampler *s = create(&p, NULL, 0);
    draws_count(s, logits, VOCAB, DRAWS, counts);
    counts_check(counts, want, VOCAB, DRAWS);
    sampler_destroy(s);
}

/* ---- reproducibility ---- */

static void answer_make(const struct sampler_params *p, int candidate, int prompt, int32_t *out,
                        int n)
{
    uint64_t random = 42;
    float logits[VOCAB];
    struct sampler *s = create(p, NULL, candidate);
    for (int i = 0; i < prompt; i++)
        sampler_accept(s, i % VOCAB, false);
    for (int i = 0; i < n; i++) {
        logits_random(&random, logits, VOCAB, 1);
        out[i] = pick(s, logits, VOCAB);
        sampler_accept(s, out[i], true);
    }
    sampler_destroy(s);
}

static void seeds_repeat_and_candidates_differ(void **state)
{
    (void)state;
    struct sampler_params p = sampler_params_default;
    int32_t a[50], b[50];
    p.seed = UINT64_MAX - 5;
    answer_make(&p, 0, 0, a, 50);
    answer_make(&p, 0, 9, b, 50);
    assert_memory_equal(a, b, sizeof a);
    answer_make(&p, 1, 0, b, 50);
    assert_memory_not_equal(a, b, sizeof a);
    p.seed &= UINT32_MAX; /* seeds are never cut to 32 bits */
    answer_make(&p, 0, 0, b, 50);
    assert_memory_not_equal(a, b, sizeof a);
}

/* A fixed list: what one machine draws, every machine draws. */
static void draws_are_the_same_everywhere(void **state)
{
    (void)state;
    struct sampler_params p = sampler_params_default;
    static const int32_t want[12] = {5, 4, 8, 9, 18, 16, 18, 24, 21, 0, 5, 8};
    int32_t got[12];
    p.seed = 12345;
    p.temperature = 0.9;
    p.top_p = 0.95;
    answer_make(&p, 2, 0, got, 12);
    assert_memory_equal(got, want, sizeof got);
}

/* ---- penalties ---- */

/* The logit that a token has after all edits, found by how much must be added to another, unedited
 * token for it to win. */
static double logit_seen(struct sampler *s, const float *logits, int32_t token, int32_t rival)
{
    float low = -200, high = 200;
    for (int i = 0; i < 60; i++) {
        float copy[VOCAB], middle = (low + high) / 2;
        memcpy(copy, logits, sizeof copy);
        for (int j = 0; j < VOCAB; j++)
            if (j != token)
                copy[j] = -1000;
        copy[rival] = middle;
        if (sampler_pick(s, copy, VOCAB) == token)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static void penalties_count_what_they_should(void **state)
{
    (void)state;
    float logits[VOCAB];
    struct sampler_params p = sampler_params_default;
    p.temperature = 0;
    p.repetition_penalty = 1.5;
    p.presence_penalty = 0.25;
    p.frequency_penalty = 0.5;
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i % 2 ? 3.0f : -3.0f;
    struct sampler *s = create(&p, NULL, 0);
    sampler_accept(s, 1, false);
    sampler_accept(s, 1, false);
    sampler_accept(s, 2, false);
    sampler_accept(s, 3, true);
    sampler_accept(s, 3, true);
    sampler_accept(s, 4, true);
    sampler_accept(s, 5, false);
    sampler_accept(s, 5, true);
    static const struct {
        int32_t token;
        double want;
    } rows[] = {
        {1, 2},            /* the prompt alone: repetition only, positive logits are divided */
        {2, -4.5},         /* negative ones multiplied */
        {3, 2 - 1 - 0.25}, /* twice in the answer */
        {4, -4.5 - 0.75},  /* once */
        {5, 2 - 0.75},     /* once in the answer, whatever the prompt says */
        {7, 3},            /* never */
        {8, -3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_float_equal(logit_seen(s, logits, rows[i].token, 20), rows[i].want, 1e-4);
    sampler_destroy(s);
}

/* Straight from the definition: for each place where the end of the text has occurred before, how
 * long the repetition is, and which token followed. */
static void dry_naive(const int32_t *text, int n, int allowed, int *longest)
{
    for (int i = 0; i < VOCAB; i++)
        longest[i] = -1;
    for (int end = 1; end < n; end++) { /* text[0, end) ends as the whole text does */
        int length = 0;
        while (length < end && text[end - 1 - length] == text[n - 1 - length])
            length++;
        if (length >= allowed && length > longest[text[end]])
            longest[text[end]] = length;
    }
}

static void dry_agrees_with_its_definition(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    struct sampler_params p = sampler_params_default;
    p.temperature = 0;
    p.dry_multiplier = 0.8;
    p.dry_base = 1.5;
    for (int round = 0; round < 40; round++) {
        float logits[VOCAB] = {0};
        int32_t text[60];
        int longest[VOCAB], n = 1 + (int)(test_random(&random) % 60);
        p.dry_allowed_length = (int)(test_random(&random) % 4);
        p.dry_last_n = round % 2 ? -1 : 5 + (int)(test_random(&random) % 30);
        struct sampler *s = create(&p, NULL, 0);
        for (int i = 0; i < n; i++) {
            text[i] = (int32_t)(test_random(&random) % 3);
            sampler_accept(s, text[i], i > n / 2);
        }
        int window = p.dry_last_n < 0 || p.dry_last_n > n ? n : p.dry_last_n;
        dry_naive(text + n - window, window, p.dry_allowed_length, longest);
        for (int token = 0; token < 4; token++) {
            double want = longest[token] < 0 || window <= p.dry_allowed_length
                              ? 0
                              : -0.8 * pow(1.5, longest[token] - p.dry_allowed_length);
            double got = logit_seen(s, logits, token, 20);
            assert_true(fabs(got - (want < -200 ? -200 : want)) < 1e-3 + 1e-5 * fabs(want));
        }
        sampler_destroy(s);
    }
}

/* ---- bars ---- */

/* A tiny vocabulary of letters, with an end token. */
static struct tokenizer *letters_create(void)
{
    static const char *const texts[] = {"a", "b", "c", "d", "\xC4\x8A", ":", "e:", "</s>", "<x>"};
    static const size_t bytes[] = {1, 1, 1, 1, 2, 1, 2, 4, 3};
    static const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, 3, 3};
    struct tok_vocab v = {.kind = TOK_BPE,
                          .pre = "gpt-2",
                          .size = 9,
                          .texts = texts,
                          .text_bytes = bytes,
                          .types = types,
                          .bos = -1,
                          .eos = 7,
                          .eot = -1,
                          .unk = -1,
                          .pad = -1};
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(tok_create(&v, &t, &err), 0);
    return t;
}

static void ends_are_barred_while_they_must(void **state)
{
    (void)state;
    struct tokenizer *t = letters_create();
    float logits[9] = {0, 1, 2, 0, 0, 0, 0, 9, 5};
    static const int32_t stops[] = {8};
    struct sampler_params p = sampler_params_default;
    p.temperature = 0;
    p.min_tokens = 2;
    p.stop_ids = stops;
    p.n_stop_ids = 1;
    struct sampler *s = create(&p, t, 0);
    sampler_accept(s, 0, false); /* the prompt does not count */
    assert_int_equal(pick(s, logits, 9), 2);
    sampler_accept(s, 2, true);
    assert_int_equal(pick(s, logits, 9), 2);
    sampler_accept(s, 2, true);
    assert_int_equal(pick(s, logits, 9), 7);
    sampler_destroy(s);
    tok_destroy(t);
}

static void bad_words_are_never_completed(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    int32_t one[] = {5}, three[] = {1, 2, 3};
    struct tok_ids words[] = {{one, 1, 1}, {three, 3, 3}};
    struct sampler_params p = sampler_params_default;
    p.temperature = 0;
    p.bad_words = words;
    p.n_bad_words = 2;
    logits[5] = 9;
    logits[3] = 8;
    logits[4] = 7;
    struct sampler *s = create(&p, NULL, 0);
    assert_int_equal(pick(s, logits, VOCAB), 3);
    sampler_accept(s, 1, true);
    assert_int_equal(pick(s, logits, VOCAB), 3);
    sampler_accept(s, 2, true);
    assert_int_equal(pick(s, logits, VOCAB), 4);
    sampler_accept(s, 4, true);
    assert_int_equal(pick(s, logits, VOCAB), 3);
    sampler_destroy(s);
}

static void only_allowed_tokens_come(void **state)
{
    (void)state;
    float logits[VOCAB] = {0};
    static const int32_t allowed[] = {30, 4, 9, 4}, bias_ids[] = {9, 17};
    static const float bias[] = {1, 100};
    int counts[VOCAB];
    double want[VOCAB] = {0}, total = 2 + exp(1);
    struct sampler_params p = sampler_params_default;
    p.allowed = allowed;
    p.n_allowed = 4;
    p.bias_ids = bias_ids;
    p.bias = bias;
    p.n_bias = 2;
    want[4] = want[30] = 1 / total;
    want[9] = exp(1) / total;
    struct sampler *s = create(&p, NULL, 0);
    draws_count(s, logits, VOCAB, DRAWS, counts);
    counts_check(counts, want, VOCAB, DRAWS);
    sampler_destroy(s);
}

static void breakers_end_a_repetition(void **state)
{
    (void)state;
    struct tokenizer *t = letters_create();
    float logits[9] = {0.1f, 0, 5, 4.9f, 0, 0, 0, 0, 0};
    struct sampler_params p = sampler_params_default;
    p.temperature = 0;
    p.dry_multiplier = 1;
    struct sampler *s = create(&p, t, 0);
    static const int32_t text[] = {0, 1, 2, 3, 0, 1};
    for (int i = 0; i < 6; i++)
        sampler_accept(s, text[i], true);
    assert_int_equal(pick(s, logits, 9), 3); /* c would repeat "a b c" */
    sampler_destroy(s);
    s = create(&p, t, 0);
    static const int32_t broken[] = {6, 1, 2, 3, 6, 1}; /* "e:" ends every repetition */
    for (int i = 0; i < 6; i++)
        sampler_accept(s, broken[i], true);
    assert_int_equal(pick(s, logits, 9), 2);
    sampler_destroy(s);
    tok_destroy(t);
}

/* ---- odd input ---- */

static void strange_logits_do_no_harm(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0, 3e38f, -3e38f, 1};
    uint64_t random = test_seed();
    for (int round = 0; round < 3000; round++) {
        float logits[VOCAB];
        int n = 1 + (int)(test_random(&random) % VOCAB);
        int kinds = 1 + (int)(test_random(&random) % 7), first = (int)(test_random(&random) % 7);
        for (int i = 0; i < n; i++)
            logits[i] = odd[(first + (int)(test_random(&random) % (uint64_t)kinds)) % 7];
        struct sampler_params p = sampler_params_default;
        p.seed = test_random(&random);
        p.temperature = round % 3 ? 1 : 0;
        p.top_k = round % 4 ? 0 : 3;
        p.top_p = round % 5 ? 1 : 0.5;
        p.min_p = round % 6 ? 0 : 0.1;
        p.typical_p = round % 7 ? 1 : 0.5;
        p.top_n_sigma = round % 8 ? 0 : 1;
        p.xtc_probability = round % 9 ? 0 : 1;
        struct sampler *s = create(&p, NULL, 0);
        assert_in_range(pick(s, logits, n), 0, n - 1);
        sampler_destroy(s);
        struct token_logprob top[VOCAB];
        double sum;
        assert_int_equal(logprobs_top(logits, n, -1, top, &sum), n);
    }
}

static void wrong_settings_are_named(void **state)
{
    (void)state;
    struct sampler *s = NULL;
    struct err err = {0};
    struct tokenizer *t = letters_create();
    struct sampler_params p = sampler_params_default;
    p.temperature = -1;
    assert_int_equal(sampler_create(&p, t, 0, &s, &err), ERR_ARG);
    assert_non_null(strstr(err.text, "temperature"));
    p = sampler_params_default;
    p.top_p = NAN;
    assert_int_equal(sampler_create(&p, t, 0, &s, &err), ERR_ARG);
    static const int32_t ids[] = {9};
    static const float bias[] = {1};
    p = sampler_params_default;
    p.bias_ids = ids;
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(sampler_create(&p, t, 0, &s, &err), ERR_ARG);
    assert_non_null(strstr(err.text, "logit_bias"));
    tok_destroy(t);
}

/* ---- log-probabilities ---- */

static void logprobs_are_the_log_softmax(void **state)
{
    (void)state;
    enum { N = 3001 };
    uint64_t random = test_seed();
    float *logits = malloc(N * sizeof *logits);
    double sum;
    struct token_logprob *top = malloc(N * sizeof *top);
    struct entry *e = malloc(N * sizeof *e);
    logits_random(&random, logits, N, 12);
    logits[5] = logits[2999] = 12.5f;
    double total = 0;
    for (int i = 0; i < N; i++)
        total += exp(logits[i]);
    for (int i = 0; i < N; i++)
        e[i] = (struct entry){i, logits[i], logits[i], 0};
    qsort(e, N, sizeof *e, by_p);
    static const int counts[] = {0, 1, 2, 20, 2500, N, -1};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int n = logprobs_top(logits, N, counts[c], top, &sum);
        assert_int_equal(n, counts[c] < 0 ? N : counts[c]);
        assert_true(fabs(sum - log(total)) < 2e-6);
        assert_true(logits_log_sum(logits, N) == sum);
        for (int i = 0; i < n; i++) {
            assert_int_equal(top[i].id, e[i].id);
            assert_true(fabs(top[i].logprob - (e[i].logit - log(total))) < 3e-6);
        }
    }
    free(logits);
    free(top);
    free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draws_follow_the_distribution_of_many),
        cmocka_unit_test(truncation_is_exact_in_large_vocabularies),
        cmocka_unit_test(ties_go_to_the_lowest_ids),
        cmocka_unit_test(xtc_drops_all_top_choices_but_the_last),
        cmocka_unit_test(seeds_repeat_and_candidates_differ),
        cmocka_unit_test(draws_are_the_same_everywhere),
        cmocka_unit_test(penalties_count_what_they_should),
        cmocka_unit_test(dry_agrees_with_its_definition),
        cmocka_unit_test(ends_are_barred_while_they_must),
        cmocka_unit_test(bad_words_are_never_completed),
        cmocka_unit_test(only_allowed_tokens_come),
        cmocka_unit_test(breakers_end_a_repetition),
        cmocka_unit_test(strange_logits_do_no_harm),
        cmocka_unit_test(wrong_settings_are_named),
        cmocka_unit_test(logprobs_are_the_log_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
