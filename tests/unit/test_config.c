#include "testlib.h"

#include "cpu.h"
#include "err.h"
#include "formats.h"
#include "log.h"
#include "mem.h"
#include "strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- err ---- */

static void errors_carry_code_and_sentence(void **state)
{
    struct err err = {0};
    (void)state;
    assert_int_equal(err_set(&err, ERR_FORMAT, "found %d, expected %s", 3, "four"), ERR_FORMAT);
    assert_int_equal(err.code, ERR_FORMAT);
    assert_string_equal(err.text, "found 3, expected four");
    assert_int_equal(err_prefix(&err, "%s", "file.gguf"), ERR_FORMAT);
    assert_string_equal(err.text, "file.gguf: found 3, expected four");
    assert_int_equal(err_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
    assert_true(err_prefix(NULL, "nobody") < 0);
}

static void long_sentences_are_cut_at_the_end(void **state)
{
    char text[3000];
    struct err err = {0};
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    err_set(&err, ERR_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    err_prefix(&err, "%s", "short");
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_memory_equal(err.text, "short: xxx", 10);
    err_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

/* ---- mem ---- */

static void sizes_are_checked(void **state)
{
    size_t out = 7;
    (void)state;
    assert_false(mem_mul(SIZE_MAX / 2, 3, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
    assert_true(mem_mul(6, 7, &out) && out == 42);
    assert_true(mem_add(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_int_equal(mem_round_up(0, 64), 0);
    assert_int_equal(mem_round_up(1, 64), 64);
    assert_int_equal(mem_round_up(64, 64), 64);
    assert_null(mem_alloc(SIZE_MAX / 2, 3));
    assert_null(mem_alloc(1, SIZE_MAX));
    assert_null(mem_alloc((size_t)1 << 60, 1));
}

static void buffers_are_aligned_and_zeroed(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, (1 << 20) - 64, 1 << 20, 3 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = mem_alloc(sizes[i], 1);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % MEM_LINE, 0);
        for (size_t k = 0; k < sizes[i]; k += 1 + sizes[i] / 1000)
            assert_int_equal(p[k], 0);
        memset(p, 0xaa, sizes[i]);
        mem_free(p);
    }
    mem_free(NULL);
}

static void copies_end_with_a_zero(void **state)
{
    char *copy = mem_strndup("abcdef", 3);
    (void)state;
    assert_string_equal(copy, "abc");
    free(copy);
    copy = mem_strndup(NULL, 0);
    assert_string_equal(copy, "");
    free(copy);
}

static void arena_pieces_do_not_overlap(void **state)
{
    enum { PIECES = 300 };
    struct mem_arena arena = {0};
    unsigned char *pieces[PIECES];
    size_t sizes[PIECES], total = 0;
    uint64_t random = test_seed();
    (void)state;
    for (int i = 0; i < PIECES; i++) {
        sizes[i] = test_random(&random) % (i % 10 ? 100 : 9000);
        pieces[i] = mem_arena_alloc(&arena, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], i & 0xff, sizes[i]);
        total += sizes[i];
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(pieces[i][k], i & 0xff);
    assert_true(arena.total_bytes >= total && arena.total_bytes <= total + 16 * PIECES);
    assert_null(mem_arena_alloc(&arena, SIZE_MAX));
    mem_arena_finish(&arena);
    assert_int_equal(arena.total_bytes, 0);
    assert_string_equal(mem_arena_strndup(&arena, "again", 5), "again");
    mem_arena_finish(&arena);
}

/* ---- strbuf ---- */

static void buffers_grow_and_stay_terminated(void **state)
{
    struct strbuf b = {0};
    char expected[5001];
    (void)state;
    for (int i = 0; i < 5000; i++) {
        expected[i] = (char)('a' + i % 26);
        strbuf_addc(&b, expected[i]);
        assert_int_equal(b.data[b.len], '\0');
    }
    expected[5000] = '\0';
    assert_int_equal(b.len, 5000);
    assert_string_equal(b.data, expected);
    strbuf_clear(&b);
    strbuf_addf(&b, "%s-%04d", "n", 7);
    strbuf_adds(&b, "");
    strbuf_add(&b, "\0z", 2);
    assert_int_equal(b.len, 8);
    assert_memory_equal(b.data, "n-0007\0z", 9);
    strbuf_finish(&b);
    assert_null(b.data);
}

static void consumed_bytes_are_gone(void **state)
{
    struct strbuf b = {0};
    (void)state;
    strbuf_adds(&b, "0123456789");
    strbuf_consume(&b, 4);
    assert_string_equal(b.data, "456789");
    strbuf_consume(&b, 0);
    assert_string_equal(b.data, "456789");
    strbuf_consume(&b, 99);
    assert_int_equal(b.len, 0);
    strbuf_finish(&b);
}

static void taken_text_belongs_to_the_caller(void **state)
{
    struct strbuf b = {0};
    (void)state;
    char *empty = strbuf_take(&b);
    assert_string_equal(empty, "");
    free(empty);
    strbuf_adds(&b, "text");
    char *text = strbuf_take(&b);
    assert_string_equal(text, "text");
    assert_null(b.data);
    free(text);
}

static void failure_is_kept_until_the_end(void **state)
{
    struct strbuf b = {0};
    (void)state;
    strbuf_adds(&b, "before");
    assert_null(strbuf_reserve(&b, SIZE_MAX / 2));
    assert_true(b.failed);
    strbuf_adds(&b, "after");
    assert_int_equal(b.len, 6);
    assert_null(strbuf_take(&b));
}

/* ---- formats and levels ---- */

static void every_format_is_found_by_its_number(void **state)
{
    (void)state;
    for (int i = 0; i < FORMAT_COUNT; i++) {
        const struct format_info *f = &format_infos[i];
        assert_int_equal(format_from_gguf(f->gguf_type), i);
        assert_true(f->name && f->block_values > 0 && f->block_bytes > 0);
    }
    assert_int_equal(format_from_gguf(4), -1); /* a format that was withdrawn */
    assert_int_equal(format_from_gguf(UINT32_MAX), -1);
}

static void levels_are_found_by_their_names(void **state)
{
    (void)state;
    for (int i = 0; i < ISA_COUNT; i++)
        assert_int_equal(isa_from_name(isa_name((enum isa)i)), i);
    assert_int_equal(isa_from_name("mmx"), -1);
    assert_true(cpu_isa() < ISA_COUNT);
    assert_true(strlen(cpu_name()) > 0);
}

/* ---- log ---- */

static size_t logged(enum log_level most, enum log_level level, const char *text, char *out,
                     size_t size)
{
    int ends[2], kept = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    log_set_level(most);
    log_at(level, "%s", text);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[1]);
    ssize_t n = read(ends[0], out, size);
    close(ends[0]);
    log_set_level(LOG_INFO);
    return n > 0 ? (size_t)n : 0;
}

static void messages_are_one_line_up_to_the_level(void **state)
{
    char line[4096], text[3000];
    (void)state;
    size_t n = logged(LOG_INFO, LOG_WARNING, "careful", line, sizeof line);
    assert_int_equal(n, strlen("ropewalk: warning: careful\n"));
    assert_memory_equal(line, "ropewalk: warning: careful\n", n);
    assert_int_equal(logged(LOG_INFO, LOG_DEBUG, "chatter", line, sizeof line), 0);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    n = logged(LOG_DEBUG, LOG_DEBUG, text, line, sizeof line);
    assert_true(n > 2000 && n < 2100);
    assert_int_equal(line[n - 1], '\n');
    assert_int_equal(line[n - 2], 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_carry_code_and_sentence),
        cmocka_unit_test(long_sentences_are_cut_at_the_end),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(buffers_are_aligned_and_zeroed),
        cmocka_unit_test(copies_end_with_a_zero),
        cmocka_unit_test(arena_pieces_do_not_overlap),
        cmocka_unit_test(buffers_grow_and_stay_terminated),
        cmocka_unit_test(consumed_bytes_are_gone),
        cmocka_unit_test(taken_text_belongs_to_the_caller),
        cmocka_unit_test(failure_is_kept_until_the_end),
        cmocka_unit_test(every_format_is_found_by_its_number),
        cmocka_unit_test(levels_are_found_by_their_names),
        cmocka_unit_test(messages_are_one_line_up_to_the_level),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
