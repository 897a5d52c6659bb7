#include "json_in.h"
#include "schema.h"
#include "siphash.h"
#include "testlib.h"

#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static int code_of(const char *text, size_t n)
{
    struct err err = {0};
    json_t *v = json_in_parse(text, n, &err);
    json_decref(v);
    return v ? 0 : err.code;
}

static void refuses_what_is_not_one_plain_object(void **state)
{
    static const char *const wrong[] = {"",
                                        "[]",
                                        "5",
                                        "\"a\"",
                                        "{",
                                        "{}{}",
                                        "{} x",
                                        "{\"a\":1,}",
                                        "{'a':1}",
                                        "{\"a\":01}",
                                        "{a:1}",
                                        "{\"a\":NaN}",
                                        "{\"a\":+1}",
                                        "{\"a\":0x1}",
                                        "{\"a\":1,\"a\":2}",
                                        "\xef\xbb\xbf{}",
                                        "{\"a\":\"\\ud800\"}",
                                        "{\"a\":\"\xed\xa0\x80\"}",
                                        "{\"a\":\"\xc0\x80\"}",
                                        "{\"a\":9223372036854775808}",
                                        "{\"a\":1e400}",
                                        "{\"a\":\"\n\"}",
                                        "/**/{}"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(code_of(wrong[i], strlen(wrong[i])), ERR_FORMAT);
    assert_int_equal(code_of("{}\0", 3), ERR_FORMAT);
    assert_int_equal(code_of("{}", 2), 0);
    assert_int_equal(code_of("{\"a\":\"b\\u0000c\"}", 16), 0);
    assert_int_equal(code_of("{\"a\":-9223372036854775808}", 26), 0);
}

static char *nested(int depth)
{
    size_t n = (size_t)depth;
    char *text = malloc(2 * n + 16);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', n);
    memset(text + 5 + n, ']', n);
    memcpy(text + 5 + 2 * n, "}", 2);
    return text;
}

static void nests_2048_deep_and_no_deeper(void **state)
{
    (void)state;
    for (int depth = 2046; depth <= 2049; depth++) {
        char *text = nested(depth);
        int code = code_of(text, strlen(text));
        assert_int_equal(code, depth + 1 <= 2048 ? 0 : ERR_FORMAT);
        free(text);
    }
    char *deep = malloc(1 << 20);
    memset(deep, '[', 1 << 20);
    assert_true(code_of(deep, 1 << 20) < 0);
    free(deep);
}

static char *repeated(const char *head, const char *piece, size_t times, const char *tail)
{
    size_t n = strlen(piece);
    char *text = malloc(strlen(head) + times * n + strlen(tail) + 1), *at = text;
    at = stpcpy(at, head);
    for (size_t i = 0; i < times; i++)
        at = stpcpy(at, piece);
    stpcpy(at, tail);
    return text;
}

static void refuses_bodies_that_grow_in_memory(void **state)
{
    static const char *const bombs[] = {"{},", "[],", "0,", "\"\",", "{\"\":0},"};
    (void)state;
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        char *text = repeated("{\"a\":[", bombs[i], 1 << 20, "0]}");
        assert_int_equal(code_of(text, strlen(text)), ERR_LIMIT);
        free(text);
    }
}

static void accepts_long_texts_and_lists_of_tokens(void **state)
{
    static const char *const pieces[] = {"49151, ", "4915,", "151,", "\"word\",", "1.5e-3,"};
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char *text = repeated("{\"prompt\":[", pieces[i], 100000, "0]}");
        assert_int_equal(code_of(text, strlen(text)), 0);
        free(text);
    }
    char *text = repeated("{\"prompt\":\"", "some \\\"text\\\", ", 100000, "\"}");
    assert_int_equal(code_of(text, strlen(text)), 0);
    free(text);
}

static size_t in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void the_weight_is_never_less_than_what_is_taken(void **state)
{
    static const char *const pieces[] = {"{},",
                                         "[],",
                                         "0,",
                                         "\"\",",
                                         "\"word\",",
                                         "1.5,",
                                         "true,",
                                         "[0],",
                                         "{\"a\":0},",
                                         "[[[]]],",
                                         "{\"abcdefghijk\":\"x\"},"};
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char *text = repeated("{\"a\":[", pieces[i], 20000, "0]}");
        size_t n = strlen(text), before = in_use();
        json_t *v = json_loadb(text, n, 0, NULL);
        size_t taken = in_use() - before;
        assert_non_null(v);
        if (before) /* sanitizers count elsewhere */
            assert_true(taken <= json_in_weight(text, n) * 5 / 4);
        json_decref(v);
        free(text);
    }
}

