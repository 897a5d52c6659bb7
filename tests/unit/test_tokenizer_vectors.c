/* Published tokenizers against the ids that the Hugging Face library gives: data outside of the
 * project, skipped where it is absent. The vocabularies are built from tokenizer.json the way GGUF
 * converters do it. */
#include "testlib.h"

#include "model.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct source {
    const char *name, *pre;
    enum tok_kind kind;
    bool space_prefix, bos;
};

static const struct source sources[] = {
    {"gpt2", "gpt-2", TOK_BPE, false, false},
    {"llama3_1", "llama-bpe", TOK_BPE, false, true},
    {"qwen3", "qwen2", TOK_BPE, false, false},
    {"deepseek_v3", "deepseek-v3", TOK_BPE, false, false},
    {"llama2", NULL, TOK_SPM, true, true},
    {"gemma3", NULL, TOK_SPM, false, true},
    {"gemma3", "gemma4", TOK_BPE, false, true}, /* the same rules by merges over characters */
};

/* A struct tok_vocab and what it points to. */
struct built {
    struct tok_vocab vocab;
    const char **texts, **merges;
    size_t *text_bytes, *merge_bytes;
    float *scores;
    int32_t *types;
    char **joined; /* merges that come as pairs */
    json_t *json;
};

static json_t *tokenizer_json(const char *folder, const char *name)
{
    char command[PATH_MAX + 64];
    snprintf(command, sizeof command, "xz -dc '%s/tokenizers/%s/tokenizer.json.xz'", folder, name);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    json_error_t error;
    json_t *json = json_loadf(pipe, JSON_ALLOW_NUL, &error);
    pclose(pipe);
    if (!json)
        print_error("%s: %s\n", name, error.text);
    assert_non_null(json);
    return json;
}

static void token_set(struct built *b, json_t *text, int32_t id, int32_t type)
{
    b->texts[id] = json_string_value(text);
    b->text_bytes[id] = json_string_length(text);
    b->types[id] = type;
}

