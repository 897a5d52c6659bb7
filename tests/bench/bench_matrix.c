/* Speed of matrix products: GOP/s (two per weight and token) and GB/s of packed weights.
 *
 *   bench_matrix [-i ISA] [-b BITS] [-r ROWS] [-c COLS] [-t THREADS] [-s SECONDS] [-m MEGABYTES]
 *                [-k CHUNK] [-T TOKENS,...] [FORMAT...]
 *
 * Copies of the matrix are walked in turn, so that MEGABYTES of weights (default 256: more than the
 * caches hold; 0: one copy) pass before one is met again. -b float measures OpenBLAS. */

#include "testlib.h"

#include "formats/codec.h"
#include "matrix.h"
#include "mem.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct settings {
    struct matrix_how how;
    int rows, cols, threads, megabytes, chunk;
    double seconds;
    const char *tokens;
};

struct bench {
    const struct settings *s;
    struct matrix *copies;
    int n_copies;
    struct pool *pool;
    uint8_t *scratch;
    size_t scratch_bytes;
    struct matrix_job job;
    struct act_shape shape;
    const float *x;
    int current;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *need(size_t bytes)
{
    void *p = mem_alloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "bench_matrix: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    mem_use_huge_pages(p, bytes);
    return p;
}

static void multiply(void *arg, int worker, int64_t first, int64_t last)
{
    struct bench *b = arg;
    struct matrix_job job = b->job;
    job.scratch = b->scratch + (size_t)worker * b->scratch_bytes;
    matrix_mul(&b->copies[b->current], &job, (int)first, (int)last);
}

static void quantise(void *arg, int worker, int64_t first, int64_t last)
{
    struct bench *b = arg;
    (void)worker;
    act_pack(&b->shape, (void *)b->job.act, b->x, (size_t)b->shape.cols, (int)first, (int)last);
}

static void *random_source(enum format_id format, size_t bytes)
{
    uint64_t seed = 1;
    uint8_t *p = need(bytes + 8);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t r = test_random(&seed) & 0x3fff3fff3fff3fff; /* no NaN or infinity anywhere */
        memcpy(p + i, &r, 8);
    }
    (void)format;
    return p;
}

static void setup(struct bench *b, enum format_id format, const uint8_t *source)
{
    const struct settings *s = b->s;
    struct err err;
    struct matrix m;
    if (matrix_init(&m, format, s->rows, s->cols, source, s->how, &err)) {
        fprintf(stderr, "bench_matrix: %s\n", err.text);
        exit(1);
    }
    size_t wanted = (size_t)s->megabytes << 20;
    b->n_copies = m.packed_bytes ? (int)(wanted / m.packed_bytes) + 1 : 1;
    b->copies = need((size_t)b->n_copies * sizeof m);
    uint8_t *all = need((size_t)b->n_copies * m.packed_bytes);
    for (int i = 0; i < b->n_copies; i++) {
        b->copies[i] = m;
        b->copies[i].packed = all + (size_t)i * m.packed_bytes;
        if (i == 0)
            matrix_pack_rows(&b->copies[0], 0, s->rows);
        else
            memcpy(b->copies[i].packed, all, m.packed_bytes);
    }
}

