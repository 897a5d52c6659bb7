#include "matrix.h"

#include "kernels/ops.h"
#include "mem.h"

#include <assert.h>
#include <cblas.h>
#include <string.h>

/* Rows that OpenBLAS gets at a time. */
enum { BLAS_ROWS = 64 };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

const struct matrix_ops *matrix_ops(enum isa isa)
{
    static const struct matrix_ops *const levels[ISA_COUNT] = {
#define ISA(id, name, needs) [id] = &matrix_ops_##name,
#include "isa.def"
#undef ISA
    };
    return levels[isa];
}

static bool is_float(enum format_id format)
{
    return codecs[format]->values == VALUES_FLOAT;
}

/* Plain C and OpenBLAS read the source. */
static bool in_place(struct matrix_how how)
{
    return how.mode == MATRIX_FLOAT || matrix_ops(how.isa) == &matrix_ops_c;
}

/* ---- setting up ---- */

static size_t group_bytes(enum format_id format, int cols)
{
    const struct codec *codec = codecs[format];
    size_t n = (size_t)cols;
    if (is_float(format))
        return n * MATRIX_GROUP * (size_t)format_infos[format].block_bytes;
    return scales_plane_bytes(codec->scales, cols / 32) +
           n / 32 * (size_t)values_bytes[codec->values];
}

size_t matrix_packed_bytes(enum format_id format, int rows, int cols, struct matrix_how how)
{
    if (!format_known(format) || in_place(how))
        return 0;
    size_t groups = ((size_t)rows + MATRIX_GROUP - 1) / MATRIX_GROUP, bytes = 0;
    if (!mem_mul(groups, group_bytes(format, cols), &bytes))
        return SIZE_MAX; /* no allocation of that many bytes can succeed */
    return bytes;
}

int matrix_init(struct matrix *m, enum format_id format, int rows, int cols, const void *source,
                struct matrix_how how, struct err *err)
{
    const struct format_info *info = &format_infos[format];
    if (!format_known(format))
        return err_set(err, ERR_UNSUPPORTED, "the number format %s cannot be unpacked yet",
                       info->name);
    if (rows < 1 || cols < 1 || cols % info->block_values)
        return err_set(err, ERR_FORMAT,
                       "a matrix of %d rows x %d columns cannot be %s, which has blocks of %d "
                       "columns",
                       rows, cols, info->name, info->block_values);
    *m = (struct matrix){.format = format, .rows = rows, .cols = cols, .how = how};
    m->source = source;
    m->source_stride = (size_t)(cols / info->block_values) * (size_t)info->block_bytes;
    m->packed_bytes = matrix_packed_bytes(format, rows, cols, how);
    m->group_bytes = m->packed_bytes ? group_bytes(format, cols) : 0;
    if (how.mode == MATRIX_FLOAT)
        openblas_set_num_threads(1); /* the workers call it, each for its own rows */
    return 0;
}

void matrix_pack_rows(struct matrix *m, int row0, int row1)
{
    assert(row0 % MATRIX_GROUP == 0 && (row1 % MATRIX_GROUP == 0 || row1 == m->rows));
    if (!m->packed_bytes)
        return;
    for (int row = row0; row < row1; row += MATRIX_GROUP)
        pack_group(m, row);
}

void matrix_row(const struct matrix *m, int row, float *out)
{
    assert(row >= 0 && row < m->rows);
    format_unpack(m->format, m->source + (size_t)row * m->source_stride, m->cols, out);
}

/* ---- activations ---- */

enum act_kind matrix_act_kind(enum format_id format, struct matrix_how how, int tokens)
{
    if (how.mode == MATRIX_FLOAT)
        return ACT_PLAIN;
    if (is_float(format))
        return ACT_TILED;
    int from = matrix_ops(how.isa)->words_from[how.mode][codecs[format]->values];
    bool words = from > 0 && tokens >= from;
    if (how.mode == MATRIX_INT16)
        return words ? ACT_WORDS16 : ACT_INT16;
    return words ? ACT_WORDS8 : ACT_INT8;
}

struct act_shape matrix_act_shape(const struct matrix *m, int tokens)
{
    return (struct act_shape){matrix_act_kind(m->format, m->how, tokens), m->how.isa, m->cols,
                              tokens};
}

size_t act_bytes(const struct act_shape *s)
{
    size_t values = (size_t)s->tokens * (size_t)s->cols;
    if (s->kind == ACT_PLAIN || s->kind == ACT_TILED)
        return values * sizeof(float);
    return values / 32 * act_record_bytes(s->kind);
}

