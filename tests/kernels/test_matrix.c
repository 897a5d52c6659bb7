#include "testlib.h"

#include "formats/codec.h"
#include "kernels/ops.h"
#include "matrix.h"
#include "mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Every format, level, number of tokens and odd size, against plain C: equality of bits. Plain C
 * against sums in double. */

enum { GUARD = 24 };
static const float guard_value = -12345.678f;

enum flavour_of_data { ORDINARY, EXTREME, BORDER };

struct problem {
    enum format_id format;
    enum matrix_mode mode;
    int rows, cols, tokens;
    enum flavour_of_data data;
    uint8_t *source;
    float *x;
    size_t row_bytes;
};

/* ---- data ---- */

/* Where blocks keep 16-bit scales. */
struct scale_places {
    enum format_id format;
    int at[2];
};
static const struct scale_places places[] = {
    {FORMAT_Q4_0, {0, 0}},     {FORMAT_Q4_1, {0, 2}},    {FORMAT_Q5_0, {0, 0}},
    {FORMAT_Q5_1, {0, 2}},     {FORMAT_Q8_0, {0, 0}},    {FORMAT_Q2_K, {80, 82}},
    {FORMAT_Q3_K, {108, 108}}, {FORMAT_Q4_K, {0, 2}},    {FORMAT_Q5_K, {0, 2}},
    {FORMAT_Q6_K, {208, 208}}, {FORMAT_IQ4_NL, {0, 0}},  {FORMAT_IQ4_XS, {0, 0}},
    {FORMAT_TQ1_0, {52, 52}},  {FORMAT_TQ2_0, {64, 64}},
};

static uint16_t random_scale(uint64_t *seed, enum flavour_of_data data)
{
    static const uint16_t extreme[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x3c00};
    uint64_t r = test_random(seed);
    if (data == EXTREME)
        return extreme[r % 7];
    if (data == BORDER)
        return 0x3c00;
    return (uint16_t)(0x2000 + (r & 0x8bff)); /* around 0.01 to 0.03, either sign */
}

static void fill_block(uint8_t *block, const struct problem *p, uint64_t *seed)
{
    int bytes = format_infos[p->format].block_bytes;
    int pattern = p->data == EXTREME ? (int)(test_random(seed) % 3) : p->data == BORDER ? 0 : 2;
    for (int i = 0; i < bytes; i++)
        block[i] = pattern == 0 ? 0x00 : pattern == 1 ? 0xff : (uint8_t)test_random(seed);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int n = 0; n < 2 && places[i].format == p->format; n++) {
            uint16_t scale = random_scale(seed, p->data);
            memcpy(block + places[i].at[n], &scale, sizeof scale);
        }
    if (p->format == FORMAT_Q6_K && p->data == BORDER)
        memset(block + 192, 0x80, 16); /* factors of -128 */
    if (p->format == FORMAT_MXFP4)
        block[0] = p->data == EXTREME ? (uint8_t)(test_random(seed) % 3) : 120 + block[1] % 4;
}

static void fill_float(uint8_t *value, const struct problem *p, uint64_t *seed)
{
    float f = test_uniform(seed);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t half = p->format == FORMAT_F16 ? random_scale(seed, p->data) : (uint16_t)(bits >> 16);
    if (p->format == FORMAT_F32)
        memcpy(value, &f, sizeof f);
    else
        memcpy(value, &half, sizeof half);
}

static float random_activation(uint64_t *seed, enum flavour_of_data data, int pattern)
{
    static const float extreme[] = {0.0f, -0.0f, 1e-41f, -1e-30f, 1e20f, 127, -127, 3e-30f};
    uint64_t r = test_random(seed);
    if (data == ORDINARY) {
        float v = test_uniform(seed);
        return r % 50 ? v : v * 30; /* real activations have spikes */
    }
    if (data == BORDER)
        return pattern % 3 ? 127 : -127;
    switch (pattern % 4) {
    case 0:
        return 127;
    case 1:
        return r & 1 ? 127 : -127;
    case 2:
        return 0;
    default:
        return extreme[r % 8];
    }
}

