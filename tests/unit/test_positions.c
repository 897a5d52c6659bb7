/* Position encodings against their published formulas, worked out here by other means. */
#include "attention.h"
#include "testlib.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double pi = 3.14159265358979323846;
static uint64_t rng;

static struct rope_config plain(int dims)
{
    return (struct rope_config){.dims = dims,
                                .base = 10000,
                                .factor = 1,
                                .yarn_beta_fast = 32,
                                .yarn_beta_slow = 1,
                                .yarn_ext_factor = 1,
                                .low_freq = 1,
                                .high_freq = 4,
                                .original_context = 8192};
}

static struct rope rope_of(const struct rope_config *c)
{
    struct rope r;
    struct err err = {0};
    if (rope_init(&r, c, &err))
        fail_msg("%s", err.text);
    return r;
}

static double plain_frequency(const struct rope_config *c, int i)
{
    return pow((double)c->base, -2.0 * i / c->dims);
}

static void assert_near(double got, double expected, double relative)
{
    if (!(fabs(got - expected) <= relative * fabs(expected)))
        fail_msg("%.17g, expected %.17g", got, expected);
}

/* ---- rotations ---- */

static void rope_rotates_each_pair_by_its_angle(void **state)
{
    (void)state;
    for (int neighbours = 0; neighbours < 2; neighbours++) {
        struct rope_config c = plain(20);
        c.neighbours = neighbours;
        struct rope r = rope_of(&c);
        assert_true(r.magnitude == 1);
        float table[20], x[2 * 24], before[2 * 24];
        for (int i = 0; i < 48; i++)
            before[i] = x[i] = test_uniform(&rng);
        rope_table(&r, 12345, table);
        rope_apply(&r, table, x, 2, 24);
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 10; i++) {
                int a = h * 24 + (neighbours ? 2 * i : i), b = neighbours ? a + 1 : a + 10;
                double angle = 12345 * plain_frequency(&c, i);
                assert_true(fabs(x[a] - (before[a] * cos(angle) - before[b] * sin(angle))) < 1e-6);
                assert_true(fabs(x[b] - (before[a] * sin(angle) + before[b] * cos(angle))) < 1e-6);
            }
            /* Elements past `dims` do not rotate. */
            assert_memory_equal(x + h * 24 + 20, before + h * 24 + 20, 4 * sizeof *x);
        }
        rope_finish(&r);
    }
}

/* Scores depend on the distance only, also far out. */
static void rope_scores_depend_on_distance(void **state)
{
    (void)state;
    struct rope_config c = plain(64);
    c.base = 1000000;
    struct rope r = rope_of(&c);
    float q[64], k[64], table[64];
    double first = 0;
    static const int64_t starts[] = {0, 1, 1000, 131072, 1000000};
    float q0[64], k0[64];
    for (int i = 0; i < 64; i++) {
        q0[i] = test_uniform(&rng);
        k0[i] = test_uniform(&rng);
    }
    for (int s = 0; s < 5; s++) {
        memcpy(q, q0, sizeof q);
        memcpy(k, k0, sizeof k);
        rope_table(&r, starts[s] + 37, table);
        rope_apply(&r, table, q, 1, 64);
        rope_table(&r, starts[s], table);
        rope_apply(&r, table, k, 1, 64);
        double score = 0;
        for (int i = 0; i < 64; i++)
            score += (double)q[i] * k[i];
        first = s ? first : score;
        assert_true(fabs(score - first) < 1e-5);
    }
    rope_finish(&r);
}

static void rope_divisors_divide_frequencies(void **state)
{
    (void)state;
    static const float divisors[] = {1, 2, 0.5f, 8};
    struct rope_config c = plain(8);
    c.divisors = divisors;
    struct rope r = rope_of(&c);
    for (int i = 0; i < 4; i++)
        assert_near(r.frequency[i], plain_frequency(&c, i) / divisors[i], 1e-14);
    rope_finish(&r);
}

static void rope_linear_divides_positions(void **state)
{
    (void)state;
    struct rope_config c = plain(16);
    struct rope once = rope_of(&c);
    c.scaling = ROPE_LINEAR;
    c.factor = 4;
    struct rope r = rope_of(&c);
    float a[16], b[16];
    rope_table(&once, 25, a);
    rope_table(&r, 100, b);
    for (int i = 0; i < 16; i++)
        assert_true(fabsf(a[i] - b[i]) < 1e-6f);
    rope_finish(&once);
    rope_finish(&r);
}