static void a_glance_finds_members_and_counts_numbers(void **state)
{
    static const struct {
        const char *text;
        size_t n; /* in the longest list of "p" */
    } cases[] = {
        {"{\"p\":[1,2,3]}", 3},
        {" {\"a\" : {\"p\":[1]}, \"b\":[\"p\"], \"p\" : [ -1 ,2.5e1, 3, 4 ] }", 4},
        {"{\"p\":[[1,2],[3,4,5],[]],\"q\":[1,2,3,4]}", 3},
        {"{\"a\":\"\\\"p\\\":[1]\",\"p\":[7]}", 1},
        {"{\"p\":[1,\"a\",2]}", 0},
        {"{\"p\":[1,2", 0},
        {"{\"p\":5,\"q\":[1]}", 1}, /* a number is a list of one */
        {"{\"p\":\"[1,2]\"}", 0},
        {"{\"p\":", 0},
        {"{\"p\":[]}", 0},
        {"[\"p\",[1,2]]", 0},
        {"{\"a\":\"\\", 0},
        {"{\"p", 0},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes = strlen(cases[i].text);
        char *text = memcpy(malloc(bytes + 1), cases[i].text, bytes); /* no zero behind it */
        const char *at = json_in_member(text, bytes, "p");
        size_t n = at ? json_in_longest_list(at, bytes - (size_t)(at - text)) : 0;
        if (n != cases[i].n)
            fail_msg("%s: %zu numbers", cases[i].text, n);
        free(text);
    }
}

static void the_member_that_is_wrong_is_named(void **state)
{
    static const char *const cases[][2] = {
        {"{\"prompt\":\"a\",\"seed\":18446744073709551615}", "seed"},
        {"{\"a\":{\"b\":1e999},\"c\":1}", "a"},
        {"{\"a\":[1,2,NaN]}", "a"},
        {"{\"a\":\"\\ud800\"}", "a"},
        {"{\"a\" : tru}", "a"},
        {"{\"a\":1 \"b\":2}", "a"},
        {"{", ""},
        {"nonsense", ""},
        {"[1e999]", ""},
    };
    char member[16];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_in_wrong_member(cases[i][0], strlen(cases[i][0]), member, sizeof member);
        assert_string_equal(member, cases[i][1]);
    }
}

static void json_in_strings_has_its_weight(void **state)
{
    (void)state;
    char *text = repeated("{\"arguments\":\"[", "0,", 1000, "0]\"}");
    assert_true(json_in_weight_inside(text, strlen(text)) >= 50 * 1000);
    assert_true(json_in_weight(text, strlen(text)) < 5000);
    free(text);
    text = repeated("{\"arguments\":\"{", "\\\"a\\\":{},", 1000, "}\"}");
    assert_true(json_in_weight_inside(text, strlen(text)) >= (256 + 2 * 48 + 48) * 1000);
    free(text);
}

static void as_many_numbers_as_announced_are_never_too_much(void **state)
{
    (void)state;
    char *text = repeated("{\"prompt\":[", "1,", 200000, "0]}");
    assert_int_equal(code_of(text, strlen(text)), ERR_LIMIT);
    json_in_setup(200001);
    assert_int_equal(code_of(text, strlen(text)), 0);
    json_in_setup(0);
    free(text);
}

/* ---- the table ---- */

struct sample {
    bool flag;
    int64_t whole;
    double number;
    const char *text;
    const json_t *list, *given;
};