static void problem_init(struct problem *p, uint64_t *seed)
{
    const struct format_info *info = &format_infos[p->format];
    size_t blocks = (size_t)(p->cols / info->block_values);
    p->row_bytes = blocks * (size_t)info->block_bytes;
    p->source = malloc((size_t)p->rows * p->row_bytes);
    p->x = malloc((size_t)p->tokens * (size_t)p->cols * sizeof *p->x);
    assert_true(p->source && p->x);
    for (size_t i = 0; i < (size_t)p->rows * blocks; i++)
        if (info->block_values == 1)
            fill_float(p->source + i * (size_t)info->block_bytes, p, seed);
        else
            fill_block(p->source + i * (size_t)info->block_bytes, p, seed);
    for (int t = 0; t < p->tokens; t++)
        for (int k = 0; k < p->cols; k++)
            p->x[(size_t)t * (size_t)p->cols + (size_t)k] = random_activation(seed, p->data,
                                                                              t + k / 32);
}

static void problem_finish(struct problem *p)
{
    free(p->source);
    free(p->x);
}

/* ---- running ---- */

struct result {
    float *all, *out;
    size_t stride, count;
};

static void result_init(struct result *r, const struct problem *p)
{
    r->stride = (size_t)p->rows + GUARD;
    r->count = r->stride * (size_t)p->tokens + GUARD;
    r->all = malloc(r->count * sizeof *r->all);
    assert_non_null(r->all);
    for (size_t i = 0; i < r->count; i++)
        r->all[i] = guard_value;
    r->out = r->all + GUARD;
}

static void check_guards(const struct result *r, const struct problem *p)
{
    for (int i = 0; i < GUARD; i++)
        assert_true(r->all[i] == guard_value);
    for (int t = 0; t < p->tokens; t++)
        for (size_t i = (size_t)p->rows; i < r->stride; i++)
            assert_true(r->out[(size_t)t * r->stride + i] == guard_value);
}

/* A buffer whose end is against a page that cannot be touched. */
struct fenced {
    uint8_t *base, *p;
    size_t total;
};

static struct fenced fenced_alloc(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = mem_round_up(bytes + 1, page);
    struct fenced f = {.total = used + page};
    f.base = mmap(NULL, f.total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.base != MAP_FAILED);
    assert_int_equal(mprotect(f.base + used, page, PROT_NONE), 0);
    f.p = f.base + used - mem_round_up(bytes, MEM_LINE);
    return f;
}

static void fenced_free(struct fenced *f)
{
    munmap(f->base, f->total);
}

/* Packs and multiplies, in chunks of rows and of tokens as several workers would. */
static void run(const struct problem *p, enum isa isa, int chunk, struct result *r)
{
    struct matrix m;
    struct err err = {0};
    struct matrix_how how = {isa, p->mode};
    result_init(r, p);
    assert_int_equal(matrix_init(&m, p->format, p->rows, p->cols, p->source, how, &err), 0);
    struct act_shape s = matrix_act_shape(&m, p->tokens);
    struct fenced packed = fenced_alloc(m.packed_bytes), act = fenced_alloc(act_bytes(&s));
    struct fenced scratch = fenced_alloc(matrix_scratch_bytes(p->format, p->cols, how));
    m.packed = packed.p;
    for (int row = 0; row < p->rows; row += chunk)
        matrix_pack_rows(&m, row, row + chunk < p->rows ? row + chunk : p->rows);
    for (int t = 0; t < p->tokens; t += 5)
        act_pack(&s, act.p, p->x, (size_t)p->cols, t, t + 5 < p->tokens ? t + 5 : p->tokens);
    int tile = matrix_tile(&m, p->tokens);
    struct matrix_job job = {.act = act.p, .tokens = p->tokens, .scratch = scratch.p};
    job.out_stride = r->stride;
    for (int row = 0; row < p->rows; row += chunk) {
        job.out_row = row / chunk % 2 ? row : 0;
        job.out = r->out + job.out_row;
        job.t0 = 0;
        job.t1 = row / chunk % 3 ? p->tokens / 2 / tile * tile : p->tokens;
        for (; job.t0 < p->tokens; job.t0 = job.t1, job.t1 = p->tokens)
            if (job.t0 < job.t1)
                matrix_mul(&m, &job, row, row + chunk < p->rows ? row + chunk : p->rows);
    }
    check_guards(r, p);
    fenced_free(&packed);
    fenced_free(&act);
    fenced_free(&scratch);
}