/* ---- scalings ---- */

/* The values of a published model: heads of 64, base 10000, factor 16, original context 4096: the
 * ramp goes from pair floor(10.46) to pair ceil(22.51). */
static void rope_yarn_keeps_fast_pairs_and_interpolates_slow_ones(void **state)
{
    (void)state;
    struct rope_config c = plain(64);
    c.scaling = ROPE_YARN;
    c.factor = 16;
    c.original_context = 4096;
    struct rope r = rope_of(&c);
    for (int i = 0; i < 32; i++) {
        double f = plain_frequency(&c, i), ramp = fmin(fmax((i - 10) / 13.0, 0), 1);
        assert_near(r.frequency[i], f * (1 - ramp) + f / 16 * ramp, 1e-12);
    }
    assert_near(r.magnitude, 0.1 * log(16) + 1, 1e-6);
    rope_finish(&r);
    c.attention_factor = 1.25f;
    r = rope_of(&c);
    assert_true(r.magnitude == 1.25f);
    rope_finish(&r);
    c.attention_factor = 0;
    c.yarn_ext_factor = 0;
    r = rope_of(&c);
    for (int i = 0; i < 32; i++)
        assert_near(r.frequency[i], plain_frequency(&c, i) / 16, 1e-12);
    rope_finish(&r);
}

/* Llama 3.1: base 500000, factor 8, bands at wavelengths 8192 and 2048. */
static void rope_llama3_has_three_bands(void **state)
{
    (void)state;
    struct rope_config c = plain(128);
    c.base = 500000;
    c.scaling = ROPE_LLAMA3;
    c.factor = 8;
    struct rope r = rope_of(&c);
    int bands[3] = {0};
    for (int i = 0; i < 64; i++) {
        double f = plain_frequency(&c, i), wave = 2 * pi / f, expected;
        double smooth = (8192 / wave - 1) / (4 - 1);
        int band = wave > 8192 ? 2 : wave < 2048 ? 0 : 1;
        expected = band == 2 ? f / 8 : band == 0 ? f : (1 - smooth) * f / 8 + smooth * f;
        assert_near(r.frequency[i], expected, 1e-12);
        bands[band]++;
    }
    assert_true(bands[0] && bands[1] && bands[2]);
    assert_true(r.magnitude == 1);
    rope_finish(&r);
}

/* Phi-3.5: 4096 stretched to 131072. */
static void rope_longrope_has_divisors_and_a_magnitude(void **state)
{
    (void)state;
    float divisors[48];
    for (int i = 0; i < 48; i++)
        divisors[i] = 1 + (float)i;
    struct rope_config c = plain(96);
    c.scaling = ROPE_LONGROPE;
    c.original_context = 4096;
    c.factor = 32;
    c.divisors = divisors;
    struct rope r = rope_of(&c);
    for (int i = 0; i < 48; i++)
        assert_near(r.frequency[i], plain_frequency(&c, i) / divisors[i], 1e-12);
    assert_near(r.magnitude, 1.1902380714238083, 1e-6); /* sqrt(1 + 5 / 12) */
    rope_finish(&r);
    c.factor = 1;
    r = rope_of(&c);
    assert_true(r.magnitude == 1);
    rope_finish(&r);
}

static void rope_refuses_nonsense(void **state)
{
    (void)state;
    static const float zero[8] = {1, 1, 0, 1, 1, 1, 1, 1};
    struct rope_config bad[10];
    for (int i = 0; i < 10; i++)
        bad[i] = plain(16);
    bad[0].dims = 15;
    bad[1].dims = 0;
    bad[2].base = NAN;
    bad[3].divisors = zero;
    bad[4].scaling = ROPE_LINEAR;
    bad[4].factor = 0;
    bad[5].scaling = ROPE_YARN;
    bad[5].original_context = 0;
    bad[6].scaling = ROPE_LLAMA3;
    bad[6].low_freq = bad[6].high_freq;
    bad[7].scaling = ROPE_SCALING_COUNT;
    bad[8].attention_factor = INFINITY;
    bad[9].scaling = ROPE_YARN;
    bad[9].yarn_beta_slow = 0;
    for (int i = 0; i < 10; i++) {
        struct rope r;
        struct err err = {0};
        assert_int_equal(rope_init(&r, &bad[i], &err), ERR_UNSUPPORTED);
        assert_true(strstr(err.text, "RoPE"));
        rope_finish(&r);
    }
}

