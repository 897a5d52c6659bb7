/* Attention: every kernel against plain C for equal bits, plain C against a naive double-precision
 * attention, and attn_run for equal bits whatever the level, the threads, the spans and the
 * company. */
#include "attention.h"
#include "kernels/attn_ops.h"
#include "layout.h"
#include "mem.h"
#include "testlib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng;

static int range(int low, int high) /* inclusive */
{
    return low + (int)(test_random(&rng) % (uint64_t)(high - low + 1));
}

static int one_of(const int *list, int n)
{
    return list[range(0, n - 1)];
}
#define ONE_OF(...)                                                                                \
    one_of((const int[]){__VA_ARGS__}, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static float *random_floats(size_t n, float scale)
{
    float *x = mem_alloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale > 0 ? test_uniform(&rng) * scale : 0;
    return x;
}

/* Bytes that are NaN, infinity or nonsense in every type. */
static void fill_garbage(void *p, size_t bytes)
{
    uint8_t *to = p;
    for (size_t i = 0; i < bytes; i++)
        to[i] = test_random(&rng) % 3 ? 0xff : (uint8_t)test_random(&rng);
}

static void assert_same_floats(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i])) {
            fail_msg("%s: [%zu of %zu] is %a, expected %a", what, i, n, (double)a[i], (double)b[i]);
        }
    }
}

/* ---- a sequence with its cache ---- */

struct world {
    struct attn_shape shape;
    int n; /* positions */
    float *q, *k, *v;
    void **blocks;
    size_t offset, block_bytes;
    float *slopes, *sinks;
};

static struct attn_shape random_shape(void)
{
    int kv_heads = ONE_OF(1, 2, 3, 5);
    int group = ONE_OF(1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 33);
    struct attn_shape s = {
        .heads = kv_heads * group,
        .kv_heads = kv_heads,
        .key_size = ONE_OF(2, 8, 16, 20, 24, 32, 64, 80, 96, 128),
        .type = (enum kv_type)range(0, KV_TYPE_COUNT - 1),
        .softcap = ONE_OF(0, 0, 1) ? 3.5f : 0.0f,
        .window = ONE_OF(0, 0, 1, 5, 32, 33, 100, 512, 700),
    };
    s.value_size = ONE_OF(0, 0, 1) ? ONE_OF(2, 12, 16, 48, 64, 100) : s.key_size;
    s.scale = 1.0f / sqrtf((float)s.key_size);
    return s;
}

static void world_init(struct world *w, struct attn_shape shape, int n)
{
    *w = (struct world){.shape = shape, .n = n, .offset = 64 * (size_t)range(0, 3)};
    struct attn_shape *s = &w->shape;
    struct err err;
    assert_int_equal(attn_check(s, &err), 0);
    w->q = random_floats((size_t)n * s->heads * s->key_size, 3);
    w->k = random_floats((size_t)n * s->kv_heads * s->key_size, 2);
    w->v = random_floats((size_t)n * s->kv_heads * s->value_size, 2);
    w->block_bytes = attn_block_bytes(s);
    assert_true(w->block_bytes > 0 && w->block_bytes % 64 == 0);
    int blocks = n / 32 + 1;
    w->blocks = calloc((size_t)blocks, sizeof *w->blocks);
    assert_non_null(w->blocks);
    for (int i = 0; i < blocks; i++) {
        w->blocks[i] = mem_alloc(1, w->block_bytes + w->offset);
        assert_non_null(w->blocks[i]);
        fill_garbage(w->blocks[i], w->block_bytes + w->offset);
    }
}

static void world_alibi(struct world *w)
{
    w->slopes = random_floats((size_t)w->shape.heads, 0);
    alibi_slopes(w->shape.heads, 8, w->slopes);
    w->shape.slopes = w->slopes;
}

static void world_sinks(struct world *w)
{
    w->shape.sinks = w->sinks = random_floats((size_t)w->shape.heads, 3);
}

static void world_random(struct world *w, int n)
{
    world_init(w, random_shape(), n);
    if (range(0, 2) == 0)
        world_alibi(w);
    if (range(0, 2) == 0)
        world_sinks(w);
}

static void world_finish(struct world *w)
{
    for (int i = 0; i < w->n / 32 + 1; i++)
        mem_free(w->blocks[i]);
    free(w->blocks);
    mem_free(w->q);
    mem_free(w->k);
    mem_free(w->v);
    mem_free(w->slopes);
    mem_free(w->sinks);
}

