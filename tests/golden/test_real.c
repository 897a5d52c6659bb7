/* Published files against exact float answers: tokens, log-probabilities on the exact path and on
 * the one that serves by default, greedy continuations where the lead is not tiny. The files are
 * named by the environment (ROPEWALK_TEST_MODEL, ROPEWALK_TEST_GEMMA); what is not named is
 * skipped. */

#include "testlib.h"

#include "runner.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY_LEAD 0.01

static json_t *answers;
static const char *model_path;

struct distance {
    double mean, most;
};

/* With sanitizers (ROPEWALK_TEST_SHORT) one short text must do. */
static bool left_out(const char *name)
{
    return getenv("ROPEWALK_TEST_SHORT") && strcmp(name, "numbers");
}

static void open_model(struct runner *r, const char *kernels, enum kv_type kv, int activation_bits)
{
    const struct model_options options = {.path = model_path,
                                          .window = -1,
                                          .kernels = kernels,
                                          .kv = kv_type_name(kv),
                                          .activation_bits = activation_bits,
                                          .threads = 2,
                                          .context = 2048};
    runner_open(r, &options, (size_t)256 << 20);
}

static int read_ids(const json_t *array, int32_t **out)
{
    int n = (int)json_array_size(array);
    *out = calloc((size_t)n + 1, sizeof **out);
    for (int i = 0; i < n; i++)
        (*out)[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return n;
}

static struct distance compare_text(struct runner *r, const json_t *text)
{
    const json_t *expected = json_object_get(text, "next_logprobs");
    int32_t *ids;
    int n = read_ids(json_object_get(text, "ids"), &ids);
    float *logits = malloc(512 * (size_t)r->vocabulary * sizeof *logits);
    struct kv_seq *s = runner_seq(r, ids, n);
    struct distance d = {0};
    for (int at = 0; at < n; at += 512) {
        int m = n - at < 512 ? n - at : 512;
        struct batch_item item = {s, ids + at, m, at, 0, m};
        runner_step(r, &item, 1, logits);
        for (int i = 0; i < m && at + i + 1 < n; i++) {
            const float *row = logits + (size_t)i * (size_t)r->vocabulary;
            double mine = (double)row[ids[at + i + 1]] - logits_log_sum(row, r->vocabulary);
            double x = fabs(mine - json_number_value(json_array_get(expected, (size_t)(at + i))));
            d.mean += x / (n - 1);
            d.most = x > d.most || isnan(x) ? x : d.most;
        }
    }
    kv_seq_close(s);
    free(logits);
    free(ids);
    return d;
}

static int best(const float *logits, int n)
{
    int b = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[b])
            b = i;
    return b;
}

static void compare_greedy(struct runner *r, const char *name, const json_t *text)
{
    const json_t *expected = json_object_get(text, "greedy_ids"),
                 *leads = json_object_get(text, "greedy_leads");
    int32_t *ids;
    int n = read_ids(json_object_get(text, "ids"), &ids);
    float *logits = malloc(512 * (size_t)r->vocabulary * sizeof *logits);
    struct kv_seq *s = runner_seq(r, ids, n);
    struct batch_item item = {s, ids, n, 0, 0, n};
    runner_step(r, &item, 1, logits);
    const float *row = logits + (size_t)(n - 1) * (size_t)r->vocabulary;
    for (size_t i = 0; i < json_array_size(expected); i++) {
        int32_t token = best(row, r->vocabulary),
                right = (int32_t)json_integer_value(json_array_get(expected, i));
        if (token != right && json_number_value(json_array_get(leads, i)) > TINY_LEAD)
            fail_msg("%s: greedy token %zu is %d, expected %d", name, i, token, right);
        item = (struct batch_item){s, &right, 1, n + (int)i, 0, 1};
        runner_step(r, &item, 1, logits);
        row = logits;
    }
    kv_seq_close(s);
    free(logits);
    free(ids);
}

