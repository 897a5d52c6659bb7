/* Times attn_run: bench_attention [threads [level]]. Each case walks over enough layers that keys
 * and values come from memory and not from a cache. GF/s counts 2 operations per multiply-add of
 * scores and mix; GB/s is what a single reading of the keys and values comes to. */
#include "attention.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOTAL_BYTES ((size_t)384 << 20)
#define SECONDS     1.0
#define MOST_RUNS   1000

struct bench_case {
    const char *name;
    int heads, kv_heads, size;
    enum kv_type type;
    int sequences, tokens; /* of each sequence in a step */
    int context;           /* of the last token */
    int window;
};

static const struct bench_case cases[] = {
    {"decode 1k", 32, 8, 64, KV_F16, 1, 1, 1024, 0},
    {"decode 8k", 32, 8, 64, KV_F16, 1, 1, 8192, 0},
    {"decode 32k", 32, 8, 64, KV_F16, 1, 1, 32768, 0},
    {"decode 8k", 32, 8, 64, KV_BF16, 1, 1, 8192, 0},
    {"decode 8k", 32, 8, 64, KV_F32, 1, 1, 8192, 0},
    {"decode 8k", 32, 8, 64, KV_Q8_0, 1, 1, 8192, 0},
    {"decode 8k", 32, 8, 128, KV_F16, 1, 1, 8192, 0},
    {"decode 8k", 32, 8, 128, KV_Q8_0, 1, 1, 8192, 0},
    {"decode 8k, no groups", 16, 16, 64, KV_F16, 1, 1, 8192, 0},
    {"decode 8k, group 7", 14, 2, 64, KV_F16, 1, 1, 8192, 0},
    {"decode 8k, 9/3 heads", 9, 3, 64, KV_F16, 1, 1, 8192, 0},
    {"decode 256, 9/3 heads", 9, 3, 64, KV_F16, 1, 1, 256, 0},
    {"8 x decode 1k, 9/3", 9, 3, 64, KV_F16, 8, 1, 1024, 0},
    {"prefill 512 at 0, 9/3", 9, 3, 64, KV_F16, 1, 512, 512, 0},
    {"prefill 512 at 8k", 32, 8, 64, KV_F16, 1, 512, 8192, 0},
    {"prefill 512 at 8k", 32, 8, 64, KV_Q8_0, 1, 512, 8192, 0},
    {"prefill 512 at 8k", 32, 8, 128, KV_F16, 1, 512, 8192, 0},
    {"prefill 512 at 8k, no groups", 16, 16, 64, KV_F16, 1, 512, 8192, 0},
    {"prefill 512, window 512", 32, 8, 64, KV_F16, 1, 512, 8192, 512},
};

struct bench {
    struct attn_shape shape;
    struct attn_span *spans;
    int n_spans, layers;
    float *q, *out;
    void **blocks, *memory, *scratch;
    struct pool *pool;
};

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return p;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fill(struct bench *b, size_t layer_bytes, int blocks)
{
    const struct attn_shape *s = &b->shape;
    float *x = must(mem_alloc((size_t)s->kv_heads * (size_t)s->key_size, sizeof *x));
    for (int i = 0; i < s->kv_heads * s->key_size; i++)
        x[i] = (float)(i * 7919 % 201 - 100) * 0.01f;
    /* One block is stored, the others are copies of it. */
    uint8_t *first = b->memory;
    for (int slot = 0; slot < 32; slot++)
        attn_store(s, first, slot, x, x);
    for (int i = 0; i < blocks; i++)
        for (int l = 0; l < b->layers; l++)
            if (i || l)
                memcpy(first + ((size_t)i * (size_t)b->layers + (size_t)l) * layer_bytes, first,
                       layer_bytes);
    mem_free(x);
}

