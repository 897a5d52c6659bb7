#define _GNU_SOURCE /* memmem */

#include "model/plan.h"

#include "gguf_builder.h"
#include "testlib.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/test_plan_XXXXXX");
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

/* ---- what a plan says ---- */

static void plans_a_tiny_model(void **state)
{
    (void)state;
    write_model(&gguf_tiny);
    const struct model_options options = usual();
    struct model *m = open_model(&options);
    const struct model_plan *p = model_plan(m);
    assert_string_equal(p->name, "A test");
    assert_string_equal(p->architecture, "llama");
    assert_int_equal(p->layers, 2);
    assert_int_equal(p->vocabulary, 300);
    assert_int_equal(p->context, 128);
    assert_int_equal(p->batch_tokens, 512);
    /* both ends, and norms; each layer's two norms and seven matrices */
    int layer = 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64;
    assert_int_equal(p->parameters, 2 * 300 * 32 + 32 + 2 * layer);
    assert_int_equal(p->kv.groups, 1);
    assert_int_equal(p->kv.group[0].block_bytes % MEM_LINE, 0);
    assert_non_null(model_tokenizer(m));
    struct err err;
    assert_null(model_chat_template(m, &err));
    assert_non_null(strstr(err.text, "no chat template"));
    model_destroy(m);
    model_destroy(NULL);
}

static void a_tied_output_is_the_embedding(void **state)
{
    (void)state;
    struct gguf_shape s = gguf_tiny;
    s.tied = true;
    write_model(&s);
    const struct model_options options = usual();
    struct model *m = open_model(&options);
    assert_int_equal(model_plan(m)->parameters % 300, (32 + 2 * (64 + 3 * 1024 + 6144)) % 300);
    model_destroy(m);
}

static void options_go_before_the_file(void **state)
{
    (void)state;
    struct gguf_shape s = gguf_tiny;
    s.window = 40;
    write_model(&s);
    static const int windows[][2] = {{-1, 40}, {0, 0}, {7, 7}};
    for (int i = 0; i < 3; i++) {
        struct model_options options = usual();
        options.window = windows[i][0];
        options.context = 77;
        options.batch_tokens = 33;
        struct model *m = open_model(&options);
        assert_int_equal(model_plan(m)->kv.group[0].window, windows[i][1]);
        assert_int_equal(model_plan(m)->context, 77);
        assert_int_equal(model_plan(m)->trained_context, 128);
        assert_int_equal(model_plan(m)->batch_tokens, 33);
        model_destroy(m);
    }
}

static void kv_types_have_their_sizes(void **state)
{
    (void)state;
    struct gguf_shape s = gguf_tiny;
    s.head_size = 64;
    write_model(&s);
    static const size_t bytes[KV_TYPE_COUNT] = {
        [KV_F16] = 128, [KV_BF16] = 128, [KV_F32] = 256, [KV_Q8_0] = 68};
    for (int t = 0; t < KV_TYPE_COUNT; t++) {
        struct model_options options = usual();
        options.kv = kv_type_name((enum kv_type)t);
        struct model *m = open_model(&options);
        /* keys and values of 2 heads in 2 layers */
        assert_int_equal(model_plan(m)->kv_bytes_per_token, 8 * bytes[t]);
        model_destroy(m);
    }
}

static void layers_of_one_window_share_a_group(void **state)
{
    (void)state;
    struct gguf_shape s = gguf_tiny;
    s.arch = "gemma3";
    s.layers = 12;
    s.window = 40;
    s.tied = true;
    write_model(&s);
    const struct model_options options = usual();
    struct model *m = open_model(&options);
    const struct model_plan *p = model_plan(m);
    assert_int_equal(p->kv.groups, 2);
    assert_int_equal(p->kv.group[0].window, 40);
    assert_int_equal(p->kv.group[1].window, 0);
    assert_int_equal(p->kv.group[0].block_bytes, 5 * p->kv.group[1].block_bytes);
    size_t full = p->kv.group[1].block_bytes;
    assert_int_equal(model_kv_bytes(p, 0), 0);
    assert_int_equal(model_kv_bytes(p, 1), 6 * full);
    assert_int_equal(model_kv_bytes(p, 64), 12 * full);
    /* a window of 40 lies in at most three blocks */
    assert_int_equal(model_kv_bytes(p, 32 * 100), (3 * 5 + 100) * full);
    /* ten of twelve layers see 40 positions, two all */
    double seen = (10 * 40 + 2 * 1000) / 12.0;
    assert_float_equal(model_plan_attention_share(p, 1000),
                       model_attention_share(p->parameters, 12, 32, seen), 1e-9);
    model_destroy(m);
}

