#include "testlib.h"
#include "vocab.h"

#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct tok_options plain_text = {0}, with_special = {.special = true};

static struct tok_ids encode(const struct tokenizer *t, const char *text, size_t bytes,
                             const struct tok_options *options)
{
    struct tok_ids ids = {0};
    struct err err = {0};
    int code = tok_encode(t, text, bytes, options, &ids, &err);
    if (code < 0)
        print_error("%s\n", err.text);
    assert_int_equal(code, 0);
    return ids;
}

/* Encodes and compares with the ids given, which end with -1. */
static void encode_check(const struct tokenizer *t, const char *text,
                         const struct tok_options *options, const int32_t *want)
{
    struct tok_ids ids = encode(t, text, strlen(text), options);
    int n = 0;
    while (want[n] >= 0)
        n++;
    if (n != ids.n || (n && memcmp(ids.ids, want, (size_t)n * sizeof *want) != 0)) {
        print_error("'%s' gave:", text);
        for (int i = 0; i < ids.n; i++)
            print_error(" %d", ids.ids[i]);
        fail_msg("(%d wanted)", n);
    }
    free(ids.ids);
}
#define IDS(...)                                                                                   \
    (const int32_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__, -1                                                                            \
    }

static void round_trip(const struct tokenizer *t, const char *text, size_t bytes,
                       const struct tok_options *options)
{
    struct tok_ids ids = encode(t, text, bytes, options);
    struct strbuf out = {0};
    assert_int_equal(tok_decode(t, ids.ids, ids.n, true, &out), 0);
    assert_int_equal(out.len, bytes);
    if (bytes)
        assert_memory_equal(out.data, text, bytes);
    strbuf_finish(&out);
    free(ids.ids);
}

/* ---- byte-level BPE ---- */

/* Bytes are their own ids, then: h+e, t+he, space+the, l+l. */
static void small_bpe(struct vocab *b, const char *pre)
{
    vocab_init(b, TOK_BPE, pre);
    vocab_add_bytes(b);
    vocab_merge(b, "h", "e");
    vocab_merge(b, "t", "he");
    vocab_merge(b, "\xC4\xA0", "the");
    vocab_merge(b, "l", "l");
}

static void merges_apply_by_rank(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "gpt-2");
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "the the", &plain_text, IDS(257, 258));
    encode_check(t, "hello", &plain_text, IDS(256, 259, 'o'));
    encode_check(t, "lll", &plain_text, IDS(259, 'l'));
    encode_check(t, "", &plain_text, IDS(-1));
    encode_check(t, "\xC3\xA9", &plain_text, IDS(0xC3, 0xA9));
    size_t bytes;
    assert_memory_equal(tok_piece(t, 258, false, &bytes), " the", 4);
    assert_int_equal(bytes, 4);
    assert_int_equal(tok_find(t, " the", 4), 258);
    assert_int_equal(tok_find(t, "nothing", 7), -1);
    tok_destroy(t);
    vocab_finish(&b);
}

static void ignore_merges_keeps_a_word_that_is_a_token(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "gpt-2");
    int32_t word = vocab_add(&b, "hold", TOK_NORMAL, 0);
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "hold", &plain_text, IDS('h', 'o', 'l', 'd'));
    tok_destroy(t);
    b.v.ignore_merges = true;
    t = vocab_create(&b);
    encode_check(t, "hold", &plain_text, IDS(word));
    tok_destroy(t);
    b.v.ignore_merges = false;
    b.v.pre = "llama-bpe";
    t = vocab_create(&b);
    encode_check(t, "hold", &plain_text, IDS(word));
    tok_destroy(t);
    vocab_finish(&b);
}

/* Random rules over four letters; `rules` as ids, in order. */
enum { RULES = 200 };
struct rule {
    int32_t left, right, made;
};

