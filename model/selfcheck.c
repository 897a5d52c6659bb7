#include "selfcheck.h"

#include "attention.h"
#include "kernels/pick.h"
#include "kernels/vec.h"
#include "kvcache.h"
#include "log.h"
#include "matrix.h"
#include "mem.h"

#include <stdlib.h>
#include <string.h>

/* A problem small enough for plain C in no time, large enough that every path of a kernel is taken:
 * a whole group of rows and a part of one, whole blocks of every format, few and many tokens in
 * tiles of every width (test_start_check spoils one kernel after the other). */
#define ROWS   19
#define COLS   256
#define TOKENS 68 /* so many that a level with panels has them for every format */
#define HEADS  4
#define HEAD   32
#define PAST   40 /* positions: a whole block and a part of one */

enum { RESULTS = 8 * COLS }; /* floats: most that a check compares */
_Static_assert(RESULTS >= ROWS * TOKENS, "products of all tokens");

struct problem {
    uint8_t *source; /* rows of any format */
    float *x;        /* [TOKENS][COLS] */
    uint8_t *packed, *act, *scratch, *blocks;
    float *expected, *found;
    size_t packed_bytes, act_bytes, scratch_bytes, block_bytes;
};

/* Bytes below 0x3c: whatever number format reads them, its scales are small and finite. */
static void fill_bytes(uint8_t *to, size_t n)
{
    uint32_t r = 12345;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        to[i] = (uint8_t)((r >> 24) % 0x3c);
    }
}

static void fill_floats(float *to, size_t n)
{
    uint32_t r = 54321;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)r * 0x1p-30f;
    }
}

/* ---- matrices ---- */

static bool prepare(struct problem *p, struct matrix *m, enum format_id format,
                    struct matrix_how how)
{
    if (matrix_init(m, format, ROWS, COLS, p->source, how, NULL) ||
        m->packed_bytes > p->packed_bytes)
        return false;
    m->packed = p->packed;
    matrix_pack_rows(m, 0, ROWS);
    return true;
}

static void multiply(const struct problem *p, const struct matrix *m, int tokens, float *out)
{
    struct act_shape shape = matrix_act_shape(m, tokens);
    act_pack(&shape, p->act, p->x, COLS, 0, tokens);
    const struct matrix_job job = {p->act, tokens, 0, tokens, out, ROWS, 0, p->scratch};
    matrix_mul(m, &job, 0, ROWS);
}

static bool same(const struct problem *p, size_t floats)
{
    return memcmp(p->expected, p->found, floats * sizeof *p->found) == 0;
}

/* All that plain C says of `most` tokens the level is asked for by few, several and many. */
static bool check_products(struct problem *p, enum format_id format, enum isa level,
                           enum matrix_mode mode, int most)
{
    static const int tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 17, 33, 34, 35, 65, 66, 67, TOKENS};
    struct matrix m;
    if (!prepare(p, &m, format, (struct matrix_how){ISA_C, mode}))
        return false;
    multiply(p, &m, most, p->expected);
    if (!prepare(p, &m, format, (struct matrix_how){level, mode}))
        return false;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0] && tokens[i] <= most; i++) {
        size_t floats = (size_t)ROWS * (size_t)tokens[i];
        memset(p->found, 0xff, floats * sizeof *p->found);
        multiply(p, &m, tokens[i], p->found);
        if (!same(p, floats))
            return false;
    }
    return true;
}

static bool check_format(struct problem *p, enum format_id format, enum isa level)
{
    return check_products(p, format, level, MATRIX_INT8, TOKENS) &&
           check_products(p, format, level, MATRIX_INT16, 17);
}

static bool check_matrices(struct problem *p, enum isa level)
{
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (format_known((enum format_id)f) && !check_format(p, (enum format_id)f, level)) {
            log_debug("%s kernels: products of %s are wrong", isa_name(level),
                      format_infos[f].name);
            return false;
        }
    return true;
}

/* ---- attention ---- */

static struct attn_shape attention_shape(enum kv_type type)
{
    return (struct attn_shape){.heads = HEADS,
                               .kv_heads = HEADS / 2,
                               .key_size = HEAD,
                               .value_size = HEAD,
                               .type = type,
                               .scale = 0.2f,
                               .softcap = 5};
}

static void attend(struct problem *p, struct pool *pool, enum kv_type type, enum isa level,
                   float *out)
{
    const struct attn_shape s = attention_shape(type);
    size_t bytes = attn_block_bytes(&s);
    void *blocks[] = {p->blocks, p->blocks + bytes};
    attn_set_isa(level);
    for (int i = 0; i < PAST; i++)
        attn_store(&s, blocks[i / KV_BLOCK_TOKENS], i % KV_BLOCK_TOKENS, p->x + 3 * i,
                   p->x + 5 * i);
    const struct attn_span span = {.q = p->x,
                                   .out = out,
                                   .q_stride = (size_t)HEADS * HEAD,
                                   .out_stride = (size_t)HEADS * HEAD,
                                   .n = 5,
                                   .position = PAST - 5,
                                   .blocks = blocks};
    attn_run(pool, &s, &span, 1, p->scratch);
}

static bool check_attention(struct problem *p, enum isa level)
{
    struct pool *pool;
    bool right = pool_create(1, 0, &pool, NULL) == 0;
    for (int t = 0; t < KV_TYPE_COUNT && right; t++) {
        attend(p, pool, (enum kv_type)t, ISA_C, p->expected);
        attend(p, pool, (enum kv_type)t, level, p->found);
        right = same(p, (size_t)5 * HEADS * HEAD);
        if (!right)
            log_debug("%s kernels: attention over %s is wrong", isa_name(level),
                      kv_type_name((enum kv_type)t));
    }
    pool_destroy(pool);
    attn_set_isa(cpu_isa());
    return right;
}