static void *layer_of(const struct world *w, int position)
{
    return (uint8_t *)w->blocks[position / 32] + w->offset;
}

static void world_store(struct world *w, int first, int last)
{
    const struct attn_shape *s = &w->shape;
    for (int p = first; p < last; p++)
        attn_store(s, layer_of(w, p), p % 32, w->k + (size_t)p * s->kv_heads * s->key_size,
                   w->v + (size_t)p * s->kv_heads * s->value_size);
}

static struct attn_span world_span(const struct world *w, int first, int n, float *out)
{
    size_t q_stride = (size_t)w->shape.heads * w->shape.key_size;
    size_t out_stride = (size_t)w->shape.heads * w->shape.value_size;
    return (struct attn_span){.q = w->q + (size_t)first * q_stride,
                              .out = out + (size_t)first * out_stride,
                              .q_stride = q_stride,
                              .out_stride = out_stride,
                              .n = n,
                              .position = first,
                              .blocks = w->blocks,
                              .offset = w->offset};
}

static size_t out_floats(const struct world *w)
{
    return (size_t)w->n * w->shape.heads * w->shape.value_size;
}

static void run_spans(int threads, const struct attn_shape *s, const struct attn_span *spans, int n)
{
    struct err err;
    struct pool *pool;
    assert_int_equal(pool_create(threads, 0, &pool, &err), 0);
    int tokens = 0, context = 0;
    for (int i = 0; i < n; i++) {
        int end = spans[i].position + spans[i].n;
        tokens += spans[i].n;
        context = end > context ? end : context;
    }
    size_t bytes = attn_scratch_bytes(s, tokens, context, threads);
    assert_true(bytes > 0);
    /* On the heap, so that a sanitizer sees what is beyond its end. */
    uint8_t *scratch = aligned_alloc(64, mem_round_up(bytes, 64));
    assert_non_null(scratch);
    fill_garbage(scratch, bytes);
    attn_run(pool, s, spans, n, scratch);
    free(scratch);
    pool_destroy(pool);
}

/* Positions [first, n), stored and asked in spans of at most `step`, as prefill and decode do. */
static float *world_run(struct world *w, int first, int step, int threads)
{
    float *out = random_floats(out_floats(w), 1);
    world_store(w, 0, first);
    for (int p = first; p < w->n; p += step) {
        int n = w->n - p < step ? w->n - p : step;
        world_store(w, p, p + n);
        struct attn_span span = world_span(w, p, n, out);
        run_spans(threads, &w->shape, &span, 1);
    }
    return out;
}

/* ---- the naive attention ---- */

/* What the cache holds, by asking the kernels: a query that is one axis, a weight on one lane. */
static void read_key(const struct world *w, int head, int position, float *out)
{
    struct attn_layout l = attn_layout(&w->shape);
    struct attn_ops c;
    attn_ops_fill(&c, ISA_C);
    uint8_t *page = mem_alloc(1, l.head_bytes); /* a copy without the garbage of other slots */
    memcpy(page, (uint8_t *)layer_of(w, position) + (size_t)head * l.head_bytes, l.head_bytes);
    float *axis = mem_alloc((size_t)w->shape.key_size, sizeof(float)), lanes[32];
    for (int d = 0; d < w->shape.key_size; d++) {
        axis[d] = 1;
        struct attn_page p = {.key = page, .next_key = page, .key_size = w->shape.key_size};
        struct attn_rows r = {.n = 1, .query = axis, .weight = lanes};
        c.scores[w->shape.type](&p, &r);
        out[d] = lanes[position % 32];
        axis[d] = 0;
    }
    mem_free(axis);
    mem_free(page);
}

static void read_value(const struct world *w, int head, int position, float *out)
{
    struct attn_layout l = attn_layout(&w->shape);
    struct attn_ops c;
    attn_ops_fill(&c, ISA_C);
    uint8_t *page = (uint8_t *)layer_of(w, position) + (size_t)head * l.head_bytes + l.key_bytes;
    float *mix = mem_alloc((size_t)l.value_pad, sizeof(float)), weight[32] = {0}, rescale = 0;
    weight[position % 32] = 1;
    struct attn_page p = {.value = page,
                          .next_value = page,
                          .value_pad = l.value_pad,
                          .first = position % 32,
                          .last = position % 32 + 1};
    struct attn_rows r = {.n = 1, .weight = weight, .mix = mix, .rescale = &rescale};
    c.mix[w->shape.type](&p, &r);
    memcpy(out, mix, (size_t)w->shape.value_size * sizeof(float));
    mem_free(mix);
}