static bool is_byte_token(const char *text)
{
    return strlen(text) == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static void texts_build(struct built *b)
{
    json_t *model = json_object_get(b->json, "model"), *vocab = json_object_get(model, "vocab");
    json_t *added = json_object_get(b->json, "added_tokens"), *value;
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    int size = 0;
    const char *key;
    size_t i, bytes;
    json_object_keylen_foreach(vocab, key, bytes, value)
    {
        int id = (int)json_integer_value(value);
        size = id >= size ? id + 1 : size;
    }
    json_array_foreach(added, i, value)
    {
        int id = (int)json_integer_value(json_object_get(value, "id"));
        size = id >= size ? id + 1 : size;
    }
    b->vocab.size = size;
    b->texts = calloc((size_t)size, sizeof *b->texts);
    b->text_bytes = calloc((size_t)size, sizeof *b->text_bytes);
    b->types = calloc((size_t)size, sizeof *b->types);
    b->scores = calloc((size_t)size, sizeof *b->scores);
    for (i = 0; i < (size_t)size; i++)
        b->texts[i] = "";
    json_object_keylen_foreach(vocab, key, bytes, value)
    {
        int id = (int)json_integer_value(value);
        b->texts[id] = key;
        b->text_bytes[id] = bytes;
        b->types[id] = fallback && is_byte_token(key) ? TOK_BYTE : TOK_NORMAL;
    }
    json_array_foreach(added, i, value)
    {
        bool special = json_is_true(json_object_get(value, "special"));
        token_set(b, json_object_get(value, "content"),
                  (int32_t)json_integer_value(json_object_get(value, "id")),
                  special ? TOK_CONTROL : TOK_USER);
    }
}

static void merges_build(struct built *b)
{
    json_t *merges = json_object_get(json_object_get(b->json, "model"), "merges"), *value;
    size_t n = json_array_size(merges), i;
    b->vocab.n_merges = (int)n;
    b->merges = calloc(n, sizeof *b->merges);
    b->merge_bytes = calloc(n, sizeof *b->merge_bytes);
    b->joined = calloc(n, sizeof *b->joined);
    json_array_foreach(merges, i, value)
    {
        if (json_is_string(value)) {
            b->merges[i] = json_string_value(value);
            b->merge_bytes[i] = json_string_length(value);
            continue;
        }
        json_t *left = json_array_get(value, 0), *right = json_array_get(value, 1);
        size_t m = json_string_length(left), k = json_string_length(right);
        b->merges[i] = b->joined[i] = malloc(m + k + 1);
        memcpy(b->joined[i], json_string_value(left), m);
        b->joined[i][m] = ' ';
        memcpy(b->joined[i] + m + 1, json_string_value(right), k);
        b->merge_bytes[i] = m + k + 1;
    }
}

/* A token's score is the place of the first rule that makes it, as in a SentencePiece file. */
static void scores_build(struct built *b)
{
    json_t *vocab = json_object_get(json_object_get(b->json, "model"), "vocab");
    for (int i = 0; i < b->vocab.size; i++)
        b->scores[i] = -1e9f;
    for (int i = b->vocab.n_merges; i-- > 0;) {
        char text[1024];
        const char *space = memchr(b->merges[i] + 1, ' ', b->merge_bytes[i] - 1);
        size_t left = (size_t)(space - b->merges[i]), n = b->merge_bytes[i] - 1;
        assert_true(n < sizeof text);
        memcpy(text, b->merges[i], left);
        memcpy(text + left, space + 1, n - left);
        json_t *id = json_object_getn(vocab, text, n);
        if (id)
            b->scores[json_integer_value(id)] = (float)-i;
    }
}

static int32_t token_id(const struct built *b, const char *const *names)
{
    for (; *names; names++)
        for (int id = 0; id < b->vocab.size; id++)
            if (b->types[id] == TOK_CONTROL && strcmp(b->texts[id], *names) == 0)
                return id;
    return -1;
}

static struct built vocab_build(const char *folder, const struct source *s)
{
    static const char *const bos[] = {"<|begin_of_text|>", "<bos>", "<s>",
                                      "<｜begin▁of▁sentence｜>", NULL};
    struct built b = {.json = tokenizer_json(folder, s->name)};
    texts_build(&b);
    merges_build(&b);
    scores_build(&b);
    b.vocab.kind = s->kind;
    b.vocab.pre = s->pre;
    b.vocab.texts = b.texts;
    b.vocab.text_bytes = b.text_bytes;
    b.vocab.scores = b.scores;
    b.vocab.types = b.types;
    b.vocab.merges = b.merges;
    b.vocab.merge_bytes = b.merge_bytes;
    b.vocab.bos = token_id(&b, bos);
    b.vocab.eos = b.vocab.eot = b.vocab.unk = b.vocab.pad = -1;
    b.vocab.add_bos = s->bos;
    b.vocab.add_space_prefix = s->space_prefix;
    return b;
}

static void vocab_finish(struct built *b)
{
    for (int i = 0; i < b->vocab.n_merges; i++)
        free(b->joined[i]);
    free(b->joined);
    free(b->texts);
    free(b->merges);
    free(b->text_bytes);
    free(b->merge_bytes);
    free(b->scores);
    free(b->types);
    json_decref(b->json);
}

static bool ids_equal(const json_t *want, const struct tok_ids *got)
{
    if (json_array_size(want) != (size_t)got->n)
        return false;
    for (int i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, (size_t)i)) != got->ids[i])
            return false;
    return true;
}

static void ids_print(const struct tokenizer *t, const json_t *line, const struct tok_ids *got,
                      const char *key)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_ENSURE_ASCII);
    print_message("  %s differ: %.300s\n   got:", key, text);
    for (int i = 0; i < got->n && i < 20; i++)
        print_message(" %d", got->ids[i]);
    print_message(" of %d\n", tok_size(t));
    free(text);
}