/* Some tokens of one tile, which is `width` tokens wide. */
struct tile_part {
    const float *x; /* the first token's value k0 */
    size_t stride, width, tokens;
    int k0, k1;
};

/* Unrounded tiles are [k][width]; `tile` is the first token's column. */
static void tile_floats(float *tile, const struct tile_part *p)
{
    tile += (size_t)p->k0 * p->width;
    for (int k = p->k0; k < p->k1; k++, tile += p->width)
        for (size_t t = 0; t < p->tokens; t++)
            tile[t] = p->x[t * p->stride + (size_t)(k - p->k0)];
}

static void tile_rounded(uint8_t *tile, const struct act_shape *s, const struct tile_part *p)
{
    const struct matrix_ops *ops = matrix_ops(s->isa);
    size_t record = act_record_bytes(s->kind), step = p->width * record;
    tile += (size_t)(p->k0 / 32) * step;
    for (size_t t = 0; t < p->tokens; t++)
        ops->act_row[s->kind](p->x + t * p->stride, (p->k1 - p->k0) / 32, tile + t * record, step);
}

static void pack_plain(const struct act_shape *s, float *dst, const float *x, size_t stride,
                       const struct act_range *r)
{
    size_t bytes = (size_t)(r->k1 - r->k0) * sizeof *dst;
    for (int t = r->t0; t < r->t1; t++)
        memcpy(dst + (size_t)t * (size_t)s->cols + r->k0, x + (size_t)t * stride, bytes);
}

void act_pack_range(const struct act_shape *s, void *dst, const float *x, size_t stride,
                    const struct act_range *r)
{
    if (s->kind == ACT_PLAIN) {
        pack_plain(s, dst, x, stride, r);
        return;
    }
    int most = tile_width(s, matrix_ops(s->isa));
    size_t cols = (size_t)s->cols, record = act_record_bytes(s->kind);
    for (int t = r->t0, n; t < r->t1; t += n) {
        int first = t / most * most, at = t - first;
        int width = min_int(most, s->tokens - first); /* the last tile may have fewer */
        n = min_int(width - at, r->t1 - t);
        struct tile_part p = {
            x + (size_t)t * stride, stride, (size_t)width, (size_t)n, r->k0, r->k1};
        if (s->kind == ACT_TILED)
            tile_floats((float *)dst + (size_t)first * cols + at, &p);
        else
            tile_rounded((uint8_t *)dst + ((size_t)first * (cols / 32) + (size_t)at) * record, s,
                         &p);
    }
}

void act_pack(const struct act_shape *s, void *dst, const float *x, size_t stride, int t0, int t1)
{
    act_pack_range(s, dst, x, stride, &(struct act_range){t0, t1, 0, s->cols});
}

/* ---- the product ---- */

/* With more tokens than these the weights are no longer what a chunk waits for. */
enum { FEW_TOKENS = 16 };

/* Most rows of a chunk: small ones end a phase evenly, in large ones little of what is fetched past
 * the end is waste (1 to 8 KB). */
static int most_rows(int tokens)
{
    return tokens == 1 ? 256 : tokens <= FEW_TOKENS ? 128 : 32;
}

int matrix_chunk(const struct matrix *m, int tokens, int threads)
{
    int share = m->rows / (threads * 4) / (2 * MATRIX_GROUP) * (2 * MATRIX_GROUP);
    return min_int(share < 2 * MATRIX_GROUP ? 2 * MATRIX_GROUP : share, most_rows(tokens));
}

size_t matrix_chunk_values(const struct matrix *m, int tokens, int threads)
{
    int few = min_int(tokens, FEW_TOKENS);
    size_t of_few = (size_t)few * (size_t)matrix_chunk(m, few, threads);
    size_t of_all = (size_t)tokens * (size_t)matrix_chunk(m, tokens, threads);
    return of_few > of_all ? of_few : of_all;
}

static size_t panel_values_bytes(void)
{
    return 2 * PANEL_BLOCKS * (size_t)PANEL_VALUES;
}

static size_t factors_floats(enum format_id format, int cols)
{
    enum flavour flavour = scales_layouts[codecs[format]->scales].flavour;
    return (size_t)(cols / 32) * 16 * (size_t)flavour_panel_scales[flavour];
}

size_t matrix_scratch_bytes(enum format_id format, int cols, struct matrix_how how)
{
    size_t panel = panel_values_bytes() + 2 * PANEL_BLOCKS * 5 * MATRIX_GROUP * sizeof(float);
    if (how.mode == MATRIX_FLOAT)
        return BLAS_ROWS * (size_t)cols * sizeof(float);
    if (in_place(how))
        return ref_scratch_bytes(cols);
    if (is_float(format))
        return 0;
    size_t factors = 2 * factors_floats(format, cols) * sizeof(float);
    return panel > factors ? panel : factors;
}

