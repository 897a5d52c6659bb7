/* Tiny models of many architectures against the logits of their reference implementation: every
 * position, at every SIMD level and on the exact path, whole, in chunks and two sequences at once;
 * then the greedy continuation token by token. */

#define _GNU_SOURCE /* memmem */

#include "testlib.h"

#include "runner.h"
#include "safetensors.h"

#include <assert.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CASES 64

static char *names[MOST_CASES];
static int n_names;

static void case_path(char *out, size_t bytes, const char *name, const char *file)
{
    snprintf(out, bytes, "%s/%s/%s", GOLDEN_DIR, name, file);
}

static void open_file(struct runner *r, const char *path, const char *name, const char *kernels,
                      const char *kv)
{
    const struct model_options options = {
        .path = path,
        .window = strcmp(name, "mistral-window") ? -1 : 12, /* its file does not say */
        .kernels = kernels,
        .kv = kv,
        .threads = 2,
    };
    runner_open(r, &options, 8u << 20);
}

static void open_runner(struct runner *r, const char *name, const char *kernels, const char *kv)
{
    char path[4096];
    case_path(path, sizeof path, name, "model.gguf");
    open_file(r, path, name, kernels, kv);
}

/* Logits of all sequences, computed together in chunks of `chunk`. */
static float *run_chunked(struct runner *r, int32_t *const *tokens, int sequences, int length,
                          int chunk)
{
    struct kv_seq *seqs[8];
    struct batch_item items[8];
    size_t vocab = (size_t)r->vocabulary;
    int variant = model_variant(model_plan(r->model), length);
    float *all = calloc((size_t)sequences * (size_t)length * vocab, sizeof *all);
    float *some = calloc((size_t)sequences * (size_t)chunk * vocab, sizeof *some);
    for (int s = 0; s < sequences; s++)
        seqs[s] = runner_seq(r, tokens[s], length);
    for (int at = 0; at < length; at += chunk) {
        int n = length - at < chunk ? length - at : chunk;
        for (int s = 0; s < sequences; s++)
            items[s] = (struct batch_item){seqs[s], tokens[s] + at, n, at, variant, n};
        runner_step(r, items, sequences, some);
        for (int s = 0; s < sequences; s++)
            memcpy(all + ((size_t)s * (size_t)length + (size_t)at) * vocab,
                   some + (size_t)s * (size_t)n * vocab, (size_t)n * vocab * sizeof *all);
    }
    for (int s = 0; s < sequences; s++)
        kv_seq_close(seqs[s]);
    free(some);
    return all;
}

/* Steps of which few logits are wanted, none at times, compute the same ones. */
static void check_wanted(struct runner *r, const char *name, int32_t *const *tokens, int sequences,
                         int length, const float *whole)
{
    enum { CHUNK = 5 };
    struct kv_seq *seqs[8];
    struct batch_item items[8];
    size_t vocab = (size_t)r->vocabulary;
    int variant = model_variant(model_plan(r->model), length);
    float *some = calloc((size_t)sequences * CHUNK * vocab, sizeof *some);
    for (int s = 0; s < sequences; s++)
        seqs[s] = runner_seq(r, tokens[s], length);
    for (int at = 0, n; at < length; at += n) {
        n = length - at < CHUNK ? length - at : CHUNK;
        for (int s = 0; s < sequences; s++)
            items[s] = (struct batch_item){seqs[s], tokens[s] + at, n,
                                           at,      variant,        (at + s) % (n + 1)};
        runner_step(r, items, sequences, some);
        const float *row = some;
        for (int s = 0; s < sequences; row += (size_t)items[s++].wanted * vocab) {
            size_t from = (size_t)(s * length + at + n - items[s].wanted);
            if (memcmp(row, whole + from * vocab, (size_t)items[s].wanted * vocab * sizeof *row))
                fail_msg("%s: the last %d logits of %d, wanted alone, have other bits", name,
                         items[s].wanted, n);
        }
    }
    for (int s = 0; s < sequences; s++)
        kv_seq_close(seqs[s]);
    free(some);
}

static int32_t *ids_of(const struct golden_tensor *t, int row)
{
    int n = (int)t->dim[t->dims - 1];
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((const int64_t *)t->data)[row * n + i];
    return ids;
}