/* By what the 27B files of Gemma 2 and 3 do not say. */
static void some_sizes_scale_attention_by_the_width(void **state)
{
    static const struct {
        const char *arch;
        int layers;
        bool wide;
    } rows[] = {
        {"gemma2", 46, true}, {"gemma2", 42, false}, {"gemma3", 62, true}, {"llama", 46, false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gguf_shape s = gguf_tiny;
        struct weights *w;
        struct plan plan = {0};
        struct err err;
        s.arch = rows[i].arch;
        s.layers = rows[i].layers;
        s.head_size = 16; /* more than width / heads */
        s.window = 40;
        s.tied = true;
        write_model(&s);
        const struct model_options options = usual();
        if (weights_open(path, &w, &err) || plan_init(&plan, w, &options, &err))
            fail_msg("%s", err.text);
        float by = rows[i].wide ? (float)s.width / (float)s.heads : (float)s.head_size;
        assert_float_equal(plan.layers[0].attn.scale, 1 / sqrtf(by), 1e-7);
        plan_finish(&plan);
        weights_close(w);
    }
}

static void types_of_keys_and_values_change_no_share_of_work(void **state)
{
    (void)state;
    struct gguf_shape s = gguf_tiny;
    double share[2];
    s.arch = "gemma3";
    s.layers = 12;
    s.window = 40;
    s.tied = true;
    write_model(&s);
    for (int i = 0; i < 2; i++) {
        struct model_options options = usual();
        options.kv = i ? "full=f32,window=q8_0" : "f16";
        struct model *m = open_model(&options);
        const struct model_plan *p = model_plan(m);
        assert_int_equal(p->group_layers[0], 10);
        assert_int_equal(p->group_layers[1], 2);
        share[i] = model_plan_attention_share(p, 1000);
        model_destroy(m);
    }
    assert_float_equal(share[0], share[1], 1e-12);
}

static void settings_written_for_each_layer_may_agree(void **state)
{
    (void)state;
    static const int32_t same[] = {64, 64}, others[] = {64, 96};
    for (int i = 0; i < 2; i++) {
        struct gguf_builder b;
        struct gguf_shape s = gguf_tiny;
        struct model *m;
        struct err err;
        s.ffn = 0; /* not written */
        gguf_init(&b);
        gguf_settings(&b, &s);
        gguf_array(&b, "llama.feed_forward_length", GB_I32, i ? others : same, 2, 4);
        gguf_vocabulary(&b, &s);
        gguf_tensors(&b, &gguf_tiny, NULL);
        gguf_write(&b, path);
        gguf_finish(&b);
        const struct model_options options = usual();
        assert_int_equal(model_open(&options, &m, &err), i ? ERR_UNSUPPORTED : 0);
        if (i)
            assert_non_null(strstr(err.text, "64 in the first, 96 in number 2"));
        model_destroy(m);
    }
}

static void names_that_do_not_print_are_not_shown(void **state)
{
    (void)state;
    static const char *const names[] = {"\xff\xfe", "bell\a", ""};
    for (int i = 0; i < 3; i++) {
        struct gguf_builder b;
        gguf_init(&b);
        gguf_model(&b, &gguf_tiny);
        char *name = memmem(b.keys.data, b.keys.len, "A test", 6);
        assert_non_null(name);
        memset(name, 0x1b, 6);
        memcpy(name, names[i], strlen(names[i]));
        gguf_write(&b, path);
        gguf_finish(&b);
        const struct model_options options = usual();
        struct model *m = open_model(&options);
        assert_string_equal(model_plan(m)->name, strrchr(path, '/') + 1);
        model_destroy(m);
    }
}

/* ---- refusals ---- */

/* A tiny model, spoiled: the arch's settings less those of `without`, with `add`, and tensors less
 * `except`, with `tensor`. */
struct spoiled {
    const char *arch;
    const char *key; /* set to `value`, or `text`, in place of its own; or only left out */
    int64_t value;
    const char *text;
    const char *except;
    struct {
        const char *name;
        uint32_t format;
        int cols, rows;
    } tensor;
    struct gguf_shape shape; /* layers 0: the tiny one */
    struct model_options options;
    int code;
    const char *says[3];
};

/* Removes a key of one u32 from what has been built. */
static void drop_key(struct gguf_builder *b, const char *key)
{
    char *at = memmem(b->keys.data, b->keys.len, key, strlen(key));
    if (!at)
        return;
    size_t from = (size_t)(at - b->keys.data) - 8, n = 8 + strlen(key) + 4 + 4;
    memmove(b->keys.data + from, b->keys.data + from + n, b->keys.len - from - n);
    b->keys.len -= n;
    b->n_keys--;
}

static void write_spoiled(const struct spoiled *c)
{
    struct gguf_builder b;
    struct gguf_shape s = c->shape.layers ? c->shape : gguf_tiny;
    s.arch = c->arch ? c->arch : "llama";
    gguf_init(&b);
    gguf_settings(&b, &s);
    if (c->key) {
        drop_key(&b, c->key);
        if (c->text)
            gguf_text(&b, c->key, c->text);
        else if (c->value)
            gguf_int(&b, c->key, c->value);
    }
    gguf_vocabulary(&b, &s);
    gguf_tensors(&b, &s, c->except);
    if (c->tensor.name) {
        size_t cols = (size_t)c->tensor.cols, rows = (size_t)(c->tensor.rows ? c->tensor.rows : 1);
        const int64_t dim[] = {c->tensor.cols, c->tensor.rows};
        gguf_tensor(&b, c->tensor.name, c->tensor.format, c->tensor.rows ? 2 : 1, dim, NULL,
                    cols * rows * 8);
    }
    gguf_write(&b, path);
    gguf_finish(&b);
}

static void expect_refusal(const struct spoiled *c)
{
    struct model *m;
    struct err err = {0};
    struct model_options options = c->options;
    options.path = path;
    options.threads = 2;
    if (!options.window)
        options.window = -1;
    write_spoiled(c);
    if (model_open(&options, &m, &err) == 0) {
        model_destroy(m);
        fail_msg("a model that should be refused (%s) was opened", c->says[0]);
    }
    assert_null(m);
    for (int i = 0; i < 3 && c->says[i]; i++)
        if (!strstr(err.text, c->says[i]))
            fail_msg("\"%s\" does not say \"%s\"", err.text, c->says[i]);
    if (c->code != ERR_ARG && !strstr(err.text, path))
        fail_msg("\"%s\" does not name the file", err.text);
    assert_int_equal(err.code, c->code);
}

#define SHAPE(...)                                                                                 \
    {                                                                                              \
        .layers = 2, .width = 32, .vocabulary = 300, .context = 128, .ffn = 64, __VA_ARGS__        \
    }

static const struct spoiled settings_cases[] = {
    {.arch = "mamba", .code = ERR_UNSUPPORTED, .says = {"\"mamba\"", "supported are", "qwen2"}},
    {.arch = "llam", .code = ERR_UNSUPPORTED, .says = {"\"llam\""}},
    {.key = "llama.block_count", .code = ERR_FORMAT, .says = {"llama.block_count", "missing"}},
    {.key = "llama.block_count",
     .value = 5000,
     .code = ERR_FORMAT,
     .says = {"llama.block_count is 5000", "1 to 4096"}},
    {.key = "llama.block_count",
     .value = 3,
     .code = ERR_FORMAT,
     .says = {"\"blk.2.attn_norm.weight\"", "missing"}},
    {.key = "llama.block_count",
     .value = 1,
     .code = ERR_UNSUPPORTED,
     .says = {"\"blk.1.", "does not know"}},
    {.key = "llama.block_count",
     .text = "two",
     .code = ERR_FORMAT,
     .says = {"llama.block_count", "string", "whole number"}},
    {.key = "llama.embedding_length",
     .value = 4000000000,
     .code = ERR_FORMAT,
     .says = {"llama.embedding_length is 4000000000", "expected"}},
    {.key = "llama.embedding_length",
     .value = 64,
     .code = ERR_FORMAT,
     .says = {"\"token_embd.weight\"", "[32, 300]", "[64, 300] was expected"}},
    {.key = "llama.feed_forward_length",
     .value = 96,
     .code = ERR_FORMAT,
     .says = {"\"blk.0.ffn_gate.weight\"", "[32, 64]", "[32, 96] was expected"}},
    {.key = "llama.attention.head_count",
     .code = ERR_FORMAT,
     .says = {"llama.attention.head_count", "missing"}},
    {.key = "llama.context_length", .code = ERR_FORMAT, .says = {"llama.context_length"}},
    {.shape = SHAPE(.heads = 4, .kv_heads = 3, .head_size = 8),
     .code = ERR_FORMAT,
     .says = {"4 heads share 3 KV heads", "multiple"}},
    {.shape = SHAPE(.heads = 4, .kv_heads = 8, .head_size = 8),
     .code = ERR_FORMAT,
     .says = {"head_count_kv is 8", "1 to 4 was expected"}},
    {.shape = SHAPE(.heads = 5, .kv_heads = 1, .head_size = 8),
     .key = "llama.attention.key_length",
     .code = ERR_FORMAT,
     .says = {"5 heads do not divide a width of 32", "attention.key_length", "missing"}},
    {.key = "llama.attention.key_length",
     .value = 5000,
     .code = ERR_FORMAT,
     .says = {"key_length is 5000"}},
    {.key = "llama.rope.dimension_count",
     .value = 10,
     .code = ERR_FORMAT,
     .says = {"rope.dimension_count is 10", "2 to 8"}},
    {.key = "llama.rope.dimension_count",
     .value = 7,
     .code = ERR_UNSUPPORTED,
     .says = {"7 dimensions", "even"}},
    {.key = "llama.rope.scaling.type",
     .text = "spiral",
     .code = ERR_UNSUPPORTED,
     .says = {"llama.rope.scaling.type", "\"spiral\"", "not supported"}},
    {.key = "llama.rope.scaling.type",
     .text = "longrope",
     .code = ERR_FORMAT,
     .says = {"longrope"}},
    {.key = "llama.rope.freq_base", .value = 1, .code = ERR_UNSUPPORTED, .says = {"base 1"}},
    {.key = "general.file_type",
     .text = "x",
     .except = "output_norm.weight",
     .code = ERR_FORMAT,
     .says = {"\"output_norm.weight\"", "missing"}},
    {.arch = "gemma3", .code = ERR_FORMAT, .says = {"gemma3.attention.sliding_window", "missing"}},
    {.arch = "qwen2",
     .options = {.window = 12},
     .code = ERR_ARG,
     .says = {"--window 12", "\"qwen2\"", "no layers"}},
};

static const struct spoiled tensor_cases[] = {
    {.except = "token_embd.weight",
     .code = ERR_FORMAT,
     .says = {"\"token_embd.weight\"", "\"llama\"", "missing"}},
    {.except = "blk.1.ffn_down.weight",
     .code = ERR_FORMAT,
     .says = {"\"blk.1.ffn_down.weight\"", "missing"}},
    {.except = "blk.0.attn_v.weight", .code = ERR_FORMAT, .says = {"\"blk.0.attn_v.weight\""}},
    {.except = "blk.0.ffn_norm.weight", .code = ERR_FORMAT, .says = {"\"blk.0.ffn_norm.weight\""}},
    {.tensor = {"blk.0.surprise", 0, 4, 4},
     .code = ERR_UNSUPPORTED,
     .says = {"\"blk.0.surprise\"", "does not know", "\"llama\""}},
    {.tensor = {"blk.0.attn_norm.bias", 0, 32, 0}, /* an RMS norm has none */
     .code = ERR_UNSUPPORTED,
     .says = {"\"blk.0.attn_norm.bias\""}},
    {.tensor = {"blk.0.attn_qkv.weight", 0, 32, 64}, /* besides the three apart: one too many */
     .code = ERR_UNSUPPORTED,
     .says = {"\"blk.0.attn_"}},
    {.tensor = {"blk.0.attn_q.bias", 0, 31, 0},
     .code = ERR_FORMAT,
     .says = {"\"blk.0.attn_q.bias\"", "[31]", "[32, 1] was expected"}},
    {.except = "blk.0.attn_q.weight",
     .tensor = {"blk.0.attn_q.weight", 0, 32, 31},
     .code = ERR_FORMAT,
     .says = {"\"blk.0.attn_q.weight\"", "[32, 31]", "[32, 32] was expected"}},
    {.except = "blk.0.attn_q.weight",
     .tensor = {"blk.0.attn_q.weight", 28, 32, 32}, /* F64 */
     .code = ERR_UNSUPPORTED,
     .says = {"\"blk.0.attn_q.weight\"", "F64"}},
    {.except = "output_norm.weight",
     .tensor = {"output_norm.weight", 28, 32, 0},
     .code = ERR_UNSUPPORTED,
     .says = {"\"output_norm.weight\"", "F64", "not supported"}},
    {.except = "output.weight",
     .tensor = {"output.weight", 0, 32, 299},
     .code = ERR_FORMAT,
     .says = {"\"output.weight\"", "[32, 299]"}},
    {.except = "token_embd.weight",
     .tensor = {"token_embd.weight", 0, 32, 200},
     .code = ERR_FORMAT,
     .says = {"\"output.weight\"", "[32, 200] was expected"}},
    {.tensor = {"rope_freqs.weight", 0, 5, 0},
     .code = ERR_FORMAT,
     .says = {"\"rope_freqs.weight\"", "[5]", "[4, 1]"}},
    {.tensor = {"rope_freqs.weight", 0, 4, 0}, /* zeros */
     .code = ERR_UNSUPPORTED,
     .says = {"divisor 0"}},
};

static void refuses_wrong_settings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof settings_cases / sizeof settings_cases[0]; i++)
        expect_refusal(&settings_cases[i]);
}