static void scaling_names_are_all_there(void **state)
{
    (void)state;
    for (int i = 0; i < ROPE_SCALING_COUNT; i++)
        assert_non_null(rope_scaling_name((enum rope_scaling)i));
    assert_string_equal(rope_scaling_name(ROPE_YARN), "yarn");
}

/* ---- ALiBi, sinusoids, relative positions ---- */

static void alibi_slopes_follow_the_paper(void **state)
{
    (void)state;
    float s[12];
    alibi_slopes(8, 8, s);
    for (int h = 0; h < 8; h++)
        assert_true(s[h] == exp2f(-(float)(h + 1)));
    /* Twelve heads: those of 8, then every other one of 16. */
    alibi_slopes(12, 8, s);
    for (int h = 0; h < 8; h++)
        assert_true(s[h] == exp2f(-(float)(h + 1)));
    for (int h = 8; h < 12; h++)
        assert_near(s[h], exp2(-0.5 * (2 * (h - 8) + 1)), 1e-7);
    alibi_slopes(1, 8, s);
    assert_true(s[0] == 0.00390625f);
}

static void sinusoids_come_in_both_orders(void **state)
{
    (void)state;
    for (int width = 2; width < 12; width++) {
        float a[12], b[12];
        sinusoid(777, width, true, a);
        sinusoid(777, width, false, b);
        for (int i = 0; i < width / 2; i++) {
            double angle = 777 / pow(10000, 2.0 * i / width);
            assert_true(fabs(a[2 * i] - sin(angle)) < 1e-6);
            assert_true(fabs(a[2 * i + 1] - cos(angle)) < 1e-6);
            assert_true(b[i] == a[2 * i] && b[width / 2 + i] == a[2 * i + 1]);
        }
        if (width % 2)
            assert_true(a[width - 1] == b[width - 1] && fabsf(a[width - 1]) <= 1);
    }
}

static void relative_positions_are_clipped(void **state)
{
    (void)state;
    assert_int_equal(relative_clipped(5, 9, 3), 3);
    assert_int_equal(relative_clipped(9, 5, 3), -3);
    assert_int_equal(relative_clipped(9, 7, 3), -2);
    assert_int_equal(relative_clipped(-2147483647, 2147483647, 10), 10);
}

/* T5's 32 buckets up to 128, as the reference implementation lists them. */
static void relative_buckets_are_those_of_t5(void **state)
{
    (void)state;
    /* First distance of each bucket from 8 on, both directions: 8 * 16^(k/8). */
    static const int both[] = {8, 12, 16, 23, 32, 46, 64, 91};
    for (int k = 0; k < 8; k++) {
        assert_int_equal(relative_bucket(500, 500 - both[k], true, 32, 128), 8 + k);
        assert_int_equal(relative_bucket(500, 500 - both[k] + 1, true, 32, 128), 7 + k);
        assert_int_equal(relative_bucket(0, both[k], true, 32, 128), 16 + 8 + k);
    }
    assert_int_equal(relative_bucket(7, 7, true, 32, 128), 0);
    assert_int_equal(relative_bucket(7, 8, true, 32, 128), 17);
    assert_int_equal(relative_bucket(100000, 0, true, 32, 128), 15);
    /* One direction: 16 exact ones; what comes later is bucket 0. */
    assert_int_equal(relative_bucket(3, 9, false, 32, 128), 0);
    assert_int_equal(relative_bucket(15, 0, false, 32, 128), 15);
    assert_int_equal(relative_bucket(127, 0, false, 32, 128), 31);
    assert_int_equal(relative_bucket(128, 0, false, 32, 128), 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_rotates_each_pair_by_its_angle),
        cmocka_unit_test(rope_scores_depend_on_distance),
        cmocka_unit_test(rope_divisors_divide_frequencies),
        cmocka_unit_test(rope_linear_divides_positions),
        cmocka_unit_test(rope_yarn_keeps_fast_pairs_and_interpolates_slow_ones),
        cmocka_unit_test(rope_llama3_has_three_bands),
        cmocka_unit_test(rope_longrope_has_divisors_and_a_magnitude),
        cmocka_unit_test(rope_refuses_nonsense),
        cmocka_unit_test(scaling_names_are_all_there),
        cmocka_unit_test(alibi_slopes_follow_the_paper),
        cmocka_unit_test(sinusoids_come_in_both_orders),
        cmocka_unit_test(relative_positions_are_clipped),
        cmocka_unit_test(relative_buckets_are_those_of_t5),
    };
    rng = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
