/* The check at start finds whatever spoils a product. One kernel of a level after the other is
 * replaced by one that errs, in a process of its own: where products of some number of tokens
 * change, the check must leave the level out. */
#include "mem.h"
#include "model/kernels/ops.h"
#include "model/selfcheck.h"
#include "testlib.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 19, COLS = 256, TOKENS = 80 };

typedef void slot_fn(void);

/* ---- kernels that err ---- */

static void wrong_core(const struct core *c)
{
    c->out[0] = 1e9f;
}

static void wrong_expand(const uint8_t *group, int blocks, int first, int count, uint8_t *values,
                         float *scales)
{
    (void)group, (void)blocks, (void)first;
    memset(values, 1, (size_t)count * PANEL_VALUES);
    for (int i = 0; i < count * MATRIX_GROUP; i++)
        scales[i] = 1;
}

static void wrong_factors(const uint8_t *group, int blocks, float *factors)
{
    (void)group;
    for (int i = 0; i < blocks * MATRIX_GROUP; i++)
        factors[i] = 1;
}

static void wrong_act_row(const float *x, int blocks, uint8_t *records, size_t step)
{
    (void)x;
    for (int b = 0; b < blocks; b++)
        memset(records + (size_t)b * step, 0, sizeof(struct act_block));
}

/* ---- products ---- */

struct spoiling {
    uint8_t source[ROWS * COLS * sizeof(float)];
    float x[TOKENS * COLS], expected[TOKENS * ROWS], found[TOKENS * ROWS];
    enum format_id format; /* whose products the kernel may change */
    struct matrix_how how;
    int spoilt, changing;
};

/* Of the first n tokens, for n from `from` on; whether some are not as expected. */
static bool products_change(struct spoiling *s, struct matrix_how how, int from, float *out)
{
    struct matrix m;
    bool change = false;
    assert_int_equal(matrix_init(&m, s->format, ROWS, COLS, s->source, how, NULL), 0);
    void *act = test_buffer((size_t)TOKENS * COLS * sizeof(float));
    void *scratch = test_buffer(matrix_scratch_bytes(s->format, COLS, how));
    m.packed = test_buffer(m.packed_bytes);
    matrix_pack_rows(&m, 0, ROWS);
    for (int n = from; n <= TOKENS && !change; n++) {
        struct act_shape shape = matrix_act_shape(&m, n);
        act_pack(&shape, act, s->x, COLS, 0, n);
        const struct matrix_job job = {act, n, 0, n, out, ROWS, 0, scratch};
        matrix_mul(&m, &job, 0, ROWS);
        change = memcmp(out, s->expected, (size_t)n * ROWS * sizeof *out) != 0;
    }
    mem_free(m.packed);
    mem_free(scratch);
    mem_free(act);
    return change;
}

/* What follows spoils products of this mode. */
static void choose_mode(struct spoiling *s, enum matrix_mode mode)
{
    s->how.mode = mode;
    products_change(s, (struct matrix_how){ISA_C, mode}, TOKENS, s->expected);
}

/* ---- one kernel after the other ---- */

/* Tables are read-only. */
static bool replace(slot_fn *const *slot, slot_fn *by)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot / page * page;
    if (mprotect((void *)at, page, PROT_READ | PROT_WRITE))
        return false;
    *(slot_fn **)(uintptr_t)slot = by;
    return true;
}

enum { CHANGES = 1, LEFT_OUT = 2, BROKEN = 4 };

/* In a process of its own; slot NULL: with every kernel as it is. */
static int outcome(struct spoiling *s, slot_fn *const *slot, slot_fn *by)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        /* the check warns */
        if (!freopen("/dev/null", "w", stderr) || (slot && !replace(slot, by)))
            _exit(BROKEN);
        memset(s->found, 0xff, sizeof s->found);
        int changes = products_change(s, s->how, 1, s->found) ? CHANGES : 0;
        _exit(changes | (selfcheck_level(s->how.isa) != s->how.isa ? LEFT_OUT : 0));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < BROKEN);
    return WEXITSTATUS(status);
}

/* tokens: of the kernel's tile, or 0. */
static void spoil(struct spoiling *s, slot_fn *const *slot, slot_fn *by, const char *what,
                  int tokens)
{
    if (!*slot)
        return;
    s->spoilt++;
    int o = outcome(s, slot, by);
    s->changing += o & CHANGES;
    if (o == CHANGES)
        fail_msg("%s %s, %s (mode %d, tile of %d): spoilt, and the check at start does not see it",
                 isa_name(s->how.isa), format_infos[s->format].name, what, s->how.mode, tokens);
}

/* By tokens of a tile. */
static void spoil_cores(struct spoiling *s, core_fn *const *cores, const char *what)
{
    for (int n = 1; cores && n <= TILE_MAX; n++)
        spoil(s, (slot_fn *const *)&cores[n], (slot_fn *)wrong_core, what, n);
}

static void spoil_kind(struct spoiling *s, const struct matrix_ops *ops, enum act_kind kind)
{
    enum format_id f = s->format;
    spoil(s, (slot_fn *const *)&ops->act_row[kind], (slot_fn *)wrong_act_row, "act_row", 0);
    spoil(s, (slot_fn *const *)&ops->expand[kind][f], (slot_fn *)wrong_expand, "expand", 0);
    spoil_cores(s, ops->panel[kind][f], "panel");
}

static void spoil_format(struct spoiling *s, const struct matrix_ops *ops)
{
    enum format_id f = s->format;
    choose_mode(s, MATRIX_INT8);
    spoil_cores(s, ops->floats[f], "floats");
    if (codecs[f]->values == VALUES_FLOAT)
        return;
    spoil_kind(s, ops, ACT_INT8);
    spoil_kind(s, ops, ACT_WORDS8);
    spoil_cores(s, ops->direct[f], "direct");
    spoil(s, (slot_fn *const *)&ops->factors[f], (slot_fn *)wrong_factors, "factors", 0);
    spoil(s, (slot_fn *const *)&ops->factored[f], (slot_fn *)wrong_core, "factored", 0);
    spoil(s, (slot_fn *const *)&ops->blockwise[f], (slot_fn *)wrong_core, "blockwise", 0);
    choose_mode(s, MATRIX_INT16);
    spoil_kind(s, ops, ACT_INT16);
    spoil_kind(s, ops, ACT_WORDS16);
    spoil_cores(s, ops->wide[f], "wide");
}

static void what_spoils_a_product_is_found(void **state)
{
    (void)state;
    static struct spoiling s;
    if (cpu_isa() == ISA_C)
        skip();
    uint64_t seed = 1;
    test_weights(s.source, sizeof s.source, s.x, TOKENS * COLS, &seed);
    for (int level = ISA_C + 1; level <= (int)cpu_isa(); level++) {
        s.how.isa = (enum isa)level;
        s.format = FORMAT_Q4_0;
        choose_mode(&s, MATRIX_INT8);
        assert_int_equal(outcome(&s, NULL, NULL), 0);
        s.spoilt = s.changing = 0;
        for (int f = 0; f < FORMAT_COUNT; f++)
            if (format_known((enum format_id)f)) {
                s.format = (enum format_id)f;
                spoil_format(&s, matrix_ops((enum isa)level));
            }
        printf("%s: %d kernels spoilt, %d change products\n", isa_name((enum isa)level), s.spoilt,
               s.changing);
        assert_true(s.changing > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_spoils_a_product_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
