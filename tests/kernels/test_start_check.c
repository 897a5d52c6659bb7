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

/* ---- products, of which one is right ---- */

struct problem {
    uint8_t source[ROWS * COLS * sizeof(float)];
    float x[TOKENS * COLS], expected[TOKENS * ROWS], found[TOKENS * ROWS];
};

/* Bytes below 0x3c: whatever number format reads them, its scales are small and finite. */
static void problem_init(struct problem *p)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof p->source; i++)
        p->source[i] = (uint8_t)(test_random(&seed) % 0x3c);
    for (size_t i = 0; i < TOKENS * COLS; i++)
        p->x[i] = test_uniform(&seed);
}

static void *buffer(size_t bytes)
{
    void *p = mem_alloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

/* Products of the first `from` to `to` tokens; whether one is not as expected. */
static bool products_change(struct problem *p, enum format_id format, struct matrix_how how,
                            int from, int to, float *out)
{
    struct matrix m;
    bool change = false;
    assert_int_equal(matrix_init(&m, format, ROWS, COLS, p->source, how, NULL), 0);
    void *act = buffer((size_t)TOKENS * COLS * sizeof(float));
    void *scratch = buffer(matrix_scratch_bytes(format, COLS, how));
    m.packed = buffer(m.packed_bytes);
    matrix_pack_rows(&m, 0, ROWS);
    for (int n = from; n <= to && !change; n++) {
        struct act_shape s = matrix_act_shape(&m, n);
        act_pack(&s, act, p->x, COLS, 0, n);
        const struct matrix_job job = {act, n, 0, n, out, ROWS, 0, scratch};
        matrix_mul(&m, &job, 0, ROWS);
        change = memcmp(out, p->expected, (size_t)n * ROWS * sizeof *out) != 0;
    }
    mem_free(m.packed);
    mem_free(scratch);
    mem_free(act);
    return change;
}

static bool level_changes(struct problem *p, enum format_id format, struct matrix_how how)
{
    struct matrix_how plain = {ISA_C, how.mode};
    products_change(p, format, plain, TOKENS, TOKENS, p->expected);
    memset(p->found, 0xff, sizeof p->found);
    return products_change(p, format, how, 1, TOKENS, p->found);
}

/* ---- one kernel after the other ---- */

struct spoiling {
    struct problem problem;
    struct matrix_how how;
    enum format_id format; /* whose products the kernel may change */
    int seen, changing;
};

/* Tables are read-only. */
static void replace(slot_fn *const *slot, slot_fn *by)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot / page * page;
    if (mprotect((void *)at, page, PROT_READ | PROT_WRITE))
        _exit(255);
    *(slot_fn **)(uintptr_t)slot = by;
}

enum { CHANGES = 1, LEFT_OUT = 2 };

static int outcome(struct spoiling *s, slot_fn *const *slot, slot_fn *by)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) /* the check's warning */
            _exit(255);
        if (by)
            replace(slot, by);
        int changes = level_changes(&s->problem, s->format, s->how) ? CHANGES : 0;
        _exit(changes | (selfcheck_level(s->how.isa) != s->how.isa ? LEFT_OUT : 0));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 255);
    return WEXITSTATUS(status);
}

static void spoil(struct spoiling *s, slot_fn *const *slot, slot_fn *by, const char *what)
{
    if (!*slot)
        return;
    s->seen++;
    int o = outcome(s, slot, by);
    s->changing += o & CHANGES;
    if (o == CHANGES)
        fail_msg("%s %s, %s: spoilt, and the check at start does not see it", isa_name(s->how.isa),
                 format_infos[s->format].name, what);
}

/* By tokens of a tile. */
static void spoil_cores(struct spoiling *s, core_fn *const *cores, const char *what)
{
    for (int n = 1; cores && n <= TILE_MAX; n++)
        spoil(s, (slot_fn *const *)&cores[n], (slot_fn *)wrong_core, what);
}

static void spoil_format(struct spoiling *s, const struct matrix_ops *ops)
{
    enum format_id f = s->format;
    s->how.mode = MATRIX_INT8;
    if (codecs[f]->values == VALUES_FLOAT) {
        spoil_cores(s, ops->floats[f], "floats");
        return;
    }
    for (int kind = 0; kind < ROUNDED_KINDS; kind++) {
        s->how.mode = kind == ACT_INT16 || kind == ACT_WORDS16 ? MATRIX_INT16 : MATRIX_INT8;
        spoil(s, (slot_fn *const *)&ops->act_row[kind], (slot_fn *)wrong_act_row, "act_row");
        spoil(s, (slot_fn *const *)&ops->expand[kind][f], (slot_fn *)wrong_expand, "expand");
        spoil_cores(s, ops->panel[kind][f], "panel");
    }
    spoil_cores(s, ops->wide[f], "wide");
    s->how.mode = MATRIX_INT8;
    spoil_cores(s, ops->direct[f], "direct");
    spoil(s, (slot_fn *const *)&ops->factors[f], (slot_fn *)wrong_factors, "factors");
    spoil(s, (slot_fn *const *)&ops->factored[f], (slot_fn *)wrong_core, "factored");
    spoil(s, (slot_fn *const *)&ops->blockwise[f], (slot_fn *)wrong_core, "blockwise");
}

static void what_spoils_a_product_is_found(void **state)
{
    (void)state;
    static struct spoiling s;
    if (cpu_isa() == ISA_C)
        skip();
    problem_init(&s.problem);
    for (int level = ISA_C + 1; level <= (int)cpu_isa(); level++) {
        s.how = (struct matrix_how){(enum isa)level, MATRIX_INT8};
        s.format = FORMAT_Q4_0;
        assert_int_equal(outcome(&s, NULL, NULL), 0); /* nothing is spoilt */
        s.seen = s.changing = 0;
        for (int f = 0; f < FORMAT_COUNT; f++)
            if (format_known((enum format_id)f)) {
                s.format = (enum format_id)f;
                spoil_format(&s, matrix_ops((enum isa)level));
            }
        printf("%s: %d kernels spoilt, %d change products\n", isa_name((enum isa)level), s.seen,
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
