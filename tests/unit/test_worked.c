/* Worked examples of published lessons (tests/data/worked.json), through the functions that serve:
 * what a reader of those lessons computes by hand must come out of the real cache and kernels. */
#include "attention.h"
#include "mem.h"
#include "testlib.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRINTED 0.00051 /* three decimals are printed */

static json_t *root;
static struct pool *pool;

static int load(void **state)
{
    (void)state;
    json_error_t error;
    root = json_load_file(TEST_DATA "/worked.json", 0, &error);
    if (!root) {
        printf("%s:%d: %s\n", error.source, error.line, error.text);
        return -1;
    }
    return pool_create(2, 0, &pool, NULL);
}

static int unload(void **state)
{
    (void)state;
    pool_destroy(pool);
    json_decref(root);
    return 0;
}

static json_t *example(const char *section, const char *key)
{
    json_t *v = json_object_get(json_object_get(root, section), key);
    assert_non_null(v);
    return v;
}

static double at(const json_t *rows, size_t i, size_t j)
{
    json_t *v = json_array_get(json_array_get(rows, i), j);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void read_row(const json_t *row, float *out)
{
    for (size_t i = 0; i < json_array_size(row); i++)
        out[i] = (float)json_number_value(json_array_get(row, i));
}

static void read_matrix(const json_t *rows, float *out)
{
    for (size_t i = 0; i < json_array_size(rows); i++)
        read_row(json_array_get(rows, i), out + 4 * i);
}

static void assert_near(double got, double printed, double tolerance)
{
    if (!(fabs(got - printed) <= tolerance))
        fail_msg("%.6f, printed %.6f", got, printed);
}

static void assert_matrix(const float *got, const json_t *printed)
{
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 4; j++)
            assert_near(got[4 * i + j], at(printed, i, j), PRINTED);
}

/* Four positions, one kv head of size 4, with values [4][4] or, for NULL, axes: then the output is
 * the weights. */
static void attend(struct attn_shape *s, const float *q, const float *k, const float *v, float *out)
{
    static const float axes[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    struct err err;
    s->kv_heads = 1;
    s->key_size = s->value_size = 4;
    assert_int_equal(attn_check(s, &err), 0);
    void *block = mem_alloc(1, attn_block_bytes(s));
    void *scratch = mem_alloc(1, attn_scratch_bytes(s, 4, 4, pool_threads(pool)));
    assert_true(block && scratch);
    for (int p = 0; p < 4; p++)
        attn_store(s, block, p, k + 4 * p, (v ? v : axes) + 4 * p);
    size_t row = 4 * (size_t)s->heads;
    struct attn_span span = {
        .q = q, .out = out, .q_stride = row, .out_stride = row, .n = 4, .blocks = &block};
    attn_run(pool, s, &span, 1, scratch);
    mem_free(scratch);
    mem_free(block);
}

static void causal_attention(void **state)
{
    (void)state;
    float q[16], k[16], v[16], out[16];
    read_matrix(example("attention_causal", "Q"), q);
    read_matrix(example("attention_causal", "K"), k);
    read_matrix(example("attention_causal", "V"), v);
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        /* Small whole numbers: exact in every type but q8_0, whose steps of max / 127 show. */
        if (type == KV_Q8_0)
            continue;
        struct attn_shape s = {.heads = 1, .type = (enum kv_type)type, .scale = 0.5f};
        attend(&s, q, k, v, out);
        assert_matrix(out, example("attention_causal", "output"));
        attend(&s, q, k, NULL, out);
        assert_matrix(out, example("attention_causal", "weights"));
    }
}