static void token_ids_are_equal(void **state)
{
    const char *name;
    json_t *text;
    struct runner r;
    (void)state;
    open_model(&r, "auto", KV_F16, 8);
    json_object_foreach(json_object_get(answers, "cases"), name, text)
    {
        if (left_out(name))
            continue;
        int32_t *expected;
        int n = read_ids(json_object_get(text, "ids"), &expected);
        const json_t *s = json_object_get(text, "text");
        struct tok_ids ids = {0};
        struct err err;
        const struct tok_options options = {.special = true, .add_bos = true};
        assert_int_equal(tok_encode(model_tokenizer(r.model), json_string_value(s),
                                    json_string_length(s), &options, &ids, &err),
                         0);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.ids, expected, (size_t)n * sizeof *expected);
        free(ids.ids);
        free(expected);
    }
    runner_close(&r);
}

static void exact_path_is_within_a_thousandth(void **state)
{
    const char *name;
    json_t *text;
    struct runner r;
    (void)state;
    open_model(&r, "float", KV_F32, 8);
    json_object_foreach(json_object_get(answers, "cases"), name, text)
    {
        if (left_out(name))
            continue;
        struct distance d = compare_text(&r, text);
        printf("%-10s float: mean %.2g, most %.2g\n", name, d.mean, d.most);
        assert_true(d.most <= 1e-3);
        if (json_object_get(text, "greedy_ids"))
            compare_greedy(&r, name, text);
    }
    runner_close(&r);
}

/* No further from the file's own answers than llama.cpp with its 8-bit activations. */
static void default_path_is_no_further_than_the_peer(void **state)
{
    const char *name;
    json_t *text;
    struct runner r;
    double mine = 0, peer = 0;
    (void)state;
    open_model(&r, "auto", KV_F16, 8);
    json_object_foreach(json_object_get(answers, "cases"), name, text)
    {
        if (left_out(name))
            continue;
        const json_t *theirs = json_object_get(text, "llama_cpp");
        if (!theirs)
            continue;
        struct distance d = compare_text(&r, text);
        double mean = json_number_value(json_object_get(theirs, "mean"));
        printf("%-10s default: mean %.4f, most %.2g; the peer's mean %.4f\n", name, d.mean, d.most,
               mean);
        assert_true(d.mean <= 1.15 * mean);
        mine += d.mean;
        peer += mean;
    }
    printf("all texts: %.4f, the peer %.4f\n", mine / 4, peer / 4);
    assert_true(mine <= peer);
    runner_close(&r);
}

static void sixteen_bits_are_within_two_thousandths(void **state)
{
    const char *name;
    json_t *text;
    struct runner r;
    (void)state;
    open_model(&r, "auto", KV_F32, 16);
    json_object_foreach(json_object_get(answers, "cases"), name, text)
    {
        struct distance d = compare_text(&r, text);
        printf("%-10s 16 bits: mean %.5f, most %.2g\n", name, d.mean, d.most);
        assert_true(d.mean <= 2e-3);
    }
    runner_close(&r);
}

static int run(const char *variable, const char *file)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_ids_are_equal),
        cmocka_unit_test(exact_path_is_within_a_thousandth),
        cmocka_unit_test(default_path_is_no_further_than_the_peer),
        cmocka_unit_test(sixteen_bits_are_within_two_thousandths),
    };
    char path[4096];
    model_path = getenv(variable);
    if (!model_path || !*model_path) {
        printf("%s names no file: skipped\n", variable);
        return TEST_SKIPPED;
    }
    snprintf(path, sizeof path, "%s/real/%s", TEST_DATA, file);
    answers = json_load_file(path, 0, NULL);
    int rc = cmocka_run_group_tests_name(file, tests, NULL, NULL);
    json_decref(answers);
    return rc;
}

int main(void)
{
    int a = run("ROPEWALK_TEST_MODEL", "smollm2.json"),
        b = run("ROPEWALK_TEST_GEMMA", "gemma3-270m.json");
    if (a == TEST_SKIPPED && b == TEST_SKIPPED)
        return TEST_SKIPPED;
    return (a != TEST_SKIPPED && a) || (b != TEST_SKIPPED && b);
}