struct distance {
    double most, mean;
};

static struct distance measure(const float *a, const float *b, size_t n)
{
    struct distance d = {0};
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]);
        d.mean += x / (double)n;
        d.most = x > d.most || isnan(x) ? x : d.most;
    }
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

static void check_greedy(struct runner *r, const char *name, const struct golden *g,
                         const int32_t *prompt, int n)
{
    struct golden_tensor greedy;
    if (!golden_find(g, "greedy_ids", &greedy))
        return;
    int32_t *expected = ids_of(&greedy, 0);
    float *logits = calloc((size_t)n * (size_t)r->vocabulary, sizeof *logits);
    struct kv_seq *s = runner_seq(r, prompt, n);
    int variant = model_variant(model_plan(r->model), n);
    struct batch_item item = {s, prompt, n, 0, variant, n};
    runner_step(r, &item, 1, logits);
    int32_t token = best(logits + (size_t)(n - 1) * (size_t)r->vocabulary, r->vocabulary);
    for (int i = 0; i < greedy.dim[0]; i++) {
        if (token != expected[i])
            fail_msg("%s: greedy token %d is %d, expected %d", name, i, token, expected[i]);
        item = (struct batch_item){s, &token, 1, n + i, variant, 1};
        runner_step(r, &item, 1, logits);
        token = best(logits, r->vocabulary);
    }
    kv_seq_close(s);
    free(logits);
    free(expected);
}

static double number(const json_t *o, const char *a, const char *b)
{
    return json_number_value(json_object_get(json_object_get(o, a), b));
}

/* Weights in a block format meet rounded activations, except on the exact path: then the
 * reference's own distance is the measure. */
static void check_distance(const char *name, const char *kernels, const json_t *about,
                           const struct distance *d, const char *how)
{
    bool rounded = !strncmp(name, "quant-", 6) && strcmp(kernels, "float") &&
                   strcmp(name, "quant-f16") && strcmp(name, "quant-bf16");
    double most = rounded ? 1.5 * number(about, "llama_cpp", "max_abs_diff")
                          : number(about, "tolerance", "max_abs");
    double mean = rounded ? 1.15 * number(about, "llama_cpp", "mean_abs_diff") : most;
    if (!(d->most <= most) || !(d->mean <= mean))
        fail_msg("%s, kernels %s, %s: differs by %g (mean %g), allowed are %g (mean %g)", name,
                 kernels, how, d->most, d->mean, most, mean);
}

static void check_case(const char *name, const char *kernels)
{
    char path[4096];
    struct golden g;
    struct golden_tensor input, logits;
    struct runner r = {0};
    case_path(path, sizeof path, name, "case.json");
    json_t *about = json_load_file(path, 0, NULL);
    case_path(path, sizeof path, name, "golden.safetensors");
    assert_int_equal(golden_open(&g, path), 0);
    assert_true(golden_find(&g, "input_ids", &input) && golden_find(&g, "logits", &logits));
    int sequences = input.dims == 2 ? (int)input.dim[0] : 1,
        length = (int)input.dim[input.dims - 1];
    int32_t *tokens[8];
    for (int s = 0; s < sequences; s++)
        tokens[s] = ids_of(&input, s);
    open_runner(&r, name, kernels, "f32");
    size_t n = (size_t)sequences * (size_t)length * (size_t)r.vocabulary;
    float *whole = run_chunked(&r, tokens, sequences, length, length);
    struct distance d = measure(whole, logits.data, n);
    printf("%-18s %-7s max %.2g mean %.2g\n", name, kernels, d.most, d.mean);
    check_distance(name, kernels, about, &d, "whole");
    static const int chunks[] = {1, 7, 32};
    for (int i = 0; i < 3; i++) {
        float *parts = run_chunked(&r, tokens, sequences, length, chunks[i]);
        d = measure(parts, logits.data, n);
        check_distance(name, kernels, about, &d, "in chunks");
        if (strcmp(kernels, "float") && memcmp(parts, whole, n * sizeof *whole))
            fail_msg("%s, kernels %s: chunks of %d give other bits than the whole", name, kernels,
                     chunks[i]);
        free(parts);
    }
    if (strcmp(kernels, "float"))
        check_wanted(&r, name, tokens, sequences, length, whole);
    check_greedy(&r, name, &g, tokens[0], length);
    free(whole);
    runner_close(&r);
    for (int s = 0; s < sequences; s++)
        free(tokens[s]);
    golden_close(&g);
    json_decref(about);
}