static const char *describe(const struct problem *p)
{
    static char text[160];
    snprintf(text, sizeof text, "%s mode %d, %d rows, %d cols, %d tokens, %s",
             format_infos[p->format].name, p->mode, p->rows, p->cols, p->tokens,
             p->data == EXTREME ? "extreme" : "ordinary");
    return text;
}

static void compare_bits(const struct problem *p, enum isa isa, const struct result *got,
                         const struct result *want)
{
    for (int t = 0; t < p->tokens; t++)
        for (int i = 0; i < p->rows; i++) {
            float a = got->out[(size_t)t * got->stride + (size_t)i];
            float b = want->out[(size_t)t * want->stride + (size_t)i];
            if (memcmp(&a, &b, sizeof a) && !(isnan(a) && isnan(b)))
                fail_msg("%s at %s: token %d row %d is %a, plain C says %a", describe(p),
                         isa_name(isa), t, i, (double)a, (double)b);
        }
}

static void check_levels(struct problem p, uint64_t *seed)
{
    struct result want, got;
    problem_init(&p, seed);
    run(&p, ISA_C, 1024, &want);
    for (enum isa isa = ISA_C + 1; isa <= cpu_isa(); isa++) {
        int chunk = MATRIX_GROUP * (int)(1 + test_random(seed) % 6);
        run(&p, isa, chunk, &got);
        compare_bits(&p, isa, &got, &want);
        free(got.all);
    }
    free(want.all);
    problem_finish(&p);
}

/* ---- tests ---- */

static int random_cols(enum format_id format, uint64_t *seed)
{
    int block = format_infos[format].block_values;
    uint64_t r = test_random(seed);
    if (block > 1 && (r >> 32) % 16 == 0)
        return 32 * PANEL_BLOCKS + block; /* more than one panel */
    if (block == 256)
        return 256 * (int)(1 + r % 5);
    if (block == 32)
        return 32 * (int)(1 + r % 40);
    return (int)(1 + r % 300);
}

static void levels_give_the_bits_of_plain_c(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 16, 17, 40, 33, 70};
    static const int tokens[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                 11, 12, 13, 16, 17, 26, 32, 33, 39, 49};
    uint64_t seed = test_seed();
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens && format_known(f); i++)
            for (enum matrix_mode mode = MATRIX_INT8; mode <= MATRIX_INT16; mode++) {
                struct problem p = {.format = f, .mode = mode, .tokens = tokens[i]};
                p.rows = rows[test_random(&seed) % 7];
                p.cols = random_cols(f, &seed);
                p.data = test_random(&seed) % 2 ? EXTREME : ORDINARY;
                check_levels(p, &seed);
            }
}

/* Lowest codes times largest activations of one sign: what AVX2 adds up in 16 bits comes to 32,512
 * of either sign, and two halves of Q6_K times their factors to 16,646,144 of the 2^24 of a float.
 */
static void sums_reach_their_borders(void **state)
{
    (void)state;
    static const int formats[] = {FORMAT_Q4_0, FORMAT_Q5_0,  FORMAT_Q3_K,
                                  FORMAT_Q6_K, FORMAT_TQ1_0, FORMAT_TQ2_0};
    static const int tokens[] = {1, 2, 3, 4, 9, 66};
    uint64_t seed = test_seed();
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            struct problem p = {.format = (enum format_id)formats[f], .tokens = tokens[i]};
            p.mode = MATRIX_INT8;
            p.rows = 35;
            p.cols = 512;
            p.data = BORDER;
            check_levels(p, &seed);
        }
}

/* How far an exact product may be from the computed one: rounded activations are off by half a
 * step, and each float step rounds once. */
