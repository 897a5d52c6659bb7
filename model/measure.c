#include "measure.h"

#include "kernels/fetch.h"
#include "mem.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How fast the products of a loaded model are here, and what this machine could do at best. */

#define LEAST_SECONDS 0.4
#define LEAST_PASSES  3
#define MOST_PASSES   200
#define READ_PIECES   4      /* of a thread: a few long runs */
#define PEAK_ROUNDS   200000 /* some milliseconds */

struct measure {
    const struct model_measuring *how;
    struct matrix **matrices; /* all that the model multiplies with */
    int n_matrices, threads;
    int cols, rows, head_rows; /* the most; of the output layer, which meets few tokens */
    void *act, *scratch;
    float *out;
    size_t scratch_bytes;
    double times[MOST_PASSES];
    /* the running product */
    const struct matrix *m;
    struct matrix_job job;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of the median pass. */
static double median_pass(struct measure *s, void (*pass)(struct measure *))
{
    int n = 0;
    pass(s);
    for (double begin = now(), at = begin;
         n < LEAST_PASSES || (n < MOST_PASSES && at - begin < LEAST_SECONDS); n++) {
        pass(s);
        s->times[n] = now() - at;
        at += s->times[n];
    }
    qsort(s->times, (size_t)n, sizeof *s->times, compare);
    return s->times[n / 2];
}

/* ---- ceilings ---- */

static uint64_t read_lines(const uint8_t *p, size_t bytes)
{
    uint64_t sum = 0, word;
    for (size_t i = 0; i + MEM_LINE <= bytes; i += MEM_LINE) {
        fetch_lines(p + i + FETCH_AHEAD, MEM_LINE, FETCH_TIMES); /* as the kernels do */
        memcpy(&word, p + i, sizeof word);
        sum += word;
    }
    return sum;
}

static void read_weights(void *arg, int worker, int64_t first, int64_t last)
{
    struct measure *s = arg;
    size_t pieces = (size_t)s->threads * READ_PIECES, lines = s->how->packed_bytes / MEM_LINE;
    size_t from = lines * (size_t)first / pieces, to = lines * (size_t)last / pieces;
    volatile uint64_t sum = read_lines(s->how->packed + from * MEM_LINE, (to - from) * MEM_LINE);
    (void)worker;
    (void)sum;
}

static void read_pass(struct measure *s)
{
    pool_run(s->how->pool, read_weights, s, (int64_t)s->threads * READ_PIECES, 1);
}

static void multiply_peak(void *arg, int worker, int64_t first, int64_t last)
{
    struct measure *s = arg;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        matrix_ops(s->how->isa)->peak(PEAK_ROUNDS);
}

static void peak_pass(struct measure *s)
{
    pool_run(s->how->pool, multiply_peak, s, s->threads, 1);
}

static struct model_ceilings ceilings(struct measure *s)
{
    struct model_ceilings c = {0, 0};
    const struct matrix_ops *ops = matrix_ops(s->how->isa);
    if (ops->peak)
        c.operations = ops->peak(0) * PEAK_ROUNDS * s->threads / median_pass(s, peak_pass);
    if (s->how->packed_bytes)
        c.bytes = (double)s->how->packed_bytes / median_pass(s, read_pass);
    return c;
}

/* ---- products ---- */

static void multiply(void *arg, int worker, int64_t first, int64_t last)
{
    struct measure *s = arg;
    struct matrix_job job = s->job;
    job.scratch = (char *)s->scratch + (size_t)worker * s->scratch_bytes;
    matrix_mul(s->m, &job, (int)first, (int)last);
}

static bool takes_part(const struct measure *s, const struct matrix *m, int tokens)
{
    return m->format == s->m->format && (m->rows <= s->rows || tokens <= MODEL_LOGIT_ROWS);
}

/* All matrices of the format, one after another, as a step would. */
static void format_pass(struct measure *s)
{
    const struct matrix *first = s->m;
    for (int i = 0; i < s->n_matrices; i++) {
        if (!takes_part(s, s->matrices[i], s->job.tokens))
            continue;
        s->m = s->matrices[i];
        s->job.out_stride = (size_t)s->m->rows;
        pool_run(s->how->pool, multiply, s, s->m->rows,
                 matrix_chunk(s->m, s->job.tokens, s->threads));
    }
    s->m = first;
}

static void measure_format(struct measure *s, int tokens)
{
    struct act_shape shape = matrix_act_shape(s->m, tokens);
    float *x = s->out; /* free until the products begin */
    shape.cols = s->cols;
    for (int i = 0; i < s->cols; i++)
        x[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    act_pack(&shape, s->act, x, 0, 0, tokens);
    s->job = (struct matrix_job){.act = s->act, .tokens = tokens, .t1 = tokens, .out = s->out};
    struct model_speed r = {.format = format_infos[s->m->format].name, .tokens = tokens};
    for (int i = 0; i < s->n_matrices; i++) {
        const struct matrix *m = s->matrices[i];
        if (!takes_part(s, m, tokens))
            continue;
        r.weights += (double)m->rows * m->cols;
        r.bytes += (double)m->packed_bytes;
    }
    if (r.weights == 0)
        return;
    double seconds = median_pass(s, format_pass);
    r.operations = 2 * r.weights * tokens / seconds;
    r.bytes /= seconds;
    s->how->report(s->how->arg, &r);
}

static void measure_formats(struct measure *s)
{
    static const int tokens[] = {1, 4, 8, 16, 512};
    bool seen[FORMAT_COUNT] = {false};
    for (int i = 0; i < s->n_matrices; i++) {
        s->m = s->matrices[i];
        if (seen[s->m->format])
            continue;
        seen[s->m->format] = true;
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            measure_format(s, tokens[t]);
    }
}

/* ---- what they need ---- */

enum { MOST_TOKENS = 512 };

static int most(int a, int b)
{
    return a > b ? a : b;
}

static void find_sizes(struct measure *s)
{
    for (int i = 0; i < s->n_matrices; i++) {
        const struct matrix *m = s->matrices[i];
        size_t bytes = mem_round_up(matrix_scratch_bytes(m->format, m->cols, m->how), MEM_LINE);
        s->cols = most(s->cols, m->cols);
        s->scratch_bytes = bytes > s->scratch_bytes ? bytes : s->scratch_bytes;
        if (i + 1 < s->n_matrices)
            s->rows = most(s->rows, m->rows);
        else
            s->head_rows = m->rows; /* the output layer comes last */
    }
}

int measure_kernels(const struct model_measuring *how, struct matrix **matrices, int n,
                    struct model_ceilings *best, struct err *err)
{
    struct measure s = {.how = how, .matrices = matrices, .n_matrices = n};
    s.threads = pool_threads(how->pool);
    find_sizes(&s);
    size_t values = (size_t)s.cols * MOST_TOKENS;
    size_t out = (size_t)most(s.rows, s.cols) * MOST_TOKENS;
    size_t head = (size_t)s.head_rows * MODEL_LOGIT_ROWS;
    s.act = mem_alloc(values / 32, sizeof(struct act_block16) + 32 * sizeof(float));
    s.out = mem_alloc(out > head ? out : head, sizeof *s.out);
    s.scratch = mem_alloc((size_t)s.threads, s.scratch_bytes ? s.scratch_bytes : 1);
    int rc = s.act && s.out && s.scratch ? 0 : err_set(err, ERR_NOMEM, "no memory for products");
    if (rc == 0) {
        *best = ceilings(&s);
        measure_formats(&s);
    }
    mem_free(s.act);
    mem_free(s.out);
    mem_free(s.scratch);
    return rc;
}
