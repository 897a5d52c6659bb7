/* Types of keys and values: what --kv says, and what the plan makes of it. */

#include "model/model.h"

#include "testlib.h"

#include <string.h>

static int open_with(const char *kv, const char *file, struct model **m, struct err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/model.gguf", GOLDEN_DIR, file);
    const struct model_options options = {.path = path, .window = -1, .threads = 1, .kv = kv};
    return model_open(&options, m, err);
}

struct wanted {
    const char *kv;
    enum kv_type full, window;
};

static size_t block_bytes(const struct model_plan *p, enum kv_type type, int layers)
{
    const struct attn_shape s = {.heads = p->heads,
                                 .kv_heads = p->kv_heads,
                                 .key_size = p->key_size,
                                 .value_size = p->value_size,
                                 .type = type};
    return attn_block_bytes(&s) * (size_t)layers;
}

static void every_group_has_the_type_asked_for(void **state)
{
    (void)state;
    static const struct wanted rows[] = {
        {NULL, KV_F16, KV_F16},
        {"f16", KV_F16, KV_F16},
        {"q8_0", KV_Q8_0, KV_Q8_0},
        {"full=q8_0,window=f16", KV_Q8_0, KV_F16},
        {"window=f32,full=bf16", KV_BF16, KV_F32},
        {"full=f32", KV_F32, KV_F16},
        {"window=q8_0", KV_F16, KV_Q8_0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model *m;
        struct err err;
        if (open_with(rows[i].kv, "gemma3", &m, &err))
            fail_msg("%s: %s", rows[i].kv, err.text);
        const struct model_plan *p = model_plan(m);
        size_t sum = 0;
        assert_int_equal(p->kv.groups, 2);
        for (int g = 0; g < p->kv.groups; g++) {
            const struct kv_group_config *group = &p->kv.group[g];
            bool window = group->window > 0;
            enum kv_type type = window ? rows[i].window : rows[i].full;
            assert_string_equal(group->name, window ? "window" : "full");
            assert_int_equal(p->kv_types[g], type);
            int layers = window ? p->layers - p->layers / 6 : p->layers / 6;
            assert_int_equal(group->block_bytes, block_bytes(p, type, layers));
            sum += group->block_bytes;
        }
        assert_int_equal(p->kv_bytes_per_token, sum / KV_BLOCK_TOKENS);
        model_destroy(m);
    }
}

static void a_group_that_the_model_has_not_is_no_error(void **state)
{
    (void)state;
    struct model *m;
    struct err err;
    assert_int_equal(open_with("full=q8_0,window=f16", "llama-gqa", &m, &err), 0);
    assert_int_equal(model_plan(m)->kv.groups, 1);
    assert_int_equal(model_plan(m)->kv_types[0], KV_Q8_0);
    model_destroy(m);
}

static void wrong_types_are_refused_with_what_was_expected(void **state)
{
    (void)state;
    static const struct {
        const char *kv, *says;
    } rows[] = {
        {"f8", "--kv f8: there is no type \"f8\"; expected"},
        {"", "there is no type \"\""},
        {"full=", "there is no type \"\""},
        {"full=q8", "there is no type \"q8\""},
        {"ful=f16", "there is no group \"ful\""},
        {"=f16", "there is no group \"\""},
        {"full=f16,", "there is no type \"\""},
        {"full=f16,q8_0", "no group is named before \"q8_0\""},
        {"full=f16,full=f16", "two types for \"full\""},
        {"full=f16 ,window=f16", "there is no type \"f16 \""},
        {"full=a-very-long-name-of-a-type", "there is no type"},
        {"window=f16", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model *m;
        struct err err;
        int rc = open_with(rows[i].kv, "gemma3", &m, &err);
        if (!rows[i].says) {
            assert_int_equal(rc, 0);
            model_destroy(m);
            continue;
        }
        assert_int_equal(rc, ERR_ARG);
        if (!strstr(err.text, rows[i].says) || !strstr(err.text, "full=TYPE,window=TYPE"))
            fail_msg("--kv \"%s\": %s", rows[i].kv, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_group_has_the_type_asked_for),
        cmocka_unit_test(a_group_that_the_model_has_not_is_no_error),
        cmocka_unit_test(wrong_types_are_refused_with_what_was_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