static const struct schema_field fields[] = {
    {"flag", SCHEMA_BOOL, SCHEMA_HONOUR, offsetof(struct sample, flag), 0, 0, NULL, NULL},
    {"whole", SCHEMA_INT, SCHEMA_HONOUR, offsetof(struct sample, whole), -5, 5, NULL, NULL},
    {"number", SCHEMA_NUMBER, SCHEMA_HONOUR, offsetof(struct sample, number), 0, 2, NULL, NULL},
    {"text", SCHEMA_TEXT, SCHEMA_HONOUR, offsetof(struct sample, text), 1, 3, NULL, NULL},
    {"list", SCHEMA_LIST, SCHEMA_HONOUR, offsetof(struct sample, list), 0, 0, NULL, NULL},
    {"given", SCHEMA_GIVEN_INT, SCHEMA_HONOUR, offsetof(struct sample, given), 0, 0, NULL, NULL},
    {"ignored", SCHEMA_TEXT, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
    {"refused", SCHEMA_LIST, SCHEMA_REFUSE, 0, 0, 0, schema_is_empty, NULL},
    {NULL, SCHEMA_ANY, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
};
static const struct schema_field *const tables[] = {fields, NULL};

static json_t *read_text(const char *text, struct sample *out, struct schema_unknown *unknown,
                         struct api_error *e)
{
    *e = (struct api_error){0};
    *unknown = (struct schema_unknown){0};
    return schema_read_body(text, strlen(text), tables, out, unknown, e);
}

static void reads_what_it_knows(void **state)
{
    struct sample s = {0};
    struct schema_unknown unknown;
    struct api_error e;
    (void)state;
    json_t *v = read_text(
        "{\"flag\":true,\"whole\":3.0,\"number\":1,\"text\":\"abc\",\"list\":[1],"
        "\"given\":-9223372036854775808,\"ignored\":\"x\",\"refused\":[],\"new\":1}",
        &s, &unknown, &e);
    assert_non_null(v);
    assert_true(s.flag);
    assert_int_equal(s.whole, 3);
    assert_true(s.number == 1);
    assert_string_equal(s.text, "abc");
    assert_int_equal(json_array_size(s.list), 1);
    assert_true(schema_int(s.given) == INT64_MIN);
    assert_int_equal(unknown.n, 1);
    assert_string_equal(unknown.names[0], "new");
    json_decref(v);
    s = (struct sample){.whole = 4, .text = "default"};
    v = read_text("{\"whole\":null,\"text\":null,\"refused\":null}", &s, &unknown, &e);
    assert_non_null(v);
    assert_int_equal(s.whole, 4);
    assert_string_equal(s.text, "default");
    json_decref(v);
}

static void refuses_and_names_the_field(void **state)
{
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"{\"flag\":1}", "flag"},        {"{\"whole\":6}", "whole"},
        {"{\"whole\":-6}", "whole"},     {"{\"whole\":1.5}", "whole"},
        {"{\"whole\":\"1\"}", "whole"},  {"{\"whole\":1e300}", "whole"},
        {"{\"number\":2.1}", "number"},  {"{\"number\":true}", "number"},
        {"{\"text\":\"abcd\"}", "text"}, {"{\"text\":\"\"}", "text"},
        {"{\"list\":{}}", "list"},       {"{\"given\":0.5}", "given"},
        {"{\"ignored\":1}", "ignored"},  {"{\"refused\":[1]}", "refused"},
    };
    struct sample s = {0};
    struct schema_unknown unknown;
    struct api_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(read_text(cases[i].text, &s, &unknown, &e));
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, cases[i].param);
        assert_non_null(strstr(e.message, cases[i].param));
    }
}

/* The first vectors of the reference implementation: key and message are 0, 1, 2 ... */
static void siphash_is_siphash(void **state)
{
    static const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    unsigned char message[16];
    (void)state;
    for (int i = 0; i < 16; i++)
        message[i] = (unsigned char)i;
    assert_true(siphash(key, message, 0) == 0x726fdb47dd0e0e31);
    assert_true(siphash(key, message, 1) == 0x74f839c593dc67fd);
    assert_true(siphash(key, message, 15) == 0xa129ca6149be45e5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_not_one_plain_object),
        cmocka_unit_test(nests_2048_deep_and_no_deeper),
        cmocka_unit_test(refuses_bodies_that_grow_in_memory),
        cmocka_unit_test(accepts_long_texts_and_lists_of_tokens),
        cmocka_unit_test(a_glance_finds_members_and_counts_numbers),
        cmocka_unit_test(the_member_that_is_wrong_is_named),
        cmocka_unit_test(json_in_strings_has_its_weight),
        cmocka_unit_test(as_many_numbers_as_announced_are_never_too_much),
        cmocka_unit_test(the_weight_is_never_less_than_what_is_taken),
        cmocka_unit_test(reads_what_it_knows),
        cmocka_unit_test(refuses_and_names_the_field),
        cmocka_unit_test(siphash_is_siphash),
    };
    json_in_setup(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