static float *results(const struct matrix_job *job, int t, int row)
{
    return job->out + (size_t)t * job->out_stride + (row - job->out_row);
}

static void blas_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1)
{
    float *panel = job->scratch;
    const float *x = (const float *)job->act + (size_t)job->t0 * (size_t)m->cols;
    for (int row = row0; row < row1; row += BLAS_ROWS) {
        int n = min_int(BLAS_ROWS, row1 - row);
        for (int r = 0; r < n; r++)
            matrix_row(m, row + r, panel + (size_t)r * (size_t)m->cols);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, job->t1 - job->t0, n, m->cols, 1, x,
                    m->cols, panel, m->cols, 0, results(job, job->t0, row), (int)job->out_stride);
    }
}

int matrix_tile(const struct matrix *m, int tokens)
{
    struct act_shape s = matrix_act_shape(m, tokens);
    return s.kind == ACT_PLAIN ? 1 : tile_width(&s, matrix_ops(s.isa));
}

/* One product on its way through the loops. */
struct pass {
    const struct matrix *m;
    const struct matrix_job *job;
    const struct matrix_ops *ops;
    enum act_kind kind;
    core_fn *const *cores; /* by tokens of a tile */
    core_fn *whole;        /* of a whole tile, with factors; NULL: as the others */
    core_fn *blockwise;    /* of many whole tiles, or NULL */
    int width;             /* of a tile */
    size_t k_bytes;        /* of one token's block (or value) of activations */
};

static const uint8_t *group_at(const struct matrix *m, int row)
{
    return m->packed + (size_t)(row / MATRIX_GROUP) * m->group_bytes;
}

/* Where the results of tokens [t, end) go. Rows of results are often a power of two apart, so that
 * the caches hold few of them. */
static void fetch_results(const struct pass *p, int t, int end, int row)
{
    for (end = min_int(end, p->job->t1); t < end; t++) {
        const float *at = results(p->job, t, row);
        __builtin_prefetch(at, 1);
        __builtin_prefetch(at + MATRIX_GROUP, 1);
    }
}

/* All whole tiles together, if there is a kernel for that; returns the token behind them. */
static int run_whole_tiles(const struct pass *p, struct core *c, int row, size_t ahead)
{
    int t0 = p->job->t0, end = t0 + (p->job->t1 - t0) / p->width * p->width;
    if (!p->blockwise)
        return t0;
    c->tiles = (end - t0) / p->width;
    c->act = (const uint8_t *)p->job->act + (size_t)t0 * (size_t)c->blocks * p->k_bytes;
    c->out = results(p->job, t0, row);
    c->ahead = ahead;
    fetch_results(p, t0, end, row);
    p->blockwise(c);
    return end;
}

/* All tiles of tokens against what *c points to, which covers k steps [first, first + blocks) of
 * `total`. Weights are fetched ahead by whoever reads them only once, or, for the next call, while
 * the last tile runs. */
static void run_tiles(const struct pass *p, struct core *c, int row, int first, int total,
                      size_t ahead)
{
    for (int t = run_whole_tiles(p, c, row, ahead); t < p->job->t1; t += p->width) {
        int w = min_int(p->width, p->job->t1 - t);
        c->act = (const uint8_t *)p->job->act +
                 ((size_t)t * (size_t)total + (size_t)first * (size_t)w) * p->k_bytes;
        c->out = results(p->job, t, row);
        c->more = first > 0;
        c->ahead = t + w == p->job->t1 && !p->blockwise ? ahead : 0;
        core_fn *core = p->whole && w == p->width ? p->whole : p->cores[w];
        fetch_results(p, t + w, t + w + p->width, row);
        core(c);
    }
}

/* In the scratch memory. */
static void make_factors(const struct pass *p, struct core *c)
{
    enum format_id format = p->m->format;
    float *at = p->job->scratch;
    for (int g = 0; p->whole && g < 2; g++, at += factors_floats(format, p->m->cols)) {
        p->ops->factors[format](c->scales[g], p->m->cols / 32, at);
        c->factors[g] = at;
    }
}