struct naive {
    float *k, *v; /* [kv head][position][size], as stored */
    double *x;
};

static void naive_init(struct naive *a, const struct world *w)
{
    const struct attn_shape *s = &w->shape;
    a->k = mem_alloc((size_t)w->n * s->kv_heads * s->key_size, sizeof(float));
    a->v = mem_alloc((size_t)w->n * s->kv_heads * s->value_size, sizeof(float));
    a->x = mem_alloc((size_t)w->n, sizeof(double));
    assert_true(a->k && a->v && a->x);
    for (int h = 0; h < s->kv_heads; h++) {
        for (int p = 0; p < w->n; p++) {
            read_key(w, h, p, a->k + ((size_t)h * w->n + p) * s->key_size);
            read_value(w, h, p, a->v + ((size_t)h * w->n + p) * s->value_size);
        }
    }
}

static void naive_finish(struct naive *a)
{
    mem_free(a->k);
    mem_free(a->v);
    mem_free(a->x);
}

static double naive_score(const struct naive *a, const struct world *w, int head, int p, int key)
{
    const struct attn_shape *s = &w->shape;
    int kv_head = head / (s->heads / s->kv_heads);
    const float *q = w->q + ((size_t)p * s->heads + head) * s->key_size;
    const float *k = a->k + ((size_t)kv_head * w->n + key) * s->key_size;
    double x = 0;
    for (int d = 0; d < s->key_size; d++)
        x += (double)q[d] * k[d];
    x *= s->scale;
    if (s->softcap > 0)
        x = s->softcap * tanh(x / s->softcap);
    return s->slopes ? x + s->slopes[head] * (double)(key - p) : x;
}

static void naive_row(const struct naive *a, const struct world *w, int head, int p, double *out)
{
    const struct attn_shape *s = &w->shape;
    int first = s->window && p >= s->window ? p - s->window + 1 : 0;
    double top = s->sinks ? s->sinks[head] : -INFINITY, sum = 0;
    for (int j = first; j <= p; j++) {
        a->x[j] = naive_score(a, w, head, p, j);
        top = fmax(top, a->x[j]);
    }
    for (int j = first; j <= p; j++)
        sum += a->x[j] = exp(a->x[j] - top);
    if (s->sinks)
        sum += exp(s->sinks[head] - top);
    const float *v = a->v + (size_t)(head / (s->heads / s->kv_heads)) * w->n * s->value_size;
    for (int c = 0; c < s->value_size; c++) {
        out[c] = 0;
        for (int j = first; j <= p; j++)
            out[c] += a->x[j] / sum * v[(size_t)j * s->value_size + c];
    }
}

static void assert_near_naive(const struct world *w, const float *out)
{
    const struct attn_shape *s = &w->shape;
    struct naive a;
    naive_init(&a, w);
    double *expected = mem_alloc((size_t)s->value_size, sizeof *expected), worst = 0;
    for (int p = 0; p < w->n; p += 1 + range(0, 12)) {
        int head = range(0, s->heads - 1);
        naive_row(&a, w, head, p, expected);
        for (int c = 0; c < s->value_size; c++) {
            double got = out[((size_t)p * s->heads + head) * s->value_size + c];
            worst = fmax(worst, fabs(got - expected[c]));
            assert_true(isfinite(got));
        }
    }
    mem_free(expected);
    naive_finish(&a);
    /* Values are below 2 and scores below about 40. */
    if (worst > 1e-5)
        fail_msg("key size %d, %d positions: differs by %g", s->key_size, w->n, worst);
}

/* ---- tests of the whole ---- */

static void run_agrees_with_naive_attention(void **state)
{
    (void)state;
    for (int i = 0; i < test_rounds(24); i++) {
        struct world w;
        world_random(&w, ONE_OF(1, 2, 31, 32, 33, 65, 200, 600));
        float *out = world_run(&w, 0, ONE_OF(7, 64, 512), 2);
        assert_near_naive(&w, out);
        mem_free(out);
        world_finish(&w);
    }
}

