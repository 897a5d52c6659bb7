#include "attention/attention.h"
#include "model/kernels/vec.h"

#include "testlib.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every operation at every level that this CPU has: the same bits as plain C, near a reference in
 * double precision, and not a byte beside its row. */

#define MOST  1500
#define GUARD 32 /* floats before and after a row */

static const int sizes[] = {1,  2,  3,   7,   8,   15,  16,  17,  31,  32,  33,   63,
                            64, 65, 100, 255, 256, 257, 511, 512, 513, 576, 1000, MOST};
#define N_SIZES ((int)(sizeof sizes / sizeof sizes[0]))

struct rows {
    float buffer[MOST + 2 * GUARD + 1];
    float *x;
};

static const uint32_t guard_bits = 0xdeadbeef;

/* A row at an odd address (in floats) between guards. */
static void rows_fill(struct rows *r, const float *x, int n, int shift)
{
    r->x = r->buffer + GUARD + shift;
    for (size_t i = 0; i < sizeof r->buffer / sizeof r->buffer[0]; i++)
        memcpy(&r->buffer[i], &guard_bits, sizeof guard_bits);
    memcpy(r->x, x, (size_t)n * sizeof *x);
}

static void rows_check(const struct rows *r, int n)
{
    for (const float *p = r->buffer; p < r->buffer + sizeof r->buffer / sizeof r->buffer[0]; p++)
        if (p < r->x || p >= r->x + n)
            assert_memory_equal(p, &guard_bits, sizeof guard_bits);
}

/* ---- the operations, all as x = op(x, y, weight, bias) ---- */

struct input {
    int n;
    float x[MOST], y[MOST], weight[MOST], bias[MOST];
    float factor, eps;
    bool has_weight, has_bias;
};

static void run_rms_norm(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->rms_norm(x, x, in->has_weight ? in->weight : NULL, in->n, in->eps);
}

static void run_layer_norm(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->layer_norm(x, x, in->has_weight ? in->weight : NULL, in->has_bias ? in->bias : NULL, in->n,
                    in->eps);
}

static void run_add(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->add(x, in->y, in->n);
}

static void run_scale(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->scale(x, in->factor, in->n);
}

static void run_silu(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->silu_mul(x, in->y, in->n);
}

static void run_gelu(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->gelu_mul(x, in->y, in->n);
}

static void run_softcap(const struct vec_ops *ops, const struct input *in, float *x)
{
    ops->softcap(x, in->factor, in->n);
}

/* ---- references: element i in double, and the size that its error is measured by ---- */

static double mean_of(const struct input *in)
{
    double sum = 0;
    for (int i = 0; i < in->n; i++)
        sum += (double)in->x[i];
    return sum / in->n;
}

static double variance_of(const struct input *in, double mean)
{
    double sum = 0;
    for (int i = 0; i < in->n; i++)
        sum += ((double)in->x[i] - mean) * ((double)in->x[i] - mean);
    return sum / in->n;
}

static double ref_rms_norm(const struct input *in, int i, double *size)
{
    double v = in->x[i] / sqrt(variance_of(in, 0) + (double)in->eps);
    *size = fabs(v *= in->has_weight ? (double)in->weight[i] : 1);
    return v;
}

static double ref_layer_norm(const struct input *in, int i, double *size)
{
    double mean = mean_of(in), r = 1 / sqrt(variance_of(in, mean) + (double)in->eps);
    double w = in->has_weight ? (double)in->weight[i] : 1;
    double b = in->has_bias ? (double)in->bias[i] : 0;
    /* the mean is rounded: to a size of the values it is taken from */
    *size = fabs(w) * r * (fabs((double)in->x[i]) + sqrt(variance_of(in, 0))) + fabs(b);
    return (in->x[i] - mean) * r * w + b;
}

static double ref_add(const struct input *in, int i, double *size)
{
    double v = (double)in->x[i] + (double)in->y[i];
    *size = fabs(v);
    return v;
}

static double ref_scale(const struct input *in, int i, double *size)
{
    double v = (double)in->x[i] * (double)in->factor;
    *size = fabs(v);
    return v;
}

