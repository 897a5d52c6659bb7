#include "testlib.h"

#include "server/commands/progress.h"

#include <string.h>

static int lines; /* since count_lines began */

/* Work of so many seconds, reported every hundredth of it; the last line in `last`. */
static void count_lines(bool terminal, double seconds, char last[128])
{
    struct progress p;
    progress_init(&p, "reading model.gguf", terminal, 1000);
    lines = 0;
    *last = '\0';
    for (int i = 1; i <= 100; i++)
        lines += progress_text(&p, i / 100.0, 1000 + seconds * i / 100, last, 128);
}

static void fast_work_says_nothing(void **state)
{
    (void)state;
    char last[128];
    count_lines(false, 1.9, last);
    assert_int_equal(lines, 0);
    count_lines(true, 0.15, last);
    assert_int_equal(lines, 0);
}

static void a_log_gets_few_lines(void **state)
{
    (void)state;
    char last[128];
    count_lines(false, 10, last);
    assert_in_range(lines, 1, 2);
    count_lines(false, 3600, last);
    assert_int_equal(lines, 9);
    assert_string_equal(last, "reading model.gguf: 90 %");
}

static void a_terminal_sees_it_move(void **state)
{
    (void)state;
    char last[128];
    count_lines(true, 20, last);
    assert_in_range(lines, 90, 99);
    assert_string_equal(last, "reading model.gguf: 99 %");
}

static void a_long_name_stays_on_its_line(void **state)
{
    (void)state;
    char name[300], out[128];
    struct progress p;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    progress_init(&p, name, true, 0);
    assert_true(progress_text(&p, 0.5, 1, out, sizeof out));
    assert_in_range(strlen(out), 1, 79);
    assert_string_equal(out + strlen(out) - 6, ": 50 %");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_work_says_nothing),
        cmocka_unit_test(a_log_gets_few_lines),
        cmocka_unit_test(a_terminal_sees_it_move),
        cmocka_unit_test(a_long_name_stays_on_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