static int random_rules(struct vocab *b, struct rule *rules, uint64_t *random)
{
    int n = 0;
    while (n < RULES) {
        int32_t pool[2];
        for (int i = 0; i < 2; i++)
            pool[i] = (int32_t)(test_random(random) % 2 && n
                                    ? 256 + test_random(random) % (unsigned)n
                                    : 'a' + test_random(random) % 4);
        char text[128];
        snprintf(text, sizeof text, "%s%s", b->texts[pool[0]], b->texts[pool[1]]);
        bool known = strlen(text) > 40;
        for (int32_t id = 0; id < b->v.size; id++)
            known = known || strcmp(b->texts[id], text) == 0;
        if (known)
            continue;
        rules[n++] = (struct rule){pool[0], pool[1],
                                   vocab_merge(b, b->texts[pool[0]], b->texts[pool[1]])};
    }
    return n;
}

/* The best rule that applies anywhere, at its leftmost place, again and again. */
static int naive_merge(const struct rule *rules, int32_t *ids, int n)
{
    for (int r = 0; r < RULES;) {
        int at = 0;
        while (at + 1 < n && !(ids[at] == rules[r].left && ids[at + 1] == rules[r].right))
            at++;
        if (at + 1 >= n) {
            r++;
            continue;
        }
        ids[at] = rules[r].made;
        memmove(&ids[at + 1], &ids[at + 2], (size_t)(n - at - 2) * sizeof *ids);
        n--;
        r = 0;
    }
    return n;
}

static void short_and_long_words_merge_alike(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    struct vocab b;
    struct rule rules[RULES];
    vocab_init(&b, TOK_BPE, "gpt-2");
    vocab_add_bytes(&b);
    random_rules(&b, rules, &random);
    struct tokenizer *t = vocab_create(&b);
    for (int round = 0; round < 300; round++) {
        char text[301];
        int32_t want[300];
        int n = 1 + (int)(test_random(&random) % (round % 2 ? 300 : 40));
        for (int i = 0; i < n; i++)
            want[i] = text[i] = (char)('a' + test_random(&random) % 4);
        int left = naive_merge(rules, want, n);
        struct tok_ids got = encode(t, text, (size_t)n, &plain_text);
        assert_int_equal(got.n, left);
        assert_memory_equal(got.ids, want, (size_t)left * sizeof *want);
        free(got.ids);
    }
    tok_destroy(t);
    vocab_finish(&b);
}

static void composed_first_where_the_row_says_so(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "qwen2");
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "e\xCC\x81", &plain_text, IDS(0xC3, 0xA9));
    tok_destroy(t);
    b.v.pre = "gpt-2";
    t = vocab_create(&b);
    encode_check(t, "e\xCC\x81", &plain_text, IDS('e', 0xCC, 0x81));
    tok_destroy(t);
    vocab_finish(&b);
}

/* ---- SentencePiece ---- */

#define MARK "\xE2\x96\x81"

static void small_spm(struct vocab *b)
{
    vocab_init(b, TOK_SPM, NULL);
    vocab_add(b, "<unk>", TOK_UNKNOWN, 0); /* 0 */
    b->v.bos = vocab_add(b, "<s>", TOK_CONTROL, 0);
    b->v.eos = vocab_add(b, "</s>", TOK_CONTROL, 0);
    vocab_add_bytes(b);                       /* 3 + byte */
    vocab_add(b, MARK, TOK_NORMAL, -10);      /* 259 */
    vocab_add(b, "t", TOK_NORMAL, -11);       /* 260 */
    vocab_add(b, "h", TOK_NORMAL, -12);       /* 261 */
    vocab_add(b, "th", TOK_NORMAL, -1);       /* 262 */
    vocab_add(b, MARK "t", TOK_NORMAL, -2);   /* 263 */
    vocab_add(b, MARK "th", TOK_NORMAL, -3);  /* 264 */
    vocab_add(b, MARK MARK, TOK_NORMAL, -4);  /* 265 */
    vocab_add(b, "\xC3\xA9", TOK_NORMAL, -5); /* 266 */
    b->v.unk = 0;
    b->v.add_bos = true;
    b->v.add_space_prefix = true;
}