/* One kv head that all share, with keys longer than values: multi-head latent attention. */
static void run_takes_latent_shapes(void **state)
{
    (void)state;
    struct world w;
    struct attn_shape s = {.heads = 16,
                           .kv_heads = 1,
                           .key_size = 576,
                           .value_size = 512,
                           .type = KV_BF16,
                           .scale = 0.04f};
    world_init(&w, s, 70);
    float *out = world_run(&w, 0, 33, 2);
    assert_near_naive(&w, out);
    mem_free(out);
    world_finish(&w);
}

static void run_gives_the_same_bits_at_every_level(void **state)
{
    (void)state;
    for (int i = 0; i < test_rounds(24); i++) {
        struct world w;
        world_random(&w, ONE_OF(1, 33, 100, 300, 600));
        attn_set_isa(ISA_C);
        float *expected = world_run(&w, w.n * 2 / 3, 512, 1);
        size_t skip = (size_t)(w.n * 2 / 3) * w.shape.heads * w.shape.value_size;
        for (int level = 1; level <= (int)cpu_isa(); level++) {
            attn_set_isa((enum isa)level);
            float *out = world_run(&w, w.n * 2 / 3, 512, 2);
            assert_same_floats(out + skip, expected + skip, out_floats(&w) - skip,
                               isa_name((enum isa)level));
            mem_free(out);
        }
        attn_set_isa(ISA_COUNT - 1);
        mem_free(expected);
        world_finish(&w);
    }
}

static void run_gives_the_same_bits_for_any_span_and_threads(void **state)
{
    (void)state;
    static const int steps[] = {1, 7, 64, 512};
    for (int i = 0; i < test_rounds(12); i++) {
        struct world w;
        world_random(&w, ONE_OF(40, 300, 550, 1100));
        int first = w.n > 300 ? w.n - 70 : 0;
        size_t skip = (size_t)first * w.shape.heads * w.shape.value_size;
        float *expected = world_run(&w, first, w.n, 1);
        for (int k = 0; k < 4; k++) {
            float *out = world_run(&w, first, steps[k], ONE_OF(1, 2, 3, 5));
            assert_same_floats(out + skip, expected + skip, out_floats(&w) - skip, "span");
            mem_free(out);
        }
        mem_free(expected);
        world_finish(&w);
    }
}

/* Sequences of very different lengths in one step, so that some are cut and some are not. */
static void run_gives_the_same_bits_in_company(void **state)
{
    (void)state;
    enum { SEQUENCES = 6 };
    for (int i = 0; i < test_rounds(6); i++) {
        struct world w[SEQUENCES];
        struct attn_span spans[SEQUENCES];
        struct attn_shape shape = random_shape();
        float *out[SEQUENCES], *alone[SEQUENCES];
        for (int k = 0; k < SEQUENCES; k++) {
            world_init(&w[k], shape, ONE_OF(1, 20, 64, 500, 2300));
            world_store(&w[k], 0, w[k].n);
            int n = w[k].n < 20 ? 1 : ONE_OF(1, 1, 1, 20);
            out[k] = random_floats(out_floats(&w[k]), 0);
            alone[k] = random_floats(out_floats(&w[k]), 0);
            spans[k] = world_span(&w[k], w[k].n - n, n, alone[k]);
            run_spans(1, &shape, &spans[k], 1);
            spans[k] = world_span(&w[k], w[k].n - n, n, out[k]);
        }
        run_spans(4, &shape, spans, SEQUENCES);
        for (int k = 0; k < SEQUENCES; k++) {
            assert_same_floats(out[k], alone[k], out_floats(&w[k]), "company");
            mem_free(out[k]);
            mem_free(alone[k]);
            world_finish(&w[k]);
        }
    }
}

static void run_leaves_blocks_before_the_window_alone(void **state)
{
    (void)state;
    for (int i = 0; i < test_rounds(8); i++) {
        struct world w;
        struct attn_shape shape = random_shape();
        shape.window = ONE_OF(1, 31, 32, 33, 64, 530);
        world_init(&w, shape, 900 + range(0, 40));
        int n = ONE_OF(1, 10, 64), first = w.n - n;
        world_store(&w, 0, w.n);
        float *expected = random_floats(out_floats(&w), 0), *out = random_floats(out_floats(&w), 0);
        struct attn_span span = world_span(&w, first, n, expected);
        run_spans(2, &w.shape, &span, 1);
        for (int b = 0; b < (first - shape.window + 1) / 32; b++) {
            mem_free(w.blocks[b]);
            w.blocks[b] = NULL;
        }
        span = world_span(&w, first, n, out);
        run_spans(2, &w.shape, &span, 1);
        assert_same_floats(out, expected, out_floats(&w), "released blocks");
        mem_free(out);
        mem_free(expected);
        world_finish(&w);
    }
}

