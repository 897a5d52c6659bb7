#include "model/model.h"
#include "server/commands/program.h"

#include "gguf_builder.h"
#include "testlib.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/test_plan_program_XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static struct model_options usual(void)
{
    return (struct model_options){.path = path, .window = -1, .threads = 2};
}

static void write_model(const struct gguf_shape *s)
{
    struct gguf_builder b;
    gguf_init(&b);
    gguf_model(&b, s);
    gguf_write(&b, path);
    gguf_finish(&b);
}

static struct model *open_model(const struct model_options *options)
{
    struct model *m;
    struct err err;
    if (model_open(options, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* ---- the program ---- */

struct outcome {
    int code;
    long resident_kib;
    char out[16384], err[4096];
};

static void read_all(int fd, char *to, size_t bytes)
{
    size_t n = 0;
    ssize_t got;
    while (n < bytes - 1 && (got = read(fd, to + n, bytes - 1 - n)) > 0)
        n += (size_t)got;
    to[n] = '\0';
    close(fd);
}

/* The program in a process of its own, with what it writes and the memory that it takes. Its
 * output is short enough for a pipe. */
static void run_program(const char *const *argv, struct outcome *o)
{
    int out[2], err[2], status, argc = 0;
    struct rusage usage;
    while (argv[argc])
        argc++;
    assert_int_equal(pipe(out) | pipe(err), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        int code = program_main(argc, (char **)argv);
        fflush(NULL);
        _exit(code);
    }
    close(out[1]);
    close(err[1]);
    read_all(out[0], o->out, sizeof o->out);
    read_all(err[0], o->err, sizeof o->err);
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    o->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    o->resident_kib = usage.ru_maxrss;
}

#define RUN(outcome, ...) run_program((const char *const[]){"ropewalk", __VA_ARGS__, NULL}, outcome)

/* Llama 2 70B but for its KV heads: 138 GB of nothing. */
static const struct gguf_shape large = {
    .arch = "llama",
    .layers = 80,
    .width = 8192,
    .heads = 64,
    .kv_heads = 8,
    .head_size = 128,
    .ffn = 28672,
    .vocabulary = 32000,
    .context = 4096,
    .format = 1,
};

#define LITTLE_KIB (256 << 10) /* with room for sanitizers; a large model has 138 GB */

static void the_program_refuses_with_a_sentence_before_it_takes_memory(void **state)
{
    (void)state;
    static const char *const commands[][3] = {{"plan", NULL, NULL}, {"run", "-p", "x"}};
    struct gguf_builder b;
    struct outcome o;
    gguf_init(&b);
    gguf_settings(&b, &large);
    gguf_vocabulary(&b, &large);
    gguf_tensors(&b, &large, "blk.79.ffn_down.weight");
    gguf_write(&b, path);
    gguf_finish(&b);
    for (int i = 0; i < 2; i++) {
        RUN(&o, commands[i][0], path, commands[i][1], commands[i][2]);
        assert_int_equal(o.code, 1);
        assert_string_equal(o.out, "");
        assert_int_equal(strncmp(o.err, "ropewalk: ", 10), 0);
        assert_non_null(strstr(o.err, path));
        assert_non_null(strstr(o.err, "\"blk.79.ffn_down.weight\""));
        assert_true(o.resident_kib < LITTLE_KIB);
    }
}

static void a_model_that_does_not_fit_is_refused_before_it_is_loaded(void **state)
{
    (void)state;
    struct outcome o;
    write_model(&large);
    RUN(&o, "run", path, "-p", "x", "--memory", "16g");
    assert_int_equal(o.code, 1);
    assert_string_equal(o.out, "");
    assert_non_null(strstr(o.err, path));
    assert_non_null(strstr(o.err, "does not fit"));
    assert_non_null(strstr(o.err, "16.0 GiB"));
    assert_true(o.resident_kib < LITTLE_KIB);
    RUN(&o, "plan", path, "--memory", "16g");
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.out, "does not fit"));
    assert_true(o.resident_kib < LITTLE_KIB);
}

static json_t *plan_json(const char *const *argv)
{
    struct outcome o;
    run_program(argv, &o);
    if (o.code)
        fail_msg("%s", o.err);
    json_t *plan = json_loads(o.out, 0, NULL);
    if (!plan)
        fail_msg("not JSON: %s", o.out);
    return plan;
}

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("no integer \"%s\"", key);
    return json_integer_value(value);
}

/* The least memory that a plan names is enough to run, and a little less is not. */
static void the_least_memory_is_enough_and_less_is_not(void **state)
{
    (void)state;
    struct outcome o;
    char size[32];
    write_model(&gguf_tiny);
    json_t *plan = plan_json(
        (const char *const[]){"ropewalk", "plan", path, "--json", "--memory", "1m", NULL});
    const json_t *memory = json_object_get(plan, "memory");
    json_int_t least = integer(memory, "least");
    assert_true(json_is_false(json_object_get(memory, "fits")));
    assert_int_equal(integer(memory, "keys_and_values"), 0);
    json_decref(plan);
    snprintf(size, sizeof size, "%lld", (long long)least);
    RUN(&o, "run", path, "-p", "x", "--memory", size, "--max-tokens", "2", "--temperature", "0");
    if (o.code)
        fail_msg("%s", o.err);
    snprintf(size, sizeof size, "%lld", (long long)least - 1);
    RUN(&o, "run", path, "-p", "x", "--memory", size, "--max-tokens", "2");
    assert_int_equal(o.code, 1);
    assert_non_null(strstr(o.err, "does not fit"));
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    struct outcome o;
    write_model(&gguf_tiny);
    RUN(&o, "run", path, "-p", "\xff", "--temperature", "0");
    assert_int_equal(o.code, 1);
    assert_non_null(strstr(o.err, "not UTF-8"));
}

