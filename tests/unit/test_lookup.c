#include "testlib.h"

#include "server/lookup.h"

#include <stdlib.h>
#include <string.h>

static void what_followed_before_is_guessed(void **state)
{
    (void)state;
    struct lookup l;
    int32_t tokens[] = {5, 1, 2, 3, 7, 8, 9, 1, 2, 3}, out[LOOKUP_MOST];
    lookup_init(&l);
    assert_int_equal(lookup_guess(&l, tokens, 10, 3, out), 3);
    assert_int_equal(out[0], 7);
    assert_int_equal(out[1], 8);
    assert_int_equal(out[2], 9);
    assert_int_equal(lookup_guess(&l, tokens, 9, 3, out), 0); /* 9 1 2 has not been seen before */
}

static void the_latest_occurrence_counts(void **state)
{
    (void)state;
    struct lookup l;
    int32_t tokens[] = {1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3}, out[LOOKUP_MOST];
    lookup_init(&l);
    assert_int_equal(lookup_guess(&l, tokens, 11, 1, out), 1);
    assert_int_equal(out[0], 5);
}

static void a_repetition_may_overlap_its_end(void **state)
{
    (void)state;
    struct lookup l;
    int32_t tokens[] = {4, 4, 4, 4}, out[LOOKUP_MOST];
    lookup_init(&l);
    assert_int_equal(lookup_guess(&l, tokens, 4, 7, out), 1);
    assert_int_equal(out[0], 4);
}

static void bad_guesses_make_it_rest(void **state)
{
    (void)state;
    struct lookup l;
    int32_t tokens[] = {1, 2, 3, 4, 1, 2, 3}, out[LOOKUP_MOST];
    int silent = 0;
    lookup_init(&l);
    for (int i = 0; i < 10 && lookup_guess(&l, tokens, 7, 3, out); i++)
        lookup_learn(&l, 3, 0);
    while (lookup_guess(&l, tokens, 7, 3, out) == 0)
        silent++;
    assert_in_range(silent, 10, 1000);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(lookup_guess(&l, tokens, 7, 3, out), 3);
        lookup_learn(&l, 3, 3);
    }
}

/* Whatever it guesses stood in the tokens after the same run. */
static void guesses_are_quotations(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 200; round++) {
        struct lookup l;
        int32_t tokens[600], out[LOOKUP_MOST];
        int n = 0;
        lookup_init(&l);
        while (n < 600) {
            tokens[n++] = (int32_t)(test_random(&seed) % 4);
            int count = lookup_guess(&l, tokens, n, LOOKUP_MOST, out);
            if (count == 0)
                continue;
            bool quoted = false;
            for (int at = 3; at + count <= n && !quoted; at++)
                quoted = !memcmp(tokens + at, out, (size_t)count * sizeof *out) &&
                         !memcmp(tokens + at - 3, tokens + n - 3, 3 * sizeof *out);
            assert_true(quoted);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_before_is_guessed),
        cmocka_unit_test(the_latest_occurrence_counts),
        cmocka_unit_test(a_repetition_may_overlap_its_end),
        cmocka_unit_test(bad_guesses_make_it_rest),
        cmocka_unit_test(guesses_are_quotations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
