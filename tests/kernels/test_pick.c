#include "cpu.h"
#include "model/kernels/pick.h"
#include "testlib.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The row operations of choosing a token: every level gives the bits of plain C, plain C is near
 * double precision and sums in the order that pick.h says, and nobody touches a byte beside a row.
 */

enum { MOST = 3000, GUARD = 32 };

static const int sizes[] = {1,    2,    3,    4,    5,    15,   16,   17,   31,  32,
                            33,   63,   64,   65,   127,  255,  256,  257,  260, 1000,
                            1023, 1024, 1025, 1279, 1280, 2047, 2048, 2049, MOST};
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))

struct row {
    float buffer[MOST + 2 * GUARD];
    float *w;
    int n;
};

static const uint32_t guard_bits = 0xffdeadbe; /* NaN: whoever reads it shows it */

static void row_fill(struct row *r, const float *w, int n)
{
    r->w = r->buffer + GUARD;
    r->n = n;
    for (int i = 0; i < MOST + 2 * GUARD; i++)
        memcpy(&r->buffer[i], &guard_bits, sizeof guard_bits);
    if (w)
        memcpy(r->w, w, (size_t)n * sizeof *w);
}

static void row_check(const struct row *r)
{
    for (const float *p = r->buffer; p < r->buffer + MOST + 2 * GUARD; p++)
        if (p < r->w || p >= r->w + r->n)
            assert_memory_equal(p, &guard_bits, sizeof guard_bits);
}

/* Logits, among them what a broken model may give. */
static void logits_fill(uint64_t *seed, float *w, int n, bool odd)
{
    static const float odds[] = {NAN, -INFINITY, 0.0f, -0.0f, 1e30f, -1e30f, 1e-40f, -3e38f};
    for (int i = 0; i < n; i++) {
        w[i] = 40 * test_uniform(seed);
        if (odd && test_random(seed) % 5 == 0)
            w[i] = odds[test_random(seed) % (sizeof odds / sizeof *odds)];
    }
}

static float plain_most(const float *w, int n)
{
    float most = -INFINITY;
    for (int i = 0; i < n; i++)
        most = w[i] > most ? w[i] : most;
    return most;
}

static void the_largest_of_each_block_is_found(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    float w[MOST];
    struct row in, out;
    for (int level = ISA_C; level <= (int)cpu_isa(); level++)
        for (int s = 0; s < N_SIZES; s++)
            for (int block = 1; block <= sizes[s]; block += 1 + block / 2) {
                int n = sizes[s], blocks = (n + block - 1) / block;
                logits_fill(&seed, w, n, s % 2);
                row_fill(&in, w, n);
                row_fill(&out, NULL, blocks);
                pick_ops_of((enum isa)level)->most(in.w, n, block, out.w);
                row_check(&out);
                for (int b = 0; b < blocks; b++) {
                    int left = n - b * block;
                    float most = plain_most(w + b * block, left < block ? left : block);
                    assert_true(out.w[b] == most);
                }
            }
}

static void exp_is_near_and_the_same_everywhere(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    float w[MOST];
    struct row plain, other;
    for (int s = 0; s < N_SIZES; s++) {
        int n = sizes[s];
        float scale = 0.5f + fabsf(test_uniform(&seed));
        logits_fill(&seed, w, n, s % 2);
        float most = plain_most(w, n);
        row_fill(&plain, w, n);
        pick_ops_of(ISA_C)->exp(plain.w, plain.w, n, most, scale);
        row_check(&plain);
        for (int i = 0; i < n; i++) {
            float x = (w[i] - most) * scale;
            double right = x > -87 ? exp((double)x) : 0; /* NaN: 0 */
            assert_true(fabs((double)plain.w[i] - right) <= 1e-6 * right);
        }
        for (int level = ISA_C + 1; level <= (int)cpu_isa(); level++) {
            row_fill(&other, NULL, n);
            pick_ops_of((enum isa)level)->exp(other.w, w, n, most, scale);
            row_check(&other);
            assert_memory_equal(other.w, plain.w, (size_t)n * sizeof *w);
        }
    }
}

/* The order that pick.h describes, written down. */
static double described_sum(const float *w, int n)
{
    double lane[4] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 4] += (double)w[i];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static void sums_run_in_the_order_described(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct row in;
    float w[MOST];
    double sums[MOST / PICK_BLOCK + 2];
    for (int level = ISA_C; level <= (int)cpu_isa(); level++)
        for (int s = 0; s < N_SIZES; s++) {
            int n = sizes[s], blocks = (n + PICK_BLOCK - 1) / PICK_BLOCK;
            for (int i = 0; i < n; i++)
                w[i] = expf(20 * test_uniform(&seed));
            row_fill(&in, w, n);
            sums[blocks] = -1;
            pick_ops_of((enum isa)level)->sums(in.w, n, sums);
            assert_true(sums[blocks] == -1);
            for (int b = 0; b < blocks; b++) {
                int left = n - b * PICK_BLOCK;
                double sum = described_sum(w + b * PICK_BLOCK,
                                           left < PICK_BLOCK ? left : PICK_BLOCK);
                assert_memory_equal(&sums[b], &sum, sizeof sum);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_of_each_block_is_found),
        cmocka_unit_test(exp_is_near_and_the_same_everywhere),
        cmocka_unit_test(sums_run_in_the_order_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