/* An infinite key or value of a later position of the same span must not reach earlier ones. */
static void run_keeps_later_positions_out(void **state)
{
    (void)state;
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        struct world w;
        struct attn_shape shape = random_shape();
        shape.type = (enum kv_type)type;
        world_init(&w, shape, 50);
        float *expected = world_run(&w, 0, 1, 1);
        size_t at = (size_t)40 * shape.kv_heads;
        for (int c = 0; c < shape.kv_heads * shape.key_size; c++)
            w.k[at * shape.key_size + c] = c % 2 ? INFINITY : NAN;
        for (int c = 0; c < shape.kv_heads * shape.value_size; c++)
            w.v[at * shape.value_size + c] = c % 2 ? -INFINITY : NAN;
        float *out = world_run(&w, 0, 50, 2);
        assert_same_floats(out, expected, (size_t)40 * shape.heads * shape.value_size, "earlier");
        mem_free(out);
        mem_free(expected);
        world_finish(&w);
    }
}

static void run_honours_strides(void **state)
{
    (void)state;
    struct world w;
    world_random(&w, 45);
    float *expected = world_run(&w, 0, 45, 1);
    size_t q_row = (size_t)w.shape.heads * w.shape.key_size;
    size_t out_row = (size_t)w.shape.heads * w.shape.value_size;
    float *q = random_floats(45 * (q_row + 5), 1), *out = random_floats(45 * (out_row + 3), 0);
    for (int p = 0; p < 45; p++)
        memcpy(q + (size_t)p * (q_row + 5), w.q + (size_t)p * q_row, q_row * sizeof *q);
    struct attn_span span = world_span(&w, 0, 45, out);
    span.q = q;
    span.q_stride = q_row + 5;
    span.out_stride = out_row + 3;
    run_spans(2, &w.shape, &span, 1);
    for (int p = 0; p < 45; p++) {
        assert_same_floats(out + (size_t)p * (out_row + 3), expected + (size_t)p * out_row, out_row,
                           "row");
        for (int c = 0; c < 3; c++)
            assert_true(out[(size_t)p * (out_row + 3) + out_row + (size_t)c] == 0);
    }
    mem_free(q);
    mem_free(out);
    mem_free(expected);
    world_finish(&w);
}

/* ---- storing ---- */

/* The bytes of a slot depend on its own key and value, not on the order of storing. */
static void store_is_a_function_of_the_position(void **state)
{
    (void)state;
    for (int i = 0; i < test_rounds(12); i++) {
        struct world w;
        world_random(&w, 32);
        memset(w.blocks[0], 0, w.block_bytes + w.offset);
        world_store(&w, 0, 32);
        uint8_t *once = mem_alloc(1, w.block_bytes);
        memcpy(once, layer_of(&w, 0), w.block_bytes);
        fill_garbage(layer_of(&w, 0), w.block_bytes);
        attn_set_isa(ISA_C);
        for (int p = 31; p >= 0; p--)
            world_store(&w, p, p + 1);
        attn_set_isa(ISA_COUNT - 1);
        assert_memory_equal(once, layer_of(&w, 0), w.block_bytes);
        mem_free(once);
        world_finish(&w);
    }
}

static void assert_stored(const struct world *w, const float *x, const float *stored, int n)
{
    static const float relative[KV_TYPE_COUNT] = {
        [KV_F16] = 0x1p-11f, [KV_BF16] = 0x1p-8f, [KV_F32] = 0, [KV_Q8_0] = 0};
    /* q8_0: half a step of the group's scale, which was itself rounded to f16. */
    float absolute = w->shape.type == KV_Q8_0 ? 2.0f / 127 * 0.51f : 0x1p-25f;
    for (int i = 0; i < n; i++)
        assert_true(fabsf(stored[i] - x[i]) <= fabsf(x[i]) * relative[w->shape.type] + absolute);
}

static void store_rounds_once(void **state)
{
    (void)state;
    for (int i = 0; i < test_rounds(16); i++) {
        struct world w;
        world_random(&w, 40);
        world_store(&w, 0, 40);
        const struct attn_shape *s = &w.shape;
        float *row = random_floats((size_t)s->key_size + (size_t)s->value_size, 0);
        for (int p = 0; p < 40; p++) {
            int h = range(0, s->kv_heads - 1);
            size_t at = (size_t)p * s->kv_heads + (size_t)h;
            read_key(&w, h, p, row);
            assert_stored(&w, w.k + at * s->key_size, row, s->key_size);
            read_value(&w, h, p, row);
            assert_stored(&w, w.v + at * s->value_size, row, s->value_size);
        }
        mem_free(row);
        world_finish(&w);
    }
}

