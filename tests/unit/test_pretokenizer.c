#include "testlib.h"

#include "pretok_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Splits and joins the words with '|'. */
static char *split(const char *name, const char *text)
{
    struct pretokenizer *p = NULL;
    struct err err = {0};
    const uint32_t *ends;
    size_t n, start = 0, at = 0;
    if (pretok_create(name, &p, &err) < 0)
        fail_msg("%s", err.text);
    struct pretok_work *w = pretok_work_create();
    assert_int_equal(pretok_split(p, w, text, strlen(text), &ends, &n, &err), 0);
    char *out = malloc(strlen(text) * 2 + 1);
    for (size_t i = 0; i < n; i++) {
        if (i)
            out[at++] = '|';
        memcpy(out + at, text + start, ends[i] - start);
        at += ends[i] - start;
        start = ends[i];
    }
    out[at] = '\0';
    pretok_work_destroy(w);
    pretok_destroy(p);
    return out;
}

static void words_are_cut_as_each_model_was_trained(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *want;
    } rows[] = {
        {"gpt-2", "Hello  world's 12345 x", "Hello| | world|'s| 12345| x"},
        {"gpt-2", "a\n\n b!?", "a|\n\n| b|!?"},
        {"smollm", "in 1999!", "in| |1|9|9|9|!"},
        {"llama-bpe", "I'M 12345  x\n\n y", "I|'M| |123|45| | x|\n\n| y"},
        {"qwen2", "I'll 123(x)\n", "I|'ll| |1|2|3|(x|)\n"},
        {"deepseek-v3", "ab1234 中文.x", "ab|123|4| |中文|.x"},
        {"deepseek-llm", "a 中b 12  \n", "a| |中|b| |12|  |\n"},
        {"deepseek-coder", "x=12;", "x|=|1|2|;"},
        {"gpt-4o", "HelloWorld's 1234/\n", "Hello|World's| |123|4|/\n"},
        {"tekken", "HelloWorld 12", "Hello|World| |1|2"},
        {"kimi-k2", "你好abc 1234", "你好|abc| |123|4"},
        {"falcon", "a--b 12345", "a|--|b| |123|45"},
        {"afmoe", "x12345 y", "x|12|345| y"},
        {"superbpe", "a 1234567 b", "a |1|234|567| b"},
        {"tiny_aya", "12345 67x", "12|345| |67|x"},
        {"bloom", "Hi there, you", "Hi| there|,| you"},
        {"chameleon", "a  b1", "a|  |b|1"},
        {"gemma4", "a b\nc", "a b\nc"},
        {"default", "a.b 12345", "a|.|b| |123|45"},
        {"seed-coder", "a!\n", "a|!|\n"},
        {"exaone-moe", "ab cd 1", "ab cd| |1"},
        {"bailingmoe", "a\n\nb", "a|\n\n|b"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *got = split(rows[i].name, rows[i].text);
        if (strcmp(got, rows[i].want) != 0 && ++wrong)
            print_error("%s: '%s' became '%s', wanted '%s'\n", rows[i].name, rows[i].text, got,
                        rows[i].want);
        free(got);
    }
    assert_int_equal(wrong, 0);
}

static void an_unknown_name_is_named(void **state)
{
    (void)state;
    struct pretokenizer *p = NULL;
    struct err err = {0};
    struct pretok_traits traits;
    assert_int_equal(pretok_create("something-new", &p, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "something-new"));
    assert_false(pretok_find("something-new", &traits));
    assert_true(pretok_find("llama-bpe", &traits) && traits.ignore_merges && traits.adds_bos);
}

/* Texts that make careless patterns try everything from everywhere. */
static char *text_hard(const char *const bits[3], size_t bytes, size_t *n)
{
    size_t first = strlen(bits[0]), middle = strlen(bits[1]), last = strlen(bits[2]);
    char *text = malloc(bytes + first + middle + last);
    memcpy(text, bits[0], first);
    *n = first;
    while (*n < bytes) {
        memcpy(text + *n, bits[1], middle);
        *n += middle;
    }
    memcpy(text + *n, bits[2], last);
    *n += last;
    return text;
}

static void row_check(const char *name, struct pretok_work *w)
{
    static const char *const bits[][3] = {
        {"", "a", ""},         {"", "A", "1"},
        {"", "1", ""},         {"", "1", "a"},
        {"", " ", "x"},        {"", "\n", "x"},
        {"x", " ", "\n"},      {"", "!", "a"},
        {"", "a\xCC\x81", ""}, {"", "\xE4\xB8\xAD", "a"},
        {"", "Aa", ""},        {"", "a b", ""},
        {"", "'", "s"},        {"", "\xC2\xA0", "."},
        {"", "\x01", ""},      {"", "\xCC\x81", "1"},
    };
    struct pretokenizer *p = NULL;
    struct err err = {0};
    if (pretok_create(name, &p, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        const uint32_t *ends;
        size_t n, words;
        char *text = text_hard(bits[i], 1 << 19, &n);
        clock_t start = clock();
        if (pretok_split(p, w, text, n, &ends, &words, &err) < 0)
            fail_msg("%s, text %zu: %s", name, i, err.text);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 5)
            fail_msg("%s takes %.1f s for text %zu of 512 KB", name, seconds, i);
        if (seconds > 0.3)
            print_message("%s, text %zu: %.2f s\n", name, i, seconds);
        for (size_t j = 0, last = 0; j < words; last = ends[j++])
            assert_true(ends[j] > last);
        assert_int_equal(ends[words - 1], n);
        free(text);
    }
    pretok_destroy(p);
}

static void every_row_cuts_long_texts_in_linear_time(void **state)
{
    (void)state;
    struct pretok_work *w = pretok_work_create();
    assert_non_null(w);
    for (int i = 0; i < pretok_n_rows; i++)
        row_check(pretok_rows[i].names[0], w);
    pretok_work_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_cut_as_each_model_was_trained),
        cmocka_unit_test(an_unknown_name_is_named),
        cmocka_unit_test(every_row_cuts_long_texts_in_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
