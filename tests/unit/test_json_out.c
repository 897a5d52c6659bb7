#include "json_out.h"
#include "testlib.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *escaped(const char *s, size_t n)
{
    struct strbuf b = {0};
    json_out_string(&b, s, n);
    return strbuf_take(&b);
}

static void check(const char *in, size_t n, const char *want)
{
    char *got = escaped(in, n);
    assert_string_equal(got, want);
    free(got);
}

static void escapes_what_json_and_line_splitters_need(void **state)
{
    (void)state;
    check("", 0, "\"\"");
    check("a\"b\\c/", 6, "\"a\\\"b\\\\c/\"");
    check("\b\t\n\f\r", 5, "\"\\b\\t\\n\\f\\r\"");
    check("\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\\u007f\"");
    check("\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa", 11,
          "\"\\u0085\\u2028\\u2029\xe2\x80\xaa\"");
    check("h\xc3\xa9\xf0\x9d\x84\x9e", 7, "\"h\xc3\xa9\xf0\x9d\x84\x9e\"");
}

static void replaces_invalid_bytes_one_by_one(void **state)
{
    (void)state;
#define R "\xef\xbf\xbd"
    check("\xff", 1, "\"" R "\"");
    check("a\xc3", 2, "\"a" R "\"");
    check("\xc3\xc3\xa9", 3, "\"" R "\xc3\xa9\"");
    check("\xc0\x80", 2, "\"" R R "\"");             /* overlong */
    check("\xed\xa0\x80", 3, "\"" R R R "\"");       /* surrogate */
    check("\xf4\x90\x80\x80", 4, "\"" R R R R "\""); /* beyond U+10FFFF */
    check("\xe2\x82x", 3, "\"" R R "x\"");
}

static void any_bytes_become_json_that_reads_back(void **state)
{
    uint64_t random = test_seed();
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char bytes[32];
        size_t n = test_random(&random) % sizeof bytes;
        for (size_t i = 0; i < n; i++) /* mostly lead and continuation bytes */
            bytes[i] = (char)(test_random(&random) % 3 ? 0x80 | test_random(&random)
                                                       : test_random(&random));
        char *text = escaped(bytes, n);
        json_t *v = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        if (utf8_valid(bytes, n)) {
            assert_int_equal(json_string_length(v), n);
            assert_memory_equal(json_string_value(v), bytes, n);
        }
        json_decref(v);
        free(text);
    }
}

static void whole_prefix_ends_between_characters(void **state)
{
    static const struct {
        const char *text;
        size_t n, whole;
    } cases[] = {
        {"", 0, 0},
        {"ab", 2, 2},
        {"a\xc3", 2, 1},
        {"\xc3\xa9", 2, 2},
        {"\xe2\x82", 2, 0},
        {"x\xf0\x9d\x84", 4, 1},
        {"\xff", 1, 1},
        {"\xa9\xa9\xa9", 3, 3},
        {"\xed\xa0", 2, 2}, /* can become nothing */
        {"\xe2\x82\xac", 3, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_whole(cases[i].text, cases[i].n), cases[i].whole);
    assert_int_equal(utf8_count("h\xc3\xa9\xf0\x9d\x84\x9e!", 8), 4);
}

static void floats_read_back_the_same(void **state)
{
    uint64_t random = test_seed();
    struct strbuf b = {0};
    (void)state;
    for (int i = 0; i < 2000000; i++) {
        union {
            uint32_t bits;
            float value;
        } u = {.bits = (uint32_t)test_random(&random)};
        if (i % 2) /* the usual range */
            u.value = test_uniform(&random) * (i % 4 == 1 ? 20.0f : 1e-3f);
        if (!isfinite(u.value))
            continue;
        strbuf_clear(&b);
        json_out_float(&b, u.value);
        char *end;
        float back = strtof(b.data, &end);
        if (back != u.value || *end)
            fail_msg("%.9g was written as %s", (double)u.value, b.data);
    }
    strbuf_finish(&b);
}

static void check_float(float v, const char *want)
{
    struct strbuf b = {0};
    json_out_float(&b, v);
    assert_string_equal(b.data, want);
    strbuf_finish(&b);
}

static void numbers_have_their_form(void **state)
{
    struct strbuf b = {0};
    (void)state;
    check_float(0, "0");
    check_float(-1.5f, "-1.5");
    check_float(0.25f, "0.25");
    check_float(-0.1f, "-0.100000001");
    check_float(NAN, "null");
    check_float(INFINITY, "null");
    check_float(123456.0f, "123456");
    json_out_int(&b, INT64_MIN);
    json_out_int(&b, INT64_MAX);
    json_out_int(&b, 0);
    strbuf_addc(&b, ' ');
    json_out_double(&b, 0.1);
    strbuf_addc(&b, ' ');
    json_out_double(&b, 1795993801.0);
    strbuf_addc(&b, ' ');
    json_out_double(&b, 1.0 / 3.0);
    assert_string_equal(b.data, "-922337203685477580892233720368547758070 0.1 1795993801 "
                                "0.3333333333333333");
    strbuf_finish(&b);
}

static void a_locale_with_commas_changes_nothing(void **state)
{
    (void)state;
    /* The program never sets a locale; should a library do, where one is installed: */
    if (setlocale(LC_ALL, "de_DE.UTF-8")) {
        check_float(-1.5f, "-1.5");
        check_float(0.0312500012f, "0.0312500019");
        setlocale(LC_ALL, "C");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escapes_what_json_and_line_splitters_need),
        cmocka_unit_test(replaces_invalid_bytes_one_by_one),
        cmocka_unit_test(any_bytes_become_json_that_reads_back),
        cmocka_unit_test(whole_prefix_ends_between_characters),
        cmocka_unit_test(floats_read_back_the_same),
        cmocka_unit_test(numbers_have_their_form),
        cmocka_unit_test(a_locale_with_commas_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