static void check_all(const char *kernels)
{
    for (int i = 0; i < n_names; i++)
        check_case(names[i], kernels);
}

static void float_path_matches_the_reference(void **state)
{
    (void)state;
    check_all("float");
}

static void every_simd_level_matches_the_reference(void **state)
{
    (void)state;
    /* The short form leaves plain C, the slowest, to the tests of kernels. */
    int first = getenv("ROPEWALK_TEST_SHORT") && cpu_isa() > ISA_C ? 1 : 0;
    for (int level = first; level <= (int)cpu_isa(); level++)
        check_all(isa_name((enum isa)level));
}

/* ---- types of keys and values by group ---- */

struct kv_case {
    const char *kv;
    double most; /* distance from the reference */
};

static void check_types(const char *name, const struct kv_case *c)
{
    char path[4096];
    struct golden g;
    struct golden_tensor input, logits;
    struct runner r;
    case_path(path, sizeof path, name, "golden.safetensors");
    assert_int_equal(golden_open(&g, path), 0);
    assert_true(golden_find(&g, "input_ids", &input) && golden_find(&g, "logits", &logits));
    int length = (int)input.dim[input.dims - 1];
    int32_t *tokens = ids_of(&input, 0);
    open_runner(&r, name, "auto", c->kv);
    size_t n = (size_t)length * (size_t)r.vocabulary;
    float *whole = run_chunked(&r, &tokens, 1, length, length);
    struct distance d = measure(whole, logits.data, n);
    printf("%-18s %-22s max %.2g mean %.2g\n", name, c->kv, d.most, d.mean);
    if (!(d.most <= c->most))
        fail_msg("%s, --kv %s: differs by %g, allowed are %g", name, c->kv, d.most, c->most);
    for (int chunk = 1; chunk < length; chunk += 6) {
        float *parts = run_chunked(&r, &tokens, 1, length, chunk);
        if (memcmp(parts, whole, n * sizeof *whole))
            fail_msg("%s, --kv %s: chunks of %d give other bits", name, c->kv, chunk);
        free(parts);
    }
    free(whole);
    free(tokens);
    runner_close(&r);
    golden_close(&g);
}