static void mul_direct(const struct pass *p, int row0, int row1, size_t scales_bytes, int steps)
{
    bool once = p->job->t1 - p->job->t0 <= p->width || p->blockwise;
    size_t ahead = once ? scales_bytes + (size_t)p->ops->fetch_ahead : 2 * p->m->group_bytes;
    for (int row = row0; row < row1; row += 2 * MATRIX_GROUP) {
        struct core c = {.blocks = steps, .out_stride = p->job->out_stride};
        c.rows = min_int(2 * MATRIX_GROUP, row1 - row);
        for (int g = 0; g < 2; g++) {
            c.scales[g] = group_at(p->m, c.rows > MATRIX_GROUP * g ? row + MATRIX_GROUP * g : row);
            c.values[g] = c.scales[g] + scales_bytes;
        }
        make_factors(p, &c);
        run_tiles(p, &c, row, 0, steps, ahead);
    }
}

/* Takes a piece of two groups (twice the same when there is one) apart and points *c to it. */
static void expand_pair(const struct pass *p, struct core *c, int row, int first)
{
    uint8_t *values = p->job->scratch;
    float *scales = (float *)(values + panel_values_bytes());
    for (int g = 0; g < 2; g++) {
        int from = c->rows > MATRIX_GROUP * g ? row + MATRIX_GROUP * g : row;
        p->ops->expand[p->kind][p->m->format](group_at(p->m, from), p->m->cols / 32, first,
                                              c->blocks, values, scales);
        c->values[g] = values;
        c->scales[g] = (const uint8_t *)scales;
        values += PANEL_BLOCKS * (size_t)PANEL_VALUES;
        scales += PANEL_BLOCKS * 5 * MATRIX_GROUP;
    }
}

static void mul_panels(const struct pass *p, int row0, int row1)
{
    int total = p->m->cols / 32;
    bool words = p->kind == ACT_WORDS8 || p->kind == ACT_WORDS16;
    int most = words ? PANEL_BLOCKS / 2 : PANEL_BLOCKS; /* of the same bytes */
    for (int row = row0; row < row1; row += 2 * MATRIX_GROUP) {
        struct core c = {.out_stride = p->job->out_stride};
        c.rows = min_int(2 * MATRIX_GROUP, row1 - row);
        for (int first = 0; first < total; first += most) {
            c.blocks = min_int(most, total - first);
            expand_pair(p, &c, row, first);
            run_tiles(p, &c, row, first, total, 0);
        }
    }
}

/* NULL: for so many tokens it is better to take the weights apart first. With planes of 16 bits a
 * panel is read twice as often, and pays from the second tile on. */
static core_fn *const *direct_cores(const struct pass *p)
{
    int tiles = (p->job->t1 - p->job->t0 + p->width - 1) / p->width;
    if (p->kind == ACT_INT16)
        return tiles == 1 ? p->ops->wide[p->m->format] : NULL;
    if (p->kind != ACT_INT8)
        return NULL;
    enum values_kind values = codecs[p->m->format]->values;
    return tiles <= p->ops->direct_tiles[values] ? p->ops->direct[p->m->format] : NULL;
}

static void kernel_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1)
{
    struct act_shape s = matrix_act_shape(m, job->tokens);
    struct pass p = {.m = m, .job = job, .ops = matrix_ops(m->how.isa), .kind = s.kind};
    p.width = tile_width(&s, p.ops);
    if (s.kind == ACT_TILED) {
        p.cores = p.ops->floats[m->format];
        p.k_bytes = sizeof(float);
        mul_direct(&p, row0, row1, 0, m->cols);
        return;
    }
    p.k_bytes = act_record_bytes(s.kind);
    p.cores = direct_cores(&p);
    if (p.cores) {
        size_t scales = scales_plane_bytes(codecs[m->format]->scales, m->cols / 32);
        bool whole = s.kind == ACT_INT8 && p.width == p.ops->tile[s.kind];
        int tiles = whole ? (job->t1 - job->t0) / p.width : 0;
        if (tiles >= 2 && tiles <= BLOCKWISE_TILES)
            p.blockwise = p.ops->blockwise[m->format];
        if (whole && tiles >= p.ops->factored_tiles)
            p.whole = p.ops->factored[m->format];
        mul_direct(&p, row0, row1, scales, m->cols / 32);
        return;
    }
    p.cores = p.ops->panel[s.kind][m->format];
    mul_panels(&p, row0, row1);
}

void matrix_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1)
{
    assert(row0 % MATRIX_GROUP == 0 && (row1 % MATRIX_GROUP == 0 || row1 == m->rows));
    assert(0 <= job->t0 && job->t0 < job->t1 && job->t1 <= job->tokens);
    if (m->how.mode == MATRIX_FLOAT)
        blas_mul(m, job, row0, row1);
    else if (matrix_ops(m->how.isa) == &matrix_ops_c)
        ref_mul(m, job, row0, row1);
    else
        kernel_mul(m, job, row0, row1);
}