static double ref_silu(const struct input *in, int i, double *size)
{
    double x = in->x[i], v = x / (1 + exp(-x)) * (double)in->y[i];
    *size = fabs(v) * (1 + fabs(x)); /* exp's argument is exact, but its result is steep */
    return v;
}

static double ref_gelu(const struct input *in, int i, double *size)
{
    double x = in->x[i], u = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
    double v = x / (1 + exp(-2 * u)) * (double)in->y[i];
    *size = fabs(v) * (1 + 4 * fabs(u));
    return v;
}

static double ref_softcap(const struct input *in, int i, double *size)
{
    double cap = in->factor;
    *size = cap; /* an absolute error: near 0 it is a difference of near numbers */
    return cap * tanh((double)in->x[i] / cap);
}

static const struct {
    const char *name;
    void (*run)(const struct vec_ops *ops, const struct input *in, float *x);
    double (*ref)(const struct input *in, int i, double *size);
    double tolerance; /* in float epsilons of the size */
} slots[] = {
    {"rms_norm", run_rms_norm, ref_rms_norm, 8},
    {"layer_norm", run_layer_norm, ref_layer_norm, 8},
    {"add", run_add, ref_add, 0.5},
    {"scale", run_scale, ref_scale, 0.5},
    {"silu_mul", run_silu, ref_silu, 4},
    {"gelu_mul", run_gelu, ref_gelu, 4},
    {"softcap", run_softcap, ref_softcap, 4},
};
/* Activations this small may be 0: their exponential, beyond e^88.7, is infinite. */
#define VANISHING 1e-34

#define N_SLOTS   (sizeof slots / sizeof slots[0])

static void fill(struct input *in, uint64_t *seed, int n)
{
    float spread = ldexpf(1.0f, (int)(test_random(seed) % 8) - 2);
    float shift = test_random(seed) % 2 ? test_uniform(seed) * 4 * spread : 0;
    in->n = n;
    for (int i = 0; i < n; i++) {
        in->x[i] = test_uniform(seed) * spread + shift;
        in->y[i] = test_uniform(seed) * spread;
        in->weight[i] = test_uniform(seed) * 2;
        in->bias[i] = test_uniform(seed);
    }
    in->factor = 0.5f + 32 * fabsf(test_uniform(seed));
    in->eps = test_random(seed) % 2 ? 1e-5f : 1e-6f;
    in->has_weight = test_random(seed) % 4 > 0;
    in->has_bias = test_random(seed) % 2;
}

static void run_slot(size_t slot, enum isa level, const struct input *in, int shift,
                     struct rows *out)
{
    attn_set_isa(level);
    rows_fill(out, in->x, in->n, shift);
    slots[slot].run(vec_ops(level), in, out->x);
    rows_check(out, in->n);
}

static void expect_near(size_t slot, const struct input *in, const float *x)
{
    for (int i = 0; i < in->n; i++) {
        double size, ref = slots[slot].ref(in, i, &size);
        double most = slots[slot].tolerance * (double)FLT_EPSILON * size + VANISHING;
        if (!(fabs((double)x[i] - ref) <= most))
            fail_msg("%s of %d: element %d (%.9g) is %.9g; %.9g was expected, give or take %.3g",
                     slots[slot].name, in->n, i, (double)in->x[i], (double)x[i], ref, most);
    }
}

static void every_level_gives_the_bits_of_plain_c(void **state)
{
    (void)state;
    static struct input in;
    static struct rows plain, other;
    uint64_t seed = test_seed();
    for (size_t slot = 0; slot < N_SLOTS; slot++)
        for (int i = 0; i < 4 * N_SIZES; i++) {
            fill(&in, &seed, sizes[i % N_SIZES]);
            run_slot(slot, ISA_C, &in, 0, &plain);
            expect_near(slot, &in, plain.x);
            for (int level = 1; level <= (int)cpu_isa(); level++)
                for (int shift = 0; shift < 2; shift++) {
                    run_slot(slot, (enum isa)level, &in, shift, &other);
                    if (memcmp(plain.x, other.x, (size_t)in.n * sizeof *plain.x))
                        fail_msg("%s of %d differs at level %s", slots[slot].name, in.n,
                                 isa_name((enum isa)level));
                }
        }
}