/* ---- shapes ---- */

static void check_refuses_what_no_kernel_can_do(void **state)
{
    (void)state;
    struct err err;
    struct attn_shape good = {
        .heads = 9, .kv_heads = 3, .key_size = 64, .value_size = 64, .scale = 0.125f};
    assert_int_equal(attn_check(&good, &err), 0);
    assert_int_equal(attn_block_bytes(&good), 3 * 2 * 32 * 64 * 2);
    struct attn_shape bad[] = {good, good, good, good, good, good};
    bad[0].kv_heads = 2;
    bad[1].kv_heads = 0;
    bad[2].key_size = 0;
    bad[3].type = KV_TYPE_COUNT;
    bad[4].window = -1;
    bad[5].scale = NAN;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(attn_check(&bad[i], &err), ERR_UNSUPPORTED);
        assert_true(strlen(err.text) > 10);
        assert_int_equal(attn_block_bytes(&bad[i]), 0);
    }
    assert_int_equal(attn_scratch_bytes(&good, 0, 100, 1), 0);
    assert_true(attn_scratch_bytes(&good, 512, 1 << 20, 64) > 0);
}

static void type_names_go_both_ways(void **state)
{
    (void)state;
    for (int t = 0; t < KV_TYPE_COUNT; t++)
        assert_int_equal(kv_type_from_name(kv_type_name((enum kv_type)t)), t);
    assert_int_equal(kv_type_from_name("f8"), -1);
}

/* ---- kernels, slot by slot ---- */

enum { MOST_ROWS = 70, MOST_SIZE = 300, GUARD = 16 };

struct bench_rows {
    struct attn_rows r;
    float query[MOST_ROWS * MOST_SIZE];
    _Alignas(64) float weight[MOST_ROWS * 32 + GUARD];
    _Alignas(64) float mix[MOST_ROWS * 320 + GUARD];
    float top[MOST_ROWS + GUARD], sum[MOST_ROWS + GUARD], rescale[MOST_ROWS + GUARD];
    float slope[MOST_ROWS];
    int position[MOST_ROWS];
};

static void rows_init(struct bench_rows *b, int n)
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < MOST_ROWS * MOST_SIZE; i++)
        b->query[i] = test_uniform(&rng);
    for (int i = 0; i < MOST_ROWS * 32 + GUARD; i++)
        b->weight[i] = test_uniform(&rng) * 5;
    for (int i = 0; i < MOST_ROWS * 320 + GUARD; i++)
        b->mix[i] = test_uniform(&rng);
    for (int i = 0; i < MOST_ROWS; i++) {
        b->top[i] = range(0, 3) ? test_uniform(&rng) * 6 : -INFINITY;
        b->sum[i] = b->top[i] > -INFINITY ? 3 + test_uniform(&rng) : 0;
        b->rescale[i] = range(0, 2) ? 1 : test_uniform(&rng) + 1;
        b->slope[i] = test_uniform(&rng) * 0.1f;
        b->position[i] = 700 + i / 3;
    }
    b->r.n = n;
}

static struct attn_rows rows_of(struct bench_rows *b, bool alibi)
{
    return (struct attn_rows){b->r.n,     b->query, b->weight,  b->mix,
                              b->top,     b->sum,   b->rescale, alibi ? b->slope : NULL,
                              b->position};
}

static void assert_same_rows(const struct bench_rows *a, const struct bench_rows *b,
                             const char *what)
{
    assert_same_floats(a->weight, b->weight, MOST_ROWS * 32 + GUARD, what);
    assert_same_floats(a->mix, b->mix, MOST_ROWS * 320 + GUARD, what);
    assert_same_floats(a->top, b->top, MOST_ROWS + GUARD, what);
    assert_same_floats(a->sum, b->sum, MOST_ROWS + GUARD, what);
    assert_same_floats(a->rescale, b->rescale, MOST_ROWS + GUARD, what);
}

