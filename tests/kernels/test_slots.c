/* No kernel without a check: every slot of every table of every level is there, and is called here
 * by itself (matrices) or is one of those that test_attention, test_vec and test_pick compare with
 * plain C. A slot that a table gains does not compile until it is counted here. */
#include "attention/kernels/attn_ops.h"
#include "mem.h"
#include "model/kernels/ops.h"
#include "model/kernels/pick.h"
#include "model/kernels/vec.h"
#include "testlib.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef void slot_fn(void);

enum {
    ATTN_SLOTS = 2 * KV_TYPE_COUNT + 5, /* test_attention: compare_slots and what follows it */
    VEC_SLOTS = 7,                      /* test_vec: slots */
    PICK_SLOTS = 3                      /* test_pick */
};
_Static_assert(sizeof(struct attn_ops) == ATTN_SLOTS * sizeof(slot_fn *), "compare it, count it");
_Static_assert(sizeof(struct vec_ops) == VEC_SLOTS * sizeof(slot_fn *), "compare it, count it");
_Static_assert(sizeof(struct pick_ops) == PICK_SLOTS * sizeof(slot_fn *), "compare it, count it");
_Static_assert(sizeof(struct matrix_ops) ==
                   (ACT_KIND_COUNT + 3 * (VALUES_TABLE + 1) + 2) * sizeof(int) +
                       (5 + 14 * FORMAT_COUNT) * sizeof(slot_fn *),
               "check it below, count it"); /* `peak` only measures */

static void no_slot_is_empty(void **state)
{
    (void)state;
    for (int level = ISA_C; level <= (int)cpu_isa(); level++) {
        struct attn_ops attn;
        slot_fn *slots[ATTN_SLOTS + VEC_SLOTS + PICK_SLOTS];
        attn_ops_fill(&attn, (enum isa)level);
        memcpy(slots, &attn, sizeof attn);
        memcpy(slots + ATTN_SLOTS, vec_ops((enum isa)level), sizeof(struct vec_ops));
        memcpy(slots + ATTN_SLOTS + VEC_SLOTS, pick_ops_of((enum isa)level),
               sizeof(struct pick_ops));
        for (int i = 0; i < ATTN_SLOTS + VEC_SLOTS + PICK_SLOTS; i++)
            if (!slots[i])
                fail_msg("%s: slot %d is empty", isa_name((enum isa)level), i);
    }
}

/* ---- matrices ---- */

enum { BLOCKS = 16, ROWS = 2 * MATRIX_GROUP - 3, COLS = 32 * BLOCKS, MOST_BYTES = ROWS * COLS * 4 };

struct bench {
    enum format_id format;
    struct matrix_how how;
    enum act_kind kind; /* what the core reads */
    int tokens;
    uint8_t source[MOST_BYTES];
    float x[TILE_MAX * COLS], found[TILE_MAX * ROWS], expected[TILE_MAX * ROWS];
};

/* Packed weights and activations. */
static void prepare(struct bench *b, struct matrix_how how, enum act_kind kind, struct matrix *m,
                    void **act)
{
    struct err err;
    assert_int_equal(matrix_init(m, b->format, ROWS, COLS, b->source, how, &err), 0);
    m->packed = test_buffer(m->packed_bytes);
    matrix_pack_rows(m, 0, ROWS);
    struct act_shape s = {kind, how.isa, COLS, b->tokens};
    *act = test_buffer(act_bytes(&s));
    act_pack(&s, *act, b->x, COLS, 0, b->tokens);
}

static void run_plain_c(struct bench *b)
{
    struct matrix m;
    struct matrix_how how = {ISA_C, b->how.mode};
    void *act, *scratch = test_buffer(matrix_scratch_bytes(b->format, COLS, how));
    prepare(b, how, matrix_act_kind(b->format, how, b->tokens), &m, &act);
    struct matrix_job job = {act, b->tokens, 0, b->tokens, b->expected, ROWS, 0, scratch};
    matrix_mul(&m, &job, 0, ROWS);
    mem_free(scratch);
    mem_free(act);
    mem_free(m.packed);
}

/* Calls the core; with `expand` on the two groups taken apart. */
static void run_core(struct bench *b, core_fn *core, expand_fn *expand)
{
    struct matrix m;
    void *act;
    prepare(b, b->how, b->kind, &m, &act);
    bool exact = b->kind == ACT_TILED;
    size_t scales = exact ? 0 : scales_plane_bytes(codecs[b->format]->scales, COLS / 32);
    uint8_t *values = test_buffer((size_t)4 * BLOCKS * PANEL_VALUES);
    float *factors = test_buffer((size_t)2 * BLOCKS * 5 * MATRIX_GROUP * sizeof *factors);
    factors_fn *make = expand ? NULL : matrix_ops(b->how.isa)->factors[b->format];
    struct core c = {.act = act, .out = b->found, .out_stride = ROWS, .rows = ROWS};
    c.blocks = exact ? COLS : COLS / 32;
    c.tiles = b->tokens / matrix_ops(b->how.isa)->tile[ACT_INT8];
    for (int g = 0; g < 2; g++) {
        const uint8_t *group = m.packed + (size_t)g * m.group_bytes;
        c.scales[g] = group;
        c.values[g] = group + scales;
        float *f = factors + (size_t)g * BLOCKS * 5 * MATRIX_GROUP;
        c.factors[g] = f;
        if (make)
            make(group, COLS / 32, f);
        if (!expand)
            continue;
        uint8_t *v = values + (size_t)g * 2 * BLOCKS * PANEL_VALUES;
        expand(group, COLS / 32, 0, COLS / 32, v, f);
        c.values[g] = v;
        c.scales[g] = (const uint8_t *)f;
    }
    core(&c);
    mem_free(values);
    mem_free(factors);
    mem_free(act);
    mem_free(m.packed);
}