/* ---- row operations ---- */

static void run_rows(const struct problem *p, const struct vec_ops *v, float *out)
{
    const int n = COLS + 7;
    memcpy(out, p->x, 7 * COLS * sizeof *out);
    v->rms_norm(out, out, p->x + 1, n, 1e-5f);
    v->layer_norm(out + 2 * COLS, out + 2 * COLS, p->x, p->x + 3, n, 1e-5f);
    v->silu_mul(out + 4 * COLS, p->x + 1, COLS - 3);
    v->gelu_mul(out + 5 * COLS, p->x + 2, COLS - 3);
    v->softcap(out + 6 * COLS, 1.5f, COLS - 3);
    v->add(out, p->x + 9, n);
    v->scale(out, 0.3f, n);
}

static bool check_rows(struct problem *p, enum isa level)
{
    run_rows(p, vec_ops(ISA_C), p->expected);
    run_rows(p, vec_ops(level), p->found);
    return same(p, 7 * COLS);
}

/* ---- choosing a token ---- */

enum { PICKS = 4 * PICK_BLOCK + COLS + 7, PICK_SUMS = 6, PICK_MOST = 13 };

/* Sums side by side, one alone and a part of one. */
static void run_pick(const struct problem *p, const struct pick_ops *ops, float *out)
{
    double sums[PICK_SUMS];
    ops->exp(out, p->x, PICKS, 1.5f, 3.0f);
    ops->sums(out, PICKS, sums);
    ops->most(p->x, PICKS, 100, out + PICKS);
    memcpy(out + PICKS + PICK_MOST, sums, sizeof sums);
}

static bool check_pick(struct problem *p, enum isa level)
{
    run_pick(p, pick_ops_of(ISA_C), p->expected);
    run_pick(p, pick_ops_of(level), p->found);
    return same(p, PICKS + PICK_MOST + 2 * PICK_SUMS);
}

/* ---- all ---- */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void measure(struct problem *p, enum isa level)
{
    for (int kind = 0; kind < ACT_KIND_COUNT; kind++) {
        struct act_shape a = {(enum act_kind)kind, level, COLS, TOKENS};
        p->act_bytes = most(p->act_bytes, act_bytes(&a));
    }
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (int mode = MATRIX_INT8; mode <= MATRIX_INT16 && format_known((enum format_id)f);
             mode++)
            for (int isa = ISA_C; isa <= (int)level; isa++) {
                struct matrix_how how = {(enum isa)isa, (enum matrix_mode)mode};
                p->packed_bytes = most(p->packed_bytes,
                                       matrix_packed_bytes((enum format_id)f, ROWS, COLS, how));
                p->scratch_bytes = most(p->scratch_bytes,
                                        matrix_scratch_bytes((enum format_id)f, COLS, how));
            }
    for (int t = 0; t < KV_TYPE_COUNT; t++) {
        const struct attn_shape s = attention_shape((enum kv_type)t);
        p->block_bytes = most(p->block_bytes, 2 * attn_block_bytes(&s));
        p->scratch_bytes = most(p->scratch_bytes, attn_scratch_bytes(&s, 5, PAST, 1));
    }
}

static bool problem_init(struct problem *p, enum isa level)
{
    *p = (struct problem){0};
    measure(p, level);
    p->source = mem_alloc(ROWS * COLS, sizeof(float));
    p->x = mem_alloc(TOKENS * COLS, sizeof *p->x);
    p->packed = mem_alloc(1, p->packed_bytes);
    p->act = mem_alloc(1, p->act_bytes);
    p->scratch = mem_alloc(1, p->scratch_bytes);
    p->blocks = mem_alloc(1, p->block_bytes);
    p->expected = mem_alloc(RESULTS, sizeof *p->expected);
    p->found = mem_alloc(RESULTS, sizeof *p->found);
    if (!p->source || !p->x || !p->packed || !p->act || !p->scratch || !p->blocks || !p->expected ||
        !p->found)
        return false;
    fill_bytes(p->source, ROWS * COLS * sizeof(float));
    fill_floats(p->x, (size_t)TOKENS * COLS);
    return true;
}

static void problem_finish(struct problem *p)
{
    mem_free(p->source);
    mem_free(p->x);
    mem_free(p->packed);
    mem_free(p->act);
    mem_free(p->scratch);
    mem_free(p->blocks);
    mem_free(p->expected);
    mem_free(p->found);
}

static bool check_level(enum isa level)
{
    static bool known[ISA_COUNT], right[ISA_COUNT];
    if (level >= ISA_COUNT) /* a build with plain C alone: the compiler wants to be told */
        return false;
    if (known[level])
        return right[level];
    struct problem p;
    right[level] = problem_init(&p, level) && check_matrices(&p, level) &&
                   check_attention(&p, level) && check_rows(&p, level) && check_pick(&p, level);
    known[level] = true;
    problem_finish(&p);
    return right[level];
}

enum isa selfcheck_level(enum isa wanted)
{
    enum isa level = wanted;
    while (level > ISA_C && !check_level(level)) {
        log_warning("the %s kernels give wrong results on this CPU (%s): they are not used",
                    isa_name(level), cpu_name());
        level--;
    }
    return level;
}