static void refuses_wrong_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tensor_cases / sizeof tensor_cases[0]; i++)
        expect_refusal(&tensor_cases[i]);
}

static void refuses_models_that_see_what_follows(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct model *m;
    struct err err;
    gguf_init(&b);
    gguf_model(&b, &gguf_tiny);
    gguf_bool(&b, "llama.attention.causal", false);
    gguf_write(&b, path);
    gguf_finish(&b);
    const struct model_options options = usual();
    assert_int_equal(model_open(&options, &m, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "llama.attention.causal"));
}

static void refuses_kernels_that_the_cpu_lacks(void **state)
{
    (void)state;
    struct model *m;
    struct err err;
    struct model_options options = usual();
    write_model(&gguf_tiny);
    for (int level = 0; level < ISA_COUNT; level++) {
        options.kernels = isa_name((enum isa)level);
        if (level <= (int)cpu_isa()) {
            model_destroy(open_model(&options));
            continue;
        }
        assert_int_equal(model_open(&options, &m, &err), ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, options.kernels));
        assert_non_null(strstr(err.text, isa_name(cpu_isa())));
    }
    options.kernels = "float";
    model_destroy(open_model(&options));
    options.kernels = "mmx";
    assert_int_equal(model_open(&options, &m, &err), ERR_ARG);
    assert_non_null(strstr(err.text, "\"mmx\""));
}