struct measured {
    double best, median, pack;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct measured measure(struct bench *b, int tokens)
{
    enum { MOST = 100000 };
    static double times[MOST];
    const struct settings *s = b->s;
    int n = 0, chunk = s->chunk ? s->chunk : matrix_chunk(&b->copies[0], tokens, s->threads);
    struct measured r;
    double begin = now();
    for (r.pack = 1; n < 20; n++) {
        double t = now();
        pool_run(b->pool, quantise, b, tokens, 8);
        t = now() - t;
        r.pack = t < r.pack ? t : r.pack;
    }
    n = 0;
    for (begin = now(); n < 3 || (now() - begin < s->seconds && n < MOST); n++) {
        double t = now();
        pool_run(b->pool, multiply, b, s->rows, chunk);
        times[n] = now() - t;
        b->current = (b->current + 1) % b->n_copies;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    r.best = times[n / 20];
    r.median = times[n / 2];
    return r;
}

static void bench_tokens(struct bench *b, enum format_id format, int tokens)
{
    const struct settings *s = b->s;
    float *x = need((size_t)tokens * (size_t)s->cols * sizeof *x);
    uint64_t seed = 5;
    for (size_t i = 0; i < (size_t)tokens * (size_t)s->cols; i++)
        x[i] = test_uniform(&seed);
    b->shape = matrix_act_shape(&b->copies[0], tokens);
    void *act = need(act_bytes(&b->shape));
    float *out = need((size_t)tokens * (size_t)s->rows * sizeof *out);
    b->x = x;
    b->job = (struct matrix_job){act, tokens, 0, tokens, out, (size_t)s->rows, 0, NULL};
    struct measured m = measure(b, tokens);
    double ops = 2.0 * s->rows * s->cols * tokens, bytes = (double)b->copies[0].packed_bytes;
    printf("%-7s T=%-4d %8.1f us  %7.1f GOP/s (median %7.1f)  %6.1f GB/s  pack %.0f us\n",
           format_infos[format].name, tokens, m.best * 1e6, ops / m.best * 1e-9,
           ops / m.median * 1e-9, bytes / m.best * 1e-9, m.pack * 1e6);
    fflush(stdout);
    mem_free(x);
    mem_free(act);
    mem_free(out);
}

static void bench_format(const struct settings *s, enum format_id format)
{
    const struct format_info *info = &format_infos[format];
    if (s->cols % info->block_values)
        return;
    struct bench b = {.s = s};
    struct err err;
    size_t row = (size_t)(s->cols / info->block_values) * (size_t)info->block_bytes;
    uint8_t *source = random_source(format, row * (size_t)s->rows);
    setup(&b, format, source);
    if (pool_create(s->threads, 0, &b.pool, &err)) {
        fprintf(stderr, "bench_matrix: %s\n", err.text);
        exit(1);
    }
    b.scratch_bytes = mem_round_up(matrix_scratch_bytes(format, s->cols, s->how), 4096);
    b.scratch = need(b.scratch_bytes * (size_t)s->threads);
    for (const char *t = s->tokens; *t; t += strcspn(t, ","), t += *t == ',')
        bench_tokens(&b, format, atoi(t));
    pool_destroy(b.pool);
    mem_free(b.scratch);
    mem_free(b.copies[0].packed);
    mem_free(b.copies);
    mem_free(source);
}

static int format_from_name(const char *name)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (!strcmp(format_infos[i].name, name) && format_known(i))
            return i;
    fprintf(stderr, "bench_matrix: no format %s\n", name);
    exit(1);
}

static void parse(struct settings *s, int argc, char **argv)
{
    for (int c; (c = getopt(argc, argv, "i:b:r:c:t:s:m:k:T:")) != -1;) {
        int n = atoi(optarg);
        if (c == 'i')
            s->how.isa = (enum isa)isa_from_name(optarg);
        else if (c == 'b')
            s->how.mode = n == 16 ? MATRIX_INT16 : n == 8 ? MATRIX_INT8 : MATRIX_FLOAT;
        else if (c == 's')
            s->seconds = atof(optarg);
        else if (c == 'T')
            s->tokens = optarg;
        else
            *(c == 'r'   ? &s->rows
              : c == 'k' ? &s->chunk
              : c == 'c' ? &s->cols
              : c == 't' ? &s->threads
                         : &s->megabytes) = n;
    }
}

int main(int argc, char **argv)
{
    struct settings s = {{cpu_isa(), MATRIX_INT8}, 2048, 2048, 2, 256, 0, 0.3, "1,2,4,8,16,64,512"};
    parse(&s, argc, argv);
    printf("%s, %s, %d x %d, %d threads\n", cpu_name(), isa_name(s.how.isa), s.rows, s.cols,
           s.threads);
    for (int i = optind; i < argc; i++)
        bench_format(&s, (enum format_id)format_from_name(argv[i]));
    for (int f = 0; f < FORMAT_COUNT && optind == argc; f++)
        if (format_known((enum format_id)f))
            bench_format(&s, (enum format_id)f);
    return 0;
}