static bool encode_check(const struct tokenizer *t, const json_t *line, const char *key, bool bos)
{
    struct tok_ids ids = {0};
    struct err err = {0};
    json_t *text = json_object_get(line, "text"), *want = json_object_get(line, key);
    if (!want)
        want = json_object_get(line, "ids");
    struct tok_options options = {.special = true, .add_bos = bos};
    int code = tok_encode(t, json_string_value(text), json_string_length(text), &options, &ids,
                          &err);
    assert_int_equal(code, 0);
    bool equal = ids_equal(want, &ids);
    if (!equal)
        ids_print(t, line, &ids, key);
    free(ids.ids);
    return equal;
}

static bool decode_check(const struct tokenizer *t, const json_t *line, const char *key,
                         const char *otherwise, bool special)
{
    const json_t *ids = json_object_get(line, "ids"), *want = json_object_get(line, key);
    if (!want)
        want = json_object_get(line, otherwise);
    if (!want)
        want = json_object_get(line, "text");
    int32_t list[4096];
    int n = (int)json_array_size(ids);
    for (int i = 0; i < n; i++)
        list[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    struct strbuf out = {0};
    assert_int_equal(tok_decode(t, list, n, special, &out), 0);
    bool equal = out.len == json_string_length(want) &&
                 (out.len == 0 || memcmp(out.data, json_string_value(want), out.len) == 0);
    if (!equal)
        print_message("  %s differs: want '%s' got '%s'\n", key, json_string_value(want),
                      out.data ? out.data : "");
    strbuf_finish(&out);
    return equal;
}

static int lines_check(const char *folder, const struct source *s, const struct tokenizer *t,
                       bool bos)
{
    char path[PATH_MAX], line[1 << 16];
    snprintf(path, sizeof path, "%s/tokenizers/%s/vectors.jsonl", folder, s->name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    int wrong = 0, n = 0;
    for (; fgets(line, sizeof line, f); n++) {
        json_t *vector = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(vector);
        wrong += !encode_check(t, vector, "ids", false);
        wrong += bos && !encode_check(t, vector, "ids_special", true);
        wrong += !decode_check(t, vector, "decoded", "text", true);
        wrong += !decode_check(t, vector, "decoded_skip_special", "decoded", false);
        json_decref(vector);
    }
    fclose(f);
    print_message("%s (%s): %d texts, %d wrong\n", s->name, s->pre ? s->pre : "scores", n, wrong);
    return wrong;
}

/* Text and words so long that anything worse than linear would show. */
static void long_texts_check(const char *name, const struct tokenizer *t)
{
    static const char *const bits[] = {"The quick brown fox, 12 of them. ",
                                       "abcdefghijklmnop",
                                       " ",
                                       "\n",
                                       "a",
                                       "\xE4\xB8\xAD\xE6\x96\x87",
                                       "<",
                                       "<|",
                                       "\xFF"};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        size_t n = 0, bytes = strlen(bits[i]);
        char *text = malloc((1 << 20) + bytes);
        for (; n < 1 << 20; n += bytes)
            memcpy(text + n, bits[i], bytes);
        struct tok_ids ids = {0};
        struct err err = {0};
        struct tok_options options = {.special = true};
        clock_t start = clock();
        assert_int_equal(tok_encode(t, text, n, &options, &ids, &err), 0);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        print_message("  %s, 1 MB of '%.8s...': %d tokens in %.2f s\n", name, bits[i], ids.n,
                      seconds);
        assert_true(seconds < 20);
        free(ids.ids);
        free(text);
    }
}

static void published_tokenizers_agree(void **state)
{
    const char *folder = *state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct built b = vocab_build(folder, &sources[i]);
        struct tokenizer *t = NULL;
        struct err err = {0};
        int code = tok_create(&b.vocab, &t, &err);
        if (code < 0)
            print_error("%s\n", err.text);
        assert_int_equal(code, 0);
        long_texts_check(sources[i].name, t);
        wrong += lines_check(folder, &sources[i], t, b.vocab.add_bos);
        tok_destroy(t);
        vocab_finish(&b);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const char *folder = test_conformance();
    if (!folder) {
        printf("no conformance data: skipped\n");
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(published_tokenizers_agree, (void *)folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