static void scores_decide_in_spm(void **state)
{
    (void)state;
    struct vocab b;
    small_spm(&b);
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "th t", &plain_text, IDS(264, 263));
    encode_check(t, " th", &plain_text, IDS(259, 264));
    encode_check(t, "h\xC3\xA9!", &plain_text, IDS(259, 261, 266, 3 + '!'));
    encode_check(t, "\xE2\x82\xAC", &plain_text, IDS(259, 3 + 0xE2, 3 + 0x82, 3 + 0xAC));
    encode_check(t, "", &plain_text, IDS(-1));
    encode_check(t, "<s>t", &with_special, IDS(1, 263));
    encode_check(t, "t</s>t", &with_special, IDS(263, 2, 263));
    const struct tok_options bos = {.add_bos = true};
    encode_check(t, "t", &bos, IDS(1, 263));
    struct strbuf out = {0};
    tok_decode(t, IDS(1, 264, 263), 3, false, &out);
    assert_string_equal(out.data, "th t");
    strbuf_clear(&out);
    tok_decode(t, IDS(1, 264), 2, true, &out);
    assert_string_equal(out.data, "<s> th");
    strbuf_finish(&out);
    assert_true(tok_is_end(t, 2) && !tok_is_end(t, 1));
    assert_int_equal(tok_find(t, " th", 3), 264);
    assert_int_equal(tok_find(t, "\n", 1), 3 + '\n');
    assert_true(tok_default_bos(TOK_SPM, NULL) && tok_default_bos(TOK_BPE, "llama-bpe"));
    assert_false(tok_default_bos(TOK_BPE, "smollm") || tok_default_bos(TOK_BPE, "unknown"));
    tok_destroy(t);
    b.v.add_space_prefix = false;
    t = vocab_create(&b);
    encode_check(t, "th t", &plain_text, IDS(262, 263));
    tok_destroy(t);
    vocab_finish(&b);
}

/* Merges over characters ("gemma4"): explicit rules, no byte alphabet. */
static void characters_merge_by_rules(void **state)
{
    (void)state;
    struct vocab b;
    vocab_init(&b, TOK_SPM, "gemma4");
    vocab_add_bytes(&b);
    b.v.kind = TOK_BPE;
    int32_t mark = vocab_add(&b, MARK, TOK_NORMAL, 0), h = vocab_add(&b, "h", TOK_NORMAL, 0);
    int32_t e = vocab_add(&b, "\xC3\xA9", TOK_NORMAL, 0), he = vocab_merge(&b, "h", "\xC3\xA9");
    int32_t space_h = vocab_merge(&b, MARK, "h");
    int32_t line = vocab_add(&b, "\n", TOK_NORMAL, 0), lines = vocab_merge(&b, "\n", "\n");
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "h\xC3\xA9 h\xC3\xA9 h", &plain_text, IDS(he, mark, he, space_h));
    encode_check(t, "\xC3\xA9x\n\n\n", &plain_text, IDS(e, 'x', lines, line));
    round_trip(t, "h h\xFFh", 5, &plain_text);
    (void)h;
    tok_destroy(t);
    vocab_finish(&b);
}

/* ---- special tokens ---- */

struct specials {
    struct vocab b;
    struct tokenizer *t;
    int32_t start, started, user, spaces;
};

static void specials_init(struct specials *s)
{
    small_bpe(&s->b, "gpt-2");
    s->start = vocab_add(&s->b, "<|a|>", TOK_CONTROL, 0);
    s->started = vocab_add(&s->b, "<|a|>b", TOK_CONTROL, 0);
    s->user = vocab_add(&s->b, "<u>", TOK_USER, 0);
    s->spaces = vocab_add(&s->b, "   ", TOK_USER, 0);
    s->t = vocab_create(&s->b);
}

static void specials_finish(struct specials *s)
{
    tok_destroy(s->t);
    vocab_finish(&s->b);
}

static void the_longest_special_token_is_found_first(void **state)
{
    (void)state;
    struct specials s;
    specials_init(&s);
    encode_check(s.t, "x<|a|>b<|a|>c", &with_special, IDS('x', s.started, s.start, 'c'));
    encode_check(s.t, "<<|a|><|a|", &with_special, IDS('<', s.start, '<', '|', 'a', '|'));
    encode_check(s.t, "<|a|><u>", &plain_text, IDS('<', '|', 'a', '|', '>', s.user));
    encode_check(s.t, "x   y", &plain_text, IDS('x', s.spaces, 'y'));
    size_t bytes;
    tok_piece(s.t, s.start, false, &bytes);
    assert_int_equal(bytes, 0);
    assert_memory_equal(tok_piece(s.t, s.start, true, &bytes), "<|a|>", 5);
    tok_piece(s.t, s.user, false, &bytes);
    assert_int_equal(bytes, 3);
    assert_int_equal(tok_find(s.t, "<|a|>", 5), s.start);
    specials_finish(&s);
}