/* A page of finite values, but for the lanes outside [first, last). */
static struct attn_page random_page(const struct attn_shape *s, struct world *w)
{
    struct attn_layout l = attn_layout(s);
    world_init(w, *s, 31);
    struct attn_page p = {.key_size = s->key_size,
                          .value_pad = l.value_pad,
                          .position = 32 * range(0, 20),
                          .first = ONE_OF(0, 0, 0, 3, 17)};
    p.last = ONE_OF(1, 0, 0) ? range(p.first + 1, 32) : 32;
    for (int i = p.first; i < p.last; i++)
        attn_store(s, layer_of(w, 0), i, w->k, w->v + (size_t)i / 2 * s->value_size);
    p.key = p.next_key = layer_of(w, 0);
    p.value = p.next_value = (uint8_t *)layer_of(w, 0) + l.key_bytes;
    p.cap = ONE_OF(0, 0, 1) ? 4.25f : 0;
    p.inv_cap = p.cap > 0 ? 1 / p.cap : 0;
    return p;
}

static struct bench_rows ref_rows, got_rows;

/* Lanes that are not seen may differ in what they make of a NaN. */
static void compare_scores(const struct attn_page *p, const char *what)
{
    for (int i = 0; i < ref_rows.r.n; i++)
        assert_same_floats(got_rows.weight + i * 32 + p->first, ref_rows.weight + i * 32 + p->first,
                           (size_t)(p->last - p->first), what);
    for (int i = ref_rows.r.n * 32; i < MOST_ROWS * 32 + GUARD; i++)
        assert_true(got_rows.weight[i] == ref_rows.weight[i]);
}

static void compare_slots(const struct attn_ops *c, const struct attn_ops *ops, enum kv_type type,
                          const char *what)
{
    struct world w;
    struct attn_shape s = {.heads = 1, .kv_heads = 1, .scale = 1, .type = type};
    s.key_size = ONE_OF(1, 2, 8, 16, 20, 31, 32, 33, 64, 80, 96, 128, 192, 300);
    s.value_size = ONE_OF(1, 8, 16, 20, 32, 48, 64, 80, 96, 112, 128, 144, 160, 256, 300);
    struct attn_page p = random_page(&s, &w);
    rows_init(&ref_rows, range(1, MOST_ROWS));
    got_rows = ref_rows;
    bool alibi = range(0, 1);
    struct attn_rows ref = rows_of(&ref_rows, alibi), got = rows_of(&got_rows, alibi);
    c->scores[type](&p, &ref);
    ops->scores[type](&p, &got);
    compare_scores(&p, what);
    memcpy(got_rows.weight, ref_rows.weight, sizeof ref_rows.weight);
    c->softmax(&p, &ref);
    ops->softmax(&p, &got);
    assert_same_rows(&got_rows, &ref_rows, what);
    c->mix[type](&p, &ref);
    ops->mix[type](&p, &got);
    /* Padding columns hold whatever the cache holds. */
    for (int i = 0; i < ref.n; i++)
        assert_same_floats(got.mix + (size_t)i * p.value_pad, ref.mix + (size_t)i * p.value_pad,
                           (size_t)s.value_size, what);
    size_t used = (size_t)ref.n * (size_t)p.value_pad;
    assert_same_floats(got.mix + used, ref.mix + used, MOST_ROWS * 320 + GUARD - used, what);
    world_finish(&w);
}

static void kernels_equal_plain_c(void **state)
{
    (void)state;
    struct attn_ops c, ops;
    attn_ops_fill(&c, ISA_C);
    for (int level = 1; level <= (int)cpu_isa(); level++) {
        attn_ops_fill(&ops, (enum isa)level);
        for (int i = 0; i < test_rounds(400); i++)
            compare_slots(&c, &ops, (enum kv_type)(i % KV_TYPE_COUNT), isa_name((enum isa)level));
    }
}

static void compare_merge(const struct attn_ops *c, const struct attn_ops *ops, const char *what)
{
    for (int i = 0; i < test_rounds(50); i++) {
        int n = 16 * range(1, 20);
        rows_init(&ref_rows, 1);
        got_rows = ref_rows;
        float a = test_uniform(&rng), b = test_uniform(&rng);
        c->merge(ref_rows.mix, ref_rows.query, a, b, n);
        ops->merge(got_rows.mix, got_rows.query, a, b, n);
        assert_same_rows(&got_rows, &ref_rows, what);
    }
}

static void merge_equals_plain_c(void **state)
{
    (void)state;
    struct attn_ops c, ops;
    attn_ops_fill(&c, ISA_C);
    for (int level = 1; level <= (int)cpu_isa(); level++) {
        attn_ops_fill(&ops, (enum isa)level);
        compare_merge(&c, &ops, isa_name((enum isa)level));
    }
}