static void groups_keep_their_own_types(void **state)
{
    (void)state;
    static const struct kv_case cases[] = {
        {"full=f32,window=f32", 5e-4}, {"full=f32,window=f16", 0.02}, {"full=q8_0,window=f16", 0.3},
        {"window=q8_0", 0.3},          {"full=bf16,window=f32", 0.1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_types("gemma2", &cases[i]);
        check_types("gemma3", &cases[i]);
    }
}

/* ---- positions that depend on the length ---- */

static float *run_prefix(struct runner *r, const int32_t *tokens, int length, int chunk)
{
    int32_t *copy = malloc((size_t)length * sizeof *copy);
    memcpy(copy, tokens, (size_t)length * sizeof *copy);
    float *logits = run_chunked(r, &copy, 1, length, chunk);
    free(copy);
    return logits;
}

/* The case's file with the short factors in place of the long ones and the other way round. */
static void swap_factors(const char *from, const char *to)
{
    static const float factors[2][8] = {{1.0f, 1.05f, 1.1f, 1.3f, 1.5f, 1.8f, 2.0f, 2.5f},
                                        {1.0f, 1.3f, 1.8f, 2.5f, 4.0f, 6.0f, 8.0f, 12.0f}};
    FILE *f = fopen(from, "rb");
    assert_non_null(f);
    static char data[1 << 20];
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    char *a = memmem(data, n, factors[0], sizeof factors[0]);
    char *b = memmem(data, n, factors[1], sizeof factors[1]);
    assert_true(a && b);
    memcpy(a, factors[1], sizeof factors[1]);
    memcpy(b, factors[0], sizeof factors[0]);
    f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void check_same(const char *what, const float *a, const float *b, int tokens, int vocabulary)
{
    if (memcmp(a, b, (size_t)tokens * (size_t)vocabulary * sizeof *a))
        fail_msg("%s: the logits differ", what);
}

/* Up to the limit the short factors hold, whatever the chunks; one token more and all is computed
 * with the long ones. The file with both exchanged tells that each is what it should be. */
static void length_chooses_the_factors(void **state)
{
    (void)state;
    char path[4096], swapped[] = "longrope-swapped.gguf";
    struct golden g;
    struct golden_tensor input, logits;
    struct runner r, other;
    case_path(path, sizeof path, "phi3-longrope", "golden.safetensors");
    assert_int_equal(golden_open(&g, path), 0);
    assert_true(golden_find(&g, "input_ids", &input) && golden_find(&g, "logits", &logits));
    int32_t *tokens = ids_of(&input, 0);
    case_path(path, sizeof path, "phi3-longrope", "model.gguf");
    swap_factors(path, swapped);
    open_file(&r, path, "", "auto", "f32");
    open_file(&other, swapped, "", "auto", "f32");
    const int limit = model_plan(r.model)->variant_limit, v = r.vocabulary;
    assert_int_equal(limit, 32);
    assert_int_equal(model_variant(model_plan(r.model), limit), 0);
    assert_int_equal(model_variant(model_plan(r.model), limit + 1), 1);

    float *brief = run_prefix(&r, tokens, limit, limit), *extended = run_prefix(&r, tokens, 33, 33);
    struct distance d = measure(brief, logits.data, (size_t)limit * (size_t)v);
    assert_true(d.most > 1);
    d = measure(extended, logits.data, 33 * (size_t)v);
    assert_true(d.most <= 5e-4);
    for (int n = 1; n <= limit; n += 5) {
        float *prefix = run_prefix(&r, tokens, n, 3);
        check_same("a shorter prefix in chunks", prefix, brief, n, v);
        free(prefix);
    }
    float *brief_of_other = run_prefix(&other, tokens, limit, 7),
          *extended_of_other = run_prefix(&other, tokens, 33, 5);
    check_same("short factors", brief, extended_of_other, limit, v);
    check_same("long factors", extended, brief_of_other, limit, v);
    free(brief);
    free(extended);
    free(brief_of_other);
    free(extended_of_other);
    free(tokens);
    runner_close(&r);
    runner_close(&other);
    golden_close(&g);
    remove(swapped);
}

/* Sequences on both sides of the limit in one batch. */
static void variants_run_in_one_batch(void **state)
{
    (void)state;
    struct runner r;
    char path[4096];
    case_path(path, sizeof path, "phi3-longrope", "model.gguf");
    open_file(&r, path, "", "auto", "f16");
    int32_t tokens[40];
    for (int i = 0; i < 40; i++)
        tokens[i] = 3 + i * 7 % 300;
    float *brief = run_prefix(&r, tokens, 20, 20), *extended = run_prefix(&r, tokens, 40, 40);
    float *both = calloc(60 * (size_t)r.vocabulary, sizeof *both);
    struct batch_item items[] = {{runner_seq(&r, tokens, 20), tokens, 20, 0, 0, 20},
                                 {runner_seq(&r, tokens, 40), tokens, 40, 0, 1, 40}};
    runner_step(&r, items, 2, both);
    check_same("the short one", both, brief, 20, r.vocabulary);
    check_same("the long one", both + 20 * (size_t)r.vocabulary, extended, 40, r.vocabulary);
    kv_seq_close(items[0].seq);
    kv_seq_close(items[1].seq);
    free(both);
    free(brief);
    free(extended);
    runner_close(&r);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list_cases(void)
{
    DIR *d = opendir(GOLDEN_DIR);
    const struct dirent *e;
    while (d && (e = readdir(d)) && n_names < MOST_CASES)
        if (e->d_name[0] != '.')
            names[n_names++] = strdup(e->d_name);
    if (d)
        closedir(d);
    qsort(names, (size_t)n_names, sizeof *names, compare_names);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_path_matches_the_reference),
        cmocka_unit_test(every_simd_level_matches_the_reference),
        cmocka_unit_test(groups_keep_their_own_types),
        cmocka_unit_test(length_chooses_the_factors),
        cmocka_unit_test(variants_run_in_one_batch),
    };
    list_cases();
    if (argc > 1) {
        names[0] = argv[1];
        n_names = 1;
    }
    assert(n_names > 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