static void plain_bytes_never_become_special(void **state)
{
    (void)state;
    struct specials s;
    specials_init(&s);
    const char *text = "<|a|><|a|><u>   <|a|>b";
    unsigned char plain[22] = {0};
    for (int byte = 5; byte < 10; byte++) { /* any byte of the second one spoils it */
        memset(plain, 0, sizeof plain);
        plain[byte] = 1;
        memset(plain + 10, 1, 7); /* "<u>   <": spaces cannot forge anything */
        const struct tok_options o = {.special = true, .plain = plain};
        encode_check(s.t, text, &o,
                     IDS(s.start, '<', '|', 'a', '|', '>', '<', 'u', '>', s.spaces, '<', '|', 'a',
                         '|', '>', 'b'));
    }
    memset(plain, 0, sizeof plain);
    plain[21] = 1; /* the b: the shorter token is still possible */
    const struct tok_options o = {.special = true, .plain = plain};
    encode_check(s.t, text, &o, IDS(s.start, s.start, s.user, s.spaces, s.start, 'b'));
    specials_finish(&s);
}

static void phi3_swallows_space_behind_special_tokens(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "gpt-2");
    b.v.name = "Phi-3 mini";
    int32_t user = vocab_add(&b, "<|user|>", TOK_CONTROL, 0);
    int32_t bos = vocab_add(&b, "<s>", TOK_CONTROL, 0);
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "<|user|> \nx<s> x", &with_special, IDS(user, 'x', bos, ' ', 'x'));
    tok_destroy(t);
    vocab_finish(&b);
}

static void ends_are_known_by_name(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "gpt-2");
    int32_t normal = vocab_add(&b, "</s>", TOK_NORMAL, 0);
    int32_t im = vocab_add(&b, "<|im_end|>", TOK_CONTROL, 0);
    int32_t end = vocab_add(&b, "<|end|>", TOK_CONTROL, 0);
    int32_t done = vocab_add(&b, "<|return|>", TOK_USER, 0);
    b.v.eos = vocab_add(&b, "[stop]", TOK_CONTROL, 0);
    struct tokenizer *t = vocab_create(&b);
    assert_true(tok_is_end(t, im) && tok_is_end(t, end) && tok_is_end(t, done));
    assert_true(tok_is_end(t, b.v.eos));
    assert_false(tok_is_end(t, normal) || tok_is_end(t, 'a') || tok_is_end(t, -1));
    assert_false(tok_is_end(t, 1 << 20));
    int n;
    assert_non_null(tok_ends(t, &n));
    assert_int_equal(n, 4);
    tok_destroy(t);
    int32_t call = vocab_add(&b, "<|call|>", TOK_CONTROL, 0); /* harmony: end closes a message */
    t = vocab_create(&b);
    assert_true(tok_is_end(t, call) && !tok_is_end(t, end));
    tok_destroy(t);
    vocab_finish(&b);
}

/* ---- any bytes ---- */

