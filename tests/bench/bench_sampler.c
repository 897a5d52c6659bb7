/* What a choice costs beside the step that computes its logits: sampler_pick and logprobs_top by
 * vocabulary and settings. The checksum is of all tokens chosen: it is the same at every level.
 *
 *   bench_sampler [LEVEL] */
#include "cpu.h"
#include "mem.h"
#include "model.h"
#include "model/sampler.h"
#include "testlib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 16, ROUNDS = 4 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The sum of four uniform numbers is near enough to a bell; `peaks` of them stand out as those of a
 * trained model do. */
static void fill(float *rows, int n, int peaks, uint64_t *seed)
{
    for (int r = 0; r < ROWS; r++, rows += n) {
        for (int i = 0; i < n; i++)
            rows[i] = 3 * (test_uniform(seed) + test_uniform(seed) + test_uniform(seed) +
                           test_uniform(seed));
        for (int i = 0; i < peaks; i++)
            rows[test_random(seed) % (uint64_t)n] += 8 + 2 * test_uniform(seed);
    }
}

struct setting {
    const char *name;
    double temperature, top_p, min_p;
    int top_k;
};
static const struct setting settings[] = {
    {"greedy", 0, 1, 0, 0},    {"temperature 1", 1, 1, 0, 0},     {"top_p 0.95", 0.7, 0.95, 0, 0},
    {"top_k 40", 1, 1, 0, 40}, {"top_k 40, p", 0.8, 0.95, 0, 40}, {"min_p 0.05", 1, 1, 0.05, 0},
};

static void measure(const struct setting *set, const float *rows, float *copy, int n,
                    const char *kind)
{
    struct sampler_params p = sampler_params_default;
    struct err err;
    uint64_t sum = 14695981039346656037u;
    double least = 1e9;
    p.temperature = set->temperature;
    p.top_p = set->top_p;
    p.min_p = set->min_p;
    p.top_k = set->top_k;
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(copy, rows, (size_t)n * ROWS * sizeof *copy);
        double spent = 0;
        for (int r = 0; r < ROWS; r++) {
            struct sampler *s;
            p.seed = (uint64_t)(round * ROWS + r);
            if (sampler_create(&p, NULL, 0, &s, &err))
                exit(1);
            double start = now();
            int32_t id = sampler_pick(s, copy + (size_t)r * (size_t)n, n);
            spent += now() - start;
            sum = (sum ^ (uint64_t)id) * 1099511628211u;
            sampler_destroy(s);
        }
        least = spent < least ? spent : least;
    }
    printf("%8d  %-7s %-14s %9.1f us  %016llx\n", n, kind, set->name, least / ROWS * 1e6,
           (unsigned long long)sum);
}

static void measure_top(const float *rows, int n, const char *kind)
{
    struct token_logprob top[5];
    double least = 1e9, log_sum, total = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int r = 0; r < ROWS; r++) {
            logprobs_top(rows + (size_t)r * (size_t)n, n, 5, top, &log_sum);
            total += log_sum + (double)top[4].logprob;
        }
        least = now() - start < least ? now() - start : least;
    }
    printf("%8d  %-7s %-14s %9.1f us  %a\n", n, kind, "logprobs 5", least / ROWS * 1e6, total);
}

int main(void)
{
    static const int sizes[] = {49152, 128256, 262144};
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int peaks = 40; peaks >= 0; peaks -= 40) {
            int n = sizes[i];
            float *rows = mem_alloc((size_t)n * ROWS, sizeof *rows);
            float *copy = mem_alloc((size_t)n * ROWS, sizeof *copy);
            if (!rows || !copy)
                return 1;
            fill(rows, n, peaks, &seed);
            for (size_t s = 0; s < sizeof settings / sizeof *settings; s++)
                measure(&settings[s], rows, copy, n, peaks ? "peaked" : "flat");
            measure_top(rows, n, peaks ? "peaked" : "flat");
            mem_free(rows);
            mem_free(copy);
        }
    return 0;
}