static void bench_init(struct bench *b, const struct bench_case *c, struct pool *pool)
{
    *b = (struct bench){.pool = pool, .n_spans = c->sequences};
    b->shape = (struct attn_shape){.heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .key_size = c->size,
                                   .value_size = c->size,
                                   .type = c->type,
                                   .scale = 0.125f,
                                   .window = c->window};
    int per = c->context / 32, blocks = per * c->sequences;
    size_t layer_bytes = attn_block_bytes(&b->shape), width = (size_t)(c->heads * c->size);
    b->layers = (int)(TOTAL_BYTES / (layer_bytes * (size_t)blocks)) + 1;
    b->layers = b->layers > 200 ? 200 : b->layers;
    b->memory = must(mem_alloc((size_t)blocks * (size_t)b->layers, layer_bytes));
    b->blocks = must(mem_alloc((size_t)blocks, sizeof *b->blocks));
    for (int i = 0; i < blocks; i++)
        b->blocks[i] = (uint8_t *)b->memory + (size_t)i * (size_t)b->layers * layer_bytes;
    fill(b, layer_bytes, blocks);
    size_t tokens = (size_t)(c->sequences * c->tokens);
    b->q = must(mem_alloc(tokens * width, sizeof *b->q));
    b->out = must(mem_alloc(tokens * width, sizeof *b->out));
    for (size_t i = 0; i < tokens * width; i++)
        b->q[i] = (float)(i * 104729 % 199) * 0.01f - 1;
    b->spans = must(mem_alloc((size_t)c->sequences, sizeof *b->spans));
    for (int i = 0; i < c->sequences; i++)
        b->spans[i] = (struct attn_span){.q = b->q + (size_t)(i * c->tokens) * width,
                                         .out = b->out + (size_t)(i * c->tokens) * width,
                                         .q_stride = width,
                                         .out_stride = width,
                                         .n = c->tokens,
                                         .position = c->context - c->tokens,
                                         .blocks = b->blocks + i * per};
    b->scratch = must(
        mem_alloc(1, attn_scratch_bytes(&b->shape, (int)tokens, c->context, pool_threads(pool))));
}

static void bench_finish(struct bench *b)
{
    mem_free(b->memory);
    mem_free(b->blocks);
    mem_free(b->q);
    mem_free(b->out);
    mem_free(b->spans);
    mem_free(b->scratch);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct bench *b, double *times)
{
    size_t layer_bytes = attn_block_bytes(&b->shape);
    double end = now() + SECONDS;
    int n = 0;
    while (n < MOST_RUNS && (n < 3 || now() < end)) {
        for (int i = 0; i < b->n_spans; i++)
            b->spans[i].offset = (size_t)(n % b->layers) * layer_bytes;
        double start = now();
        attn_run(b->pool, &b->shape, b->spans, b->n_spans, b->scratch);
        times[n++] = now() - start;
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    return n;
}

static double pairs(const struct bench_case *c) /* of a query and a key, one sequence */
{
    double sum = 0;
    for (int i = 0; i < c->tokens; i++) {
        int seen = c->context - c->tokens + i + 1;
        sum += c->window && c->window < seen ? c->window : seen;
    }
    return sum;
}

static void run_case(const struct bench_case *c, struct pool *pool)
{
    static double times[MOST_RUNS];
    struct bench b;
    bench_init(&b, c, pool);
    int n = measure(&b, times);
    double flops = pairs(c) * c->sequences * c->heads * c->size * 4;
    double bytes = (double)attn_block_bytes(&b.shape) * (c->context / 32) * c->sequences;
    if (c->window)
        bytes *= (double)(c->window + c->tokens) / c->context;
    printf("%-30s %2d/%-2d x %3d %-5s %9.3f ms (median %9.3f)  %6.1f GF/s  %5.1f GB/s\n", c->name,
           c->heads, c->kv_heads, c->size, kv_type_name(c->type), times[0] * 1e3,
           times[n / 2] * 1e3, flops / times[0] * 1e-9, bytes / times[0] * 1e-9);
    bench_finish(&b);
}

int main(int argc, char **argv)
{
    struct err err;
    struct pool *pool;
    if (pool_create(argc > 1 ? atoi(argv[1]) : 2, 0, &pool, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (argc > 2 && isa_from_name(argv[2]) >= 0)
        attn_set_isa((enum isa)isa_from_name(argv[2]));
    const char *only = argc > 3 ? argv[3] : "";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strstr(cases[i].name, only))
            run_case(&cases[i], pool);
    pool_destroy(pool);
    return 0;
}