static int checked;

static void check_core(struct bench *b, core_fn *core, int tokens, expand_fn *expand,
                       const char *what)
{
    b->tokens = tokens;
    run_plain_c(b);
    run_core(b, core, expand);
    if (memcmp(b->found, b->expected, (size_t)tokens * ROWS * sizeof(float)))
        fail_msg("%s, %d tokens: not the bits of plain C", what, tokens);
    checked++;
}

/* The cores of one format, which are there for every number of tokens that a tile may have. */
static void check_cores(struct bench *b, core_fn *const *cores, expand_fn *expand, const char *path)
{
    const struct matrix_ops *ops = matrix_ops(b->how.isa);
    int most = ops->tile[b->kind];
    char what[80];
    snprintf(what, sizeof what, "%s %s %s", isa_name(b->how.isa), path,
             format_infos[b->format].name);
    if (!cores)
        fail_msg("%s: there are no cores", what);
    for (int n = 1; n <= TILE_MAX; n++) {
        if (!cores[n] != (n > most))
            fail_msg("%s: a core for %d tokens; tiles have %d at most", what, n, most);
        if (cores[n])
            check_core(b, cores[n], n, expand, what);
    }
}

/* The core of a whole tile with factors made before, where there is one. */
static void check_factored(struct bench *b)
{
    const struct matrix_ops *ops = matrix_ops(b->how.isa);
    if (!ops->factors[b->format] != !ops->factored[b->format])
        fail_msg("%s: factors without a core, or a core without", format_infos[b->format].name);
    if (ops->factored[b->format])
        check_core(b, ops->factored[b->format], ops->tile[ACT_INT8], NULL, "factored");
}

/* The core of many whole tiles, where there is one; test_matrix gives it more. */
static void check_blockwise(struct bench *b)
{
    const struct matrix_ops *ops = matrix_ops(b->how.isa);
    if (ops->blockwise[b->format])
        check_core(b, ops->blockwise[b->format], 2 * ops->tile[ACT_INT8], NULL, "blockwise");
}

/* Whether the direct cores take as many tokens as ever come with activations of the kind. */
static bool direct_takes_all(const struct bench *b, core_fn *const *direct)
{
    const struct matrix_ops *ops = matrix_ops(b->how.isa);
    int most = 0, tile = ops->tile[b->kind];
    for (int n = 1; n < 1000; n++)
        if (matrix_act_kind(b->format, b->how, n) == b->kind)
            most = n;
    int tiles = b->kind == ACT_INT16 ? 1 : ops->direct_tiles[codecs[b->format]->values];
    return most == 0 || (direct && (most + tile - 1) / tile <= tiles);
}

/* The cores that read activations of one kind. */
static void check_kind(struct bench *b, enum act_kind kind)
{
    static const char *const panels[] = {"panel", "wide panel", "words", "wide words"};
    const struct matrix_ops *ops = matrix_ops(b->how.isa);
    bool wide = kind == ACT_INT16 || kind == ACT_WORDS16;
    b->kind = kind;
    b->how.mode = wide ? MATRIX_INT16 : MATRIX_INT8;
    core_fn *const *direct = kind == ACT_INT8    ? ops->direct[b->format]
                             : kind == ACT_INT16 ? ops->wide[b->format]
                                                 : NULL;
    if (direct)
        check_cores(b, direct, NULL, wide ? "wide direct" : "direct");
    if (ops->panel[kind][b->format]) {
        assert_non_null(ops->expand[kind][b->format]);
        check_cores(b, ops->panel[kind][b->format], ops->expand[kind][b->format], panels[kind]);
    } else if (!direct_takes_all(b, direct)) {
        fail_msg("%s %s: no cores for %s", isa_name(b->how.isa), format_infos[b->format].name,
                 panels[kind]);
    }
}

static void check_format(struct bench *b, enum format_id f, enum isa level)
{
    b->format = f;
    b->how = (struct matrix_how){level, MATRIX_INT8};
    if (codecs[f]->values == VALUES_FLOAT) {
        b->kind = ACT_TILED;
        check_cores(b, matrix_ops(level)->floats[f], NULL, "float");
        return;
    }
    for (int kind = 0; kind < ROUNDED_KINDS; kind++)
        check_kind(b, (enum act_kind)kind);
    b->kind = ACT_INT8;
    b->how.mode = MATRIX_INT8;
    check_factored(b);
    check_blockwise(b);
}

static void every_matrix_kernel_gives_the_bits_of_plain_c(void **state)
{
    (void)state;
    static struct bench b;
    uint64_t seed = test_seed();
    test_weights(b.source, MOST_BYTES, b.x, TILE_MAX * COLS, &seed);
    for (int level = ISA_C + 1; level <= (int)cpu_isa(); level++) {
        checked = 0;
        for (int f = 0; f < FORMAT_COUNT; f++)
            if (format_known((enum format_id)f))
                check_format(&b, (enum format_id)f, (enum isa)level);
        printf("%s: %d cores checked one by one\n", isa_name((enum isa)level), checked);
    }
}

/* The levels of this kind of CPU that this machine cannot run, so that nobody takes them for
 * tested. */
static void levels_that_cannot_run_are_named(void **state)
{
    (void)state;
    for (int level = (int)cpu_isa() + 1; level < ISA_COUNT; level++)
        printf("%s: %s lacks it; neither tested nor timed here\n", isa_name((enum isa)level),
               cpu_name());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_slot_is_empty),
        cmocka_unit_test(every_matrix_kernel_gives_the_bits_of_plain_c),
        cmocka_unit_test(levels_that_cannot_run_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