static void random_bytes_survive(const struct tokenizer *t, uint64_t *random)
{
    static const char *const bits[] = {
        " ",        "  ",           "\n",       "\r\n",         "the",
        "\xC3\xA9", "\xE2\x82\xAC", "'s",       "12",           "\xF0\x9F\x98\x80",
        "\xFF",     "\xE2\x82",     "\xC0\x80", "\xED\xA0\x80", "",
        "!?",       "\xE4\xB8\xAD", "A",        "\t",           "\0x"};
    for (int round = 0; round < 300; round++) {
        char text[512];
        size_t n = 0;
        while (n < 400 && test_random(random) % 60) {
            const char *bit = bits[test_random(random) % 20];
            size_t bytes = strlen(bit) + (*bit == '\0');
            memcpy(text + n, bit, bytes);
            n += bytes;
            if (test_random(random) % 8 == 0)
                text[n++] = (char)test_random(random);
        }
        round_trip(t, text, n, &plain_text);
    }
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    uint64_t random = test_seed();
    struct vocab b;
    static const char *const names[] = {"gpt-2", "llama-bpe", "deepseek-v3", "smollm", "tekken"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        small_bpe(&b, names[i]);
        struct tokenizer *t = vocab_create(&b);
        random_bytes_survive(t, &random);
        tok_destroy(t);
        vocab_finish(&b);
    }
    small_spm(&b);
    struct tokenizer *t = vocab_create(&b);
    random_bytes_survive(t, &random);
    tok_destroy(t);
    vocab_finish(&b);
}

static void invalid_bytes_stand_alone(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "gpt-2");
    /* A rule that would join them. */
    vocab_merge(&b, "\xC3\xA2", "\xC4\xA4"); /* bytes E2 82 in the alphabet */
    struct tokenizer *t = vocab_create(&b);
    encode_check(t, "\xE2\x82\xAC", &plain_text, IDS(260, 0xAC));
    encode_check(t, "h\xE2\x82", &plain_text, IDS('h', 0xE2, 0x82));
    tok_destroy(t);
    vocab_finish(&b);
}

/* ---- vocabularies that are not right ---- */

static void create_fails(struct vocab *b, int want, const char *word)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    b->v.texts = (const char *const *)b->texts;
    b->v.text_bytes = b->text_bytes;
    b->v.types = b->types;
    b->v.merges = (const char *const *)b->merges;
    b->v.merge_bytes = b->merge_bytes;
    assert_int_equal(tok_create(&b->v, &t, &err), want);
    assert_non_null(strstr(err.text, word));
}

static void broken_vocabularies_are_refused(void **state)
{
    (void)state;
    struct vocab b;
    small_bpe(&b, "a-new-one");
    create_fails(&b, ERR_UNSUPPORTED, "a-new-one");
    b.v.pre = "gpt-2";
    b.v.eos = 1000;
    create_fails(&b, ERR_FORMAT, "1000");
    vocab_finish(&b);
    small_spm(&b);
    b.v.scores = NULL;
    create_fails(&b, ERR_FORMAT, "scores");
    vocab_finish(&b);
    vocab_init(&b, TOK_BPE, "gpt-2");
    create_fails(&b, ERR_FORMAT, "0 tokens");
}

static void a_byte_without_a_token_is_an_error_or_unknown(void **state)
{
    (void)state;
    struct vocab b;
    vocab_init(&b, TOK_BPE, "gpt-2");
    vocab_add(&b, "a", TOK_NORMAL, 0);
    struct tokenizer *t = vocab_create(&b);
    struct tok_ids ids = {0};
    struct err err = {0};
    assert_int_equal(tok_encode(t, "aab", 3, &plain_text, &ids, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "0x62"));
    assert_int_equal(ids.n, 0);
    free(ids.ids);
    tok_destroy(t);
    b.v.unk = vocab_add(&b, "<unk>", TOK_UNKNOWN, 0);
    t = vocab_create(&b);
    encode_check(t, "aab", &plain_text, IDS(0, 0, 1));
    tok_destroy(t);
    vocab_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_apply_by_rank),
        cmocka_unit_test(ignore_merges_keeps_a_word_that_is_a_token),
        cmocka_unit_test(short_and_long_words_merge_alike),
        cmocka_unit_test(composed_first_where_the_row_says_so),
        cmocka_unit_test(scores_decide_in_spm),
        cmocka_unit_test(characters_merge_by_rules),
        cmocka_unit_test(the_longest_special_token_is_found_first),
        cmocka_unit_test(plain_bytes_never_become_special),
        cmocka_unit_test(phi3_swallows_space_behind_special_tokens),
        cmocka_unit_test(ends_are_known_by_name),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(invalid_bytes_stand_alone),
        cmocka_unit_test(broken_vocabularies_are_refused),
        cmocka_unit_test(a_byte_without_a_token_is_an_error_or_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