/* Keys are axes and a query is its row of logits, so that scores are the logits. */
static void alibi(void **state)
{
    (void)state;
    const json_t *biased = example("alibi", "biased");
    float slopes[4], printed[4], logits[16], q[64] = {0}, out[64];
    static const float axes[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    alibi_slopes(4, 8, slopes);
    read_row(example("alibi", "slopes"), printed);
    assert_memory_equal(slopes, printed, sizeof slopes);
    read_matrix(example("alibi", "logits"), logits);
    for (size_t p = 0; p < 4; p++)
        memcpy(q + 16 * p, logits + 4 * p, 4 * sizeof *q);
    struct attn_shape s = {.heads = 4, .type = KV_F32, .scale = 1, .slopes = slopes};
    attend(&s, q, axes, NULL, out);
    for (size_t p = 0; p < 4; p++) {
        double sum = 0;
        for (size_t j = 0; j <= p; j++)
            sum += exp(at(biased, p, j));
        for (size_t j = 0; j < 4; j++) /* head 1 of the lesson is the first */
            assert_near(out[16 * p + j], j <= p ? exp(at(biased, p, j)) / sum : 0, 1e-6);
    }
}

static void sinusoidal(void **state)
{
    (void)state;
    float out[16];
    for (int p = 0; p < 4; p++)
        sinusoid(p, 4, true, out + 4 * p);
    assert_matrix(out, example("sinusoidal", "PE"));
}

static void relative(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            assert_int_equal(relative_clipped(i, j, 2),
                             (int)at(example("relative_clipped", "clipped"), (size_t)i, (size_t)j));
}

static void rotate(int dims, int64_t position, float *x)
{
    struct rope_config c = {.dims = dims, .neighbours = true, .base = 10000};
    struct rope r;
    struct err err;
    float table[8];
    assert_int_equal(rope_init(&r, &c, &err), 0);
    rope_table(&r, position, table);
    rope_apply(&r, table, x, 1, dims);
    rope_finish(&r);
}

static void rotation(void **state)
{
    (void)state;
    float q[4], printed[4];
    read_row(example("rope", "q"), q);
    read_row(example("rope", "rotated"), printed);
    rotate(4, 3, q);
    /* The lesson went on with sines and cosines of few digits: it prints 2.03 for 2.0291. */
    for (int i = 0; i < 4; i++)
        assert_near(q[i], printed[i], 0.001);
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void rotation_by_distance(void **state)
{
    (void)state;
    const json_t *scores = example("rope_offset", "scores");
    for (size_t i = 0; i < json_array_size(scores); i++) {
        float q[8], k[8];
        read_row(example("rope_offset", "q"), q);
        read_row(example("rope_offset", "k"), k);
        rotate(8, (int64_t)at(scores, i, 0), q);
        rotate(8, (int64_t)at(scores, i, 1), k);
        assert_near(dot(q, k, 8), at(scores, i, 2), 2e-6);
        assert_near(sqrt(dot(q, q, 8)), json_number_value(example("rope_offset", "norm_q")), 1e-6);
    }
}

/* The cache of one layer of the published 70B shapes, by the real size of a block. */
static double layer_bytes(int kv_heads, int tokens)
{
    struct attn_shape s = {.heads = 64,
                           .kv_heads = kv_heads,
                           .key_size = 128,
                           .value_size = 128,
                           .type = KV_F16,
                           .scale = 1};
    return (double)attn_block_bytes(&s) * (tokens / 32);
}

static void cache_sizes(void **state)
{
    (void)state;
    json_t *layer = example("kv_bytes", "llama2_70b_64_heads_per_layer");
    assert_true(layer_bytes(64, 4096) == json_number_value(json_object_get(layer, "total")));
    json_t *table = example("kv_bytes", "layers80_head128_f16_GB");
    static const struct {
        const char *name;
        int kv_heads, window;
    } rows[] = {{"multi-head 64", 64, 0},
                {"grouped 8", 8, 0},
                {"multi-query 1", 1, 0},
                {"grouped 8, window 4096", 8, 4096}};
    static const int contexts[] = {8192, 131072};
    for (size_t i = 0; i < 4; i++) {
        for (size_t c = 0; c < 2; c++) {
            int tokens = rows[i].window ? rows[i].window : contexts[c];
            double printed = json_number_value(
                json_array_get(json_object_get(table, rows[i].name), c));
            assert_near(80 * layer_bytes(rows[i].kv_heads, tokens) / 1e9, printed, 0.051);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_attention), cmocka_unit_test(alibi),
        cmocka_unit_test(sinusoidal),       cmocka_unit_test(relative),
        cmocka_unit_test(rotation),         cmocka_unit_test(rotation_by_distance),
        cmocka_unit_test(cache_sizes),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