/* The contract's order of additions, spelled out. */
static void sums_run_in_32_lanes(void **state)
{
    (void)state;
    static struct input in;
    static struct rows out;
    uint64_t seed = test_seed();
    for (int i = 0; i < N_SIZES; i++) {
        float lane[32] = {0};
        fill(&in, &seed, sizes[i]);
        in.has_weight = false;
        for (int j = 0; j < (in.n + 31) / 32 * 32; j++) {
            float x = j < in.n ? in.x[j] : 0.0f;
            lane[j % 32] = fmaf(x, x, lane[j % 32]);
        }
        for (int n = 16; n > 0; n /= 2)
            for (int j = 0; j < n; j++)
                lane[j] += lane[j + n];
        float r = 1.0f / sqrtf(lane[0] / (float)in.n + in.eps);
        run_slot(0, cpu_isa(), &in, 0, &out);
        for (int j = 0; j < in.n; j++)
            assert_true(out.x[j] == in.x[j] * r);
    }
}

static void norms_may_write_elsewhere(void **state)
{
    (void)state;
    static struct input in;
    static struct rows in_place, out;
    uint64_t seed = test_seed();
    for (int level = 0; level <= (int)cpu_isa(); level++)
        for (size_t slot = 0; slot < 2; slot++) {
            fill(&in, &seed, 100);
            in.has_weight = in.has_bias = true;
            run_slot(slot, (enum isa)level, &in, 0, &in_place);
            rows_fill(&out, in.y, in.n, 0);
            if (slot == 0)
                vec_ops((enum isa)level)->rms_norm(out.x, in.x, in.weight, in.n, in.eps);
            else
                vec_ops((enum isa)level)->layer_norm(out.x, in.x, in.weight, in.bias, in.n, in.eps);
            assert_memory_equal(out.x, in_place.x, (size_t)in.n * sizeof *out.x);
            rows_check(&out, in.n);
        }
}

/* Where an exponential overflows or vanishes the limit comes out, not a NaN. */
static void activations_reach_their_limits(void **state)
{
    (void)state;
    static const float big[] = {50, 89, 100, 1000, 1e10f, 1e30f};
    for (int level = 0; level <= (int)cpu_isa(); level++)
        for (size_t i = 0; i < sizeof big / sizeof big[0]; i++) {
            const struct vec_ops *ops = vec_ops((enum isa)level);
            const float one[2] = {1, 1};
            attn_set_isa((enum isa)level);
            float silu[2] = {big[i], -big[i]}, gelu[2] = {big[i], -big[i]},
                  cap[2] = {big[i], -big[i]};
            ops->silu_mul(silu, one, 2);
            ops->gelu_mul(gelu, one, 2);
            ops->softcap(cap, 3, 2);
            assert_true(silu[0] == big[i] && fabsf(silu[1]) <= 1e-18f);
            assert_true(gelu[0] == big[i] && gelu[1] == 0);
            assert_true(cap[0] == 3 && cap[1] == -3);
        }
}

static void norms_of_nothing_are_nothing(void **state)
{
    (void)state;
    static struct input in;
    static struct rows out;
    memset(&in, 0, sizeof in);
    in.n = 33;
    in.eps = 1e-6f;
    for (int level = 0; level <= (int)cpu_isa(); level++)
        for (size_t slot = 0; slot < 2; slot++) {
            run_slot(slot, (enum isa)level, &in, 0, &out);
            for (int i = 0; i < in.n; i++)
                assert_true(out.x[i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_gives_the_bits_of_plain_c),
        cmocka_unit_test(sums_run_in_32_lanes),
        cmocka_unit_test(norms_may_write_elsewhere),
        cmocka_unit_test(activations_reach_their_limits),
        cmocka_unit_test(norms_of_nothing_are_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