static void refuses_wrong_vocabularies(void **state)
{
    (void)state;
    static const struct {
        int vocabulary; /* of the settings; the embedding has 300 rows */
        const char *key;
        int64_t value;
        int code;
        const char *says;
    } cases[] = {
        {301, NULL, 0, ERR_FORMAT, "tokenizer.ggml.tokens has 301 entries"},
        {0, NULL, 0, ERR_FORMAT, "tokenizer.ggml.tokens has 0 entries"},
        {300, "tokenizer.ggml.padding_token_id", 300, ERR_FORMAT, "padding_token_id is 300"},
        {290, "tokenizer.ggml.padding_token_id", 290, ERR_FORMAT, "290 tokens"},
        {300, "tokenizer.ggml.padding_token_id", UINT32_MAX, 0, NULL},
        {290, NULL, 0, 0, NULL}, /* the embedding may have more rows */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf_builder b;
        struct gguf_shape s = gguf_tiny;
        struct model *m;
        struct err err = {0};
        s.vocabulary = cases[i].vocabulary;
        gguf_init(&b);
        gguf_settings(&b, &s);
        if (s.vocabulary)
            gguf_vocabulary(&b, &s);
        if (cases[i].key)
            gguf_int(&b, cases[i].key, cases[i].value);
        gguf_tensors(&b, &gguf_tiny, NULL);
        gguf_write(&b, path);
        gguf_finish(&b);
        const struct model_options options = usual();
        assert_int_equal(model_open(&options, &m, &err), cases[i].code);
        if (cases[i].code && (!strstr(err.text, cases[i].says) || !strstr(err.text, path)))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].says);
        model_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_a_tiny_model),
        cmocka_unit_test(a_tied_output_is_the_embedding),
        cmocka_unit_test(options_go_before_the_file),
        cmocka_unit_test(kv_types_have_their_sizes),
        cmocka_unit_test(layers_of_one_window_share_a_group),
        cmocka_unit_test(some_sizes_scale_attention_by_the_width),
        cmocka_unit_test(types_of_keys_and_values_change_no_share_of_work),
        cmocka_unit_test(settings_written_for_each_layer_may_agree),
        cmocka_unit_test(names_that_do_not_print_are_not_shown),
        cmocka_unit_test(refuses_wrong_settings),
        cmocka_unit_test(refuses_wrong_tensors),
        cmocka_unit_test(refuses_models_that_see_what_follows),
        cmocka_unit_test(refuses_kernels_that_the_cpu_lacks),
        cmocka_unit_test(refuses_wrong_vocabularies),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