static double bound(const struct problem *p, const float *w, const float *x)
{
    double sum = 0, most = 0;
    double steps = p->mode == MATRIX_INT8 ? 127 : 32512;
    for (int k = 0; k < p->cols; k++) {
        most = 0;
        for (int i = k / 32 * 32; i < k / 32 * 32 + 32 && i < p->cols; i++)
            most = fmax(most, fabs((double)x[i]));
        bool exact = p->mode == MATRIX_FLOAT || format_infos[p->format].block_values == 1;
        double off = exact ? 0 : most / steps * 0.5001;
        sum += fabs((double)w[k]) * off + 6e-7 * fabs((double)w[k]) * most;
    }
    return sum * 1.1 + 1e-30;
}

static void check_against_doubles(struct problem p, enum isa isa, uint64_t *seed)
{
    struct result got;
    problem_init(&p, seed);
    run(&p, isa, 32, &got);
    float *w = malloc((size_t)p.cols * sizeof *w);
    assert_non_null(w);
    for (int r = 0; r < p.rows; r++) {
        format_unpack(p.format, p.source + (size_t)r * p.row_bytes, p.cols, w);
        for (int t = 0; t < p.tokens; t++) {
            const float *x = p.x + (size_t)t * (size_t)p.cols;
            double want = 0, value = (double)got.out[(size_t)t * got.stride + (size_t)r];
            for (int k = 0; k < p.cols; k++)
                want += (double)w[k] * (double)x[k];
            if (!(fabs(value - want) <= bound(&p, w, x)))
                fail_msg("%s: token %d row %d is %g, should be %g within %g", describe(&p), t, r,
                         value, want, bound(&p, w, x));
        }
    }
    free(w);
    free(got.all);
    problem_finish(&p);
}

static void products_are_right(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (enum matrix_mode mode = MATRIX_INT8; mode <= MATRIX_FLOAT && format_known(f); mode++) {
            struct problem p = {.format = f, .mode = mode, .tokens = 5, .rows = 35};
            p.cols = random_cols(f, &seed);
            check_against_doubles(p, ISA_C, &seed);
            check_against_doubles(p, cpu_isa(), &seed);
        }
}

static void numbers_that_are_not_finite_show(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (enum isa isa = ISA_C; isa <= cpu_isa(); isa++)
        for (int f = 0; f < FORMAT_COUNT; f++) {
            if (!format_known(f))
                continue;
            struct problem p = {.format = f, .rows = 5, .cols = 256, .tokens = 3};
            struct result got;
            problem_init(&p, &seed);
            p.x[256 + 40] = NAN;
            p.x[512 + 40] = INFINITY;
            run(&p, isa, 16, &got);
            assert_true(isfinite(got.out[0]));
            assert_true(isnan(got.out[got.stride]));
            assert_true(!isfinite(got.out[2 * got.stride]));
            free(got.all);
            problem_finish(&p);
        }
}

static void a_bad_shape_is_an_error(void **state)
{
    (void)state;
    struct matrix m;
    struct err err = {0};
    struct matrix_how how = {cpu_isa(), MATRIX_INT8};
    assert_int_equal(matrix_init(&m, FORMAT_Q4_K, 4, 200, NULL, how, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "Q4_K"));
    assert_int_equal(matrix_init(&m, FORMAT_Q4_K, 0, 256, NULL, how, &err), ERR_FORMAT);
    assert_int_equal(matrix_init(&m, FORMAT_I64, 4, 200, NULL, how, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "I64"));
}

static void packed_size_needs_no_data(void **state)
{
    (void)state;
    struct matrix_how own = {cpu_isa(), MATRIX_INT8}, blas = {cpu_isa(), MATRIX_FLOAT};
    assert_int_equal(matrix_packed_bytes(FORMAT_Q4_1, 576, 576, blas), 0);
    if (cpu_isa() == ISA_C)
        return;
    assert_int_equal(matrix_packed_bytes(FORMAT_Q4_1, 576, 576, own), 576 * 576 / 32 * 20);
    assert_int_equal(matrix_packed_bytes(FORMAT_F16, 17, 10, own), 32 * 10 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right),
        cmocka_unit_test(levels_give_the_bits_of_plain_c),
        cmocka_unit_test(sums_reach_their_borders),
        cmocka_unit_test(numbers_that_are_not_finite_show),
        cmocka_unit_test(a_bad_shape_is_an_error),
        cmocka_unit_test(packed_size_needs_no_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