/* ---- the published figures of a 70B model ---- */

static json_t *worked(void)
{
    json_t *all = json_load_file(TEST_DATA "/worked.json", 0, NULL);
    assert_non_null(all);
    return all;
}

static double number_at(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

/* As printed: in GB, rounded to a tenth. A window that ends inside a block holds one block more. */
static void expect_gb(double gb, double published, double blocks)
{
    if (fabs(gb - published) > 0.05 + published * blocks)
        fail_msg("%.3f GB where %.1f is published", gb, published);
}

static void kv_bytes_are_as_published(void **state)
{
    (void)state;
    json_t *all = worked(), *kv = json_object_get(all, "kv_bytes");
    const json_t *table = json_object_get(kv, "layers80_head128_f16_GB");
    const json_t *contexts = json_object_get(table, "contexts");
    static const struct {
        const char *name;
        int kv_heads, window;
    } rows[] = {{"multi-head 64", 64, 0},
                {"grouped 8", 8, 0},
                {"multi-query 1", 1, 0},
                {"grouped 8, window 4096", 8, 4096}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gguf_shape s = large;
        s.kv_heads = rows[i].kv_heads;
        s.window = rows[i].window;
        write_model(&s);
        json_t *plan = plan_json((const char *const[]){"ropewalk", "plan", path, "--json",
                                                       "--contexts", "8192,131072", "--users",
                                                       "1,3", NULL});
        const struct model_options options = usual();
        struct model *m = open_model(&options);
        for (size_t c = 0; c < 2; c++) {
            double published = number_at(json_object_get(table, rows[i].name), c);
            int context = (int)number_at(contexts, c);
            const json_t *row = json_array_get(json_object_get(plan, "contexts"), c);
            size_t bytes = model_kv_bytes(model_plan(m), context);
            assert_int_equal(integer(row, "context"), context);
            assert_int_equal(integer(row, "kv_bytes"), bytes);
            assert_int_equal(integer(json_object_get(row, "kv_bytes_by_users"), "3"), 3 * bytes);
            expect_gb((double)bytes * 1e-9, published,
                      rows[i].window ? (double)KV_BLOCK_TOKENS / rows[i].window : 0);
        }
        model_destroy(m);
        json_decref(plan);
    }
    json_decref(all);
}

static void a_layer_of_64_heads_is_134_mb(void **state)
{
    (void)state;
    json_t *all = worked();
    const json_t *one = json_object_get(json_object_get(all, "kv_bytes"),
                                        "llama2_70b_64_heads_per_layer");
    struct gguf_shape s = large;
    s.layers = 1;
    s.kv_heads = (int)integer(one, "kv_heads");
    s.head_size = (int)integer(one, "head_size");
    write_model(&s);
    const struct model_options options = usual();
    struct model *m = open_model(&options);
    assert_int_equal(model_kv_bytes(model_plan(m), (int)integer(one, "tokens")),
                     integer(one, "total"));
    model_destroy(m);
    json_decref(all);
}

static void attention_share_is_as_published(void **state)
{
    (void)state;
    json_t *all = worked(), *worked_share = json_object_get(all, "attention_share_of_work");
    const json_t *contexts = json_object_get(worked_share, "contexts");
    write_model(&large);
    json_t *plan = plan_json((const char *const[]){"ropewalk", "plan", path, "--json", "--contexts",
                                                   "2000,32000,128000,1000000", NULL});
    assert_true(llabs((long long)integer(plan, "parameters") - 69000000000) < 100000000);
    for (size_t i = 0; i < 4; i++) {
        double published = number_at(json_object_get(worked_share, "share"), i);
        double context = number_at(contexts, i);
        const json_t *row = json_array_get(json_object_get(plan, "contexts"), i);
        assert_float_equal(model_attention_share(70000000000, 80, 8192, context), published, 5e-4);
        /* the real model has a little less than 70e9 parameters */
        double share = json_real_value(json_object_get(row, "attention_share"));
        assert_float_equal(share, published, 5e-3);
        assert_float_equal(
            share, model_attention_share((uint64_t)integer(plan, "parameters"), 80, 8192, context),
            1e-5);
    }
    json_decref(plan);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_refuses_with_a_sentence_before_it_takes_memory),
        cmocka_unit_test(a_model_that_does_not_fit_is_refused_before_it_is_loaded),
        cmocka_unit_test(the_least_memory_is_enough_and_less_is_not),
        cmocka_unit_test(text_that_is_not_utf8_is_refused),
        cmocka_unit_test(kv_bytes_are_as_published),
        cmocka_unit_test(a_layer_of_64_heads_is_134_mb),
        cmocka_unit_test(attention_share_is_as_published),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