/* Any bit pattern, by way of every exponent. */
static float any_float(void)
{
    uint32_t bits = (uint32_t)test_random(&rng);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void conversions_equal_plain_c(void **state)
{
    (void)state;
    struct attn_ops c, ops;
    attn_ops_fill(&c, ISA_C);
    for (int level = 1; level <= (int)cpu_isa(); level++) {
        attn_ops_fill(&ops, (enum isa)level);
        for (int i = 0; i < test_rounds(20000); i++) {
            float x[64];
            uint16_t a[65], b[65];
            int n = range(1, 64);
            for (int k = 0; k < n; k++)
                x[k] = i % 2 ? any_float() : ldexpf(test_uniform(&rng), range(-28, 17));
            a[n] = b[n] = 77;
            c.to_f16(x, a, n);
            ops.to_f16(x, b, n);
            assert_memory_equal(a, b, (size_t)(n + 1) * 2);
            c.to_bf16(x, a, n);
            ops.to_bf16(x, b, n);
            assert_memory_equal(a, b, (size_t)(n + 1) * 2);
        }
    }
}

static void exp_equals_plain_c(void **state)
{
    (void)state;
    struct attn_ops c, ops;
    attn_ops_fill(&c, ISA_C);
    for (int level = 1; level <= (int)cpu_isa(); level++) {
        attn_ops_fill(&ops, (enum isa)level);
        for (int i = 0; i < test_rounds(20000); i++) {
            float a[71], b[71];
            int n = range(0, 70);
            for (int k = 0; k <= n; k++) {
                a[k] = i % 2 ? any_float() : test_uniform(&rng) * 92;
                a[k] = a[k] != a[k] ? -87.3365f : a[k];
                b[k] = a[k];
            }
            c.exp(a, (size_t)n);
            ops.exp(b, (size_t)n);
            assert_same_floats(b, a, (size_t)n + 1, isa_name((enum isa)level));
        }
    }
}

static void exp_n_is_exp_of_each(void **state)
{
    (void)state;
    float x[77], all[77];
    for (int i = 0; i < 77; i++)
        all[i] = x[i] = test_uniform(&rng) * 20;
    attn_exp_n(all, 77);
    for (int i = 0; i < 77; i++)
        assert_true(all[i] == attn_exp(x[i]));
}

static void exp_is_within_about_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < test_rounds(2000000); i++) {
        float x = test_uniform(&rng) * (i % 2 ? 88.5f : 1.0f);
        if (x < -87.33f)
            continue;
        double expected = exp((double)x);
        double ulp = ldexp(1, ilogb(expected) - 23);
        worst = fmax(worst, fabs(attn_exp(x) - expected) / ulp);
    }
    printf("exp: at most %.3f ulp\n", worst);
    assert_true(worst < 1.1);
    assert_true(attn_exp(0) == 1 && attn_exp(-INFINITY) == 0 && attn_exp(INFINITY) == INFINITY);
    assert_true(attn_exp(-88) == 0 && attn_exp(89) == INFINITY && isnan(attn_exp(NAN)));
    assert_true(isfinite(attn_exp(88.72283f)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_refuses_what_no_kernel_can_do),
        cmocka_unit_test(type_names_go_both_ways),
        cmocka_unit_test(exp_is_within_about_one_ulp),
        cmocka_unit_test(exp_equals_plain_c),
        cmocka_unit_test(exp_n_is_exp_of_each),
        cmocka_unit_test(conversions_equal_plain_c),
        cmocka_unit_test(merge_equals_plain_c),
        cmocka_unit_test(kernels_equal_plain_c),
        cmocka_unit_test(store_is_a_function_of_the_position),
        cmocka_unit_test(store_rounds_once),
        cmocka_unit_test(run_agrees_with_naive_attention),
        cmocka_unit_test(run_takes_latent_shapes),
        cmocka_unit_test(run_gives_the_same_bits_at_every_level),
        cmocka_unit_test(run_gives_the_same_bits_for_any_span_and_threads),
        cmocka_unit_test(run_gives_the_same_bits_in_company),
        cmocka_unit_test(run_leaves_blocks_before_the_window_alone),
        cmocka_unit_test(run_keeps_later_positions_out),
        cmocka_unit_test(run_honours_strides),
    };
    rng = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
