#include "forward_state.h"
#include "mem.h"

#include <stdlib.h>

/* The buffers of a forward pass: what they take, and where they lie. */

static int most(int a, int b)
{
    return a > b ? a : b;
}

static size_t most_bytes(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void need(struct packed *a, const struct matrix *m)
{
    a->cols = m->cols;
    for (int i = 0; i < a->n_formats; i++)
        if (a->formats[i] == m->format)
            return;
    a->formats[a->n_formats++] = m->format;
}

static void find_needs(struct forward *f)
{
    const struct plan *p = f->p;
    for (int i = 0; i < p->face.layers; i++) {
        const struct layer *l = &p->layers[i];
        need(&f->in, &l->q.matrix);
        need(&f->in, &l->k.matrix);
        need(&f->in, &l->v.matrix);
        need(&f->in, &l->gate.matrix);
        need(&f->in, &l->up.matrix);
        need(&f->mid, &l->o.matrix);
        need(&f->wide, &l->down.matrix);
    }
    need(&f->asked, &p->output.matrix);
}

/* Scratch is laid out twice by the same code: once with base NULL to learn its size. */
struct layout {
    char *base;
    size_t bytes;
};

static void *place(struct layout *l, size_t bytes)
{
    void *at = l->base ? l->base + l->bytes : NULL;
    l->bytes += mem_round_up(bytes, MEM_LINE);
    return at;
}

static float *place_rows(struct layout *l, int rows, int width)
{
    return place(l, (size_t)rows * (size_t)width * sizeof(float));
}

/* Most tokens, up to n, that some matrix wants in this form; 0: none does. */
static int most_tokens_of(const struct forward *f, const struct packed *a, enum act_kind kind,
                          int n)
{
    for (; n > 0; n--)
        for (int i = 0; i < a->n_formats; i++)
            if (matrix_act_kind(a->formats[i], f->p->how, n) == kind)
                return n;
    return 0;
}

static void place_packed(struct layout *l, const struct forward *f, struct packed *a, int tokens)
{
    for (int kind = 0; kind < ACT_KIND_COUNT; kind++) {
        struct act_shape s = {(enum act_kind)kind, f->p->how.isa, a->cols, 0};
        s.tokens = most_tokens_of(f, a, s.kind, tokens);
        a->act[kind] = s.tokens ? place(l, act_bytes(&s)) : NULL;
    }
}

static size_t matrix_scratch(const struct plan *p)
{
    size_t bytes = matrix_scratch_bytes(p->output.matrix.format, p->output.matrix.cols, p->how);
    for (int i = 0; i < p->face.layers; i++) {
        const struct layer *l = &p->layers[i];
        const struct linear *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            bytes = most_bytes(
                bytes, matrix_scratch_bytes(all[j]->matrix.format, all[j]->matrix.cols, p->how));
    }
    return mem_round_up(bytes, MEM_LINE);
}

/* Rows of gate and up that a worker takes at a time, of all tokens. */
static size_t gate_scratch(const struct forward *f)
{
    size_t floats = 0;
    for (int i = 0; i < f->p->face.layers; i++)
        floats = most_bytes(
            floats, matrix_chunk_values(&f->p->layers[i].gate.matrix, f->most_tokens, f->threads));
    return mem_round_up(2 * floats * sizeof(float), MEM_LINE);
}

static size_t attn_scratch(const struct forward *f)
{
    size_t bytes = 0;
    for (int i = 0; i < f->p->face.layers; i++)
        bytes = most_bytes(bytes, attn_scratch_bytes(&f->p->layers[i].attn, f->most_tokens,
                                                     f->p->face.context, f->threads));
    return bytes;
}

/* Chunks of q, k and v: of whole pairs of groups, but for the last of each. */
static size_t most_turns(const struct plan *p)
{
    const struct model_plan *m = &p->face;
    int rows = m->heads * m->key_size + m->kv_heads * (m->key_size + m->value_size);
    return (size_t)rows / MATRIX_GROUP + 3;
}

static void place_all(struct forward *f, struct layout *l)
{
    const struct plan *p = f->p;
    int n = f->most_tokens;
    f->x = place_rows(l, n, p->width);
    f->normed = place_rows(l, n, p->width);
    f->q = place_rows(l, n, p->face.heads * p->face.key_size);
    f->k = place_rows(l, n, p->face.kv_heads * p->face.key_size);
    f->v = place_rows(l, n, p->face.kv_heads * p->face.value_size);
    f->mixed = place_rows(l, n, p->face.heads * p->face.value_size);
    f->y = place_rows(l, n, p->width);
    for (int i = 0; i < p->n_ropes; i++)
        f->tables[i] = place_rows(l, n, p->ropes[0][i].dims);
    place_packed(l, f, &f->in, n);
    place_packed(l, f, &f->mid, n);
    place_packed(l, f, &f->wide, n);
    place_packed(l, f, &f->asked, MODEL_LOGIT_ROWS);
    f->attn_scratch = place(l, attn_scratch(f));
    f->matrix_bytes = matrix_scratch(p);
    f->worker_bytes = f->matrix_bytes + gate_scratch(f);
    f->worker_scratch = place(l, f->worker_bytes * (size_t)f->threads);
    f->spans = place(l, (size_t)n * sizeof *f->spans);
    f->rows = place(l, (size_t)n * sizeof *f->rows);
    f->kept = place(l, (size_t)n * sizeof *f->kept);
    for (int i = 0; i < 2; i++)
        f->shares[i] = place(l, (size_t)f->threads * sizeof *f->shares[i]);
    f->turns = place(l, most_turns(p) * sizeof *f->turns);
    f->computed = place(l, (size_t)p->face.kv_heads * sizeof *f->computed);
    f->stored = place(l, (size_t)p->face.kv_heads * sizeof *f->stored);
    f->mixed_left = place(l, (size_t)n * sizeof *f->mixed_left);
}

static void prepare(struct forward *f, const struct plan *p, int threads)
{
    *f = (struct forward){.p = p, .threads = most(threads, 1)};
    f->most_tokens = most(p->face.batch_tokens, MODEL_LOGIT_ROWS);
    find_needs(f);
}

size_t forward_scratch_bytes(const struct plan *p, int threads)
{
    struct forward f;
    struct layout l = {0};
    prepare(&f, p, threads);
    place_all(&f, &l);
    return l.bytes;
}

int forward_create(const struct plan *p, struct pool *pool, struct forward **out, struct err *err)
{
    struct forward *f = calloc(1, sizeof *f);
    struct layout l = {0};
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for the forward pass");
    prepare(f, p, pool_threads(pool));
    f->pool = pool;
    f->vec = vec_ops(p->how.isa);
    place_all(f, &l);
    size_t bytes = l.bytes;
    l = (struct layout){.base = mem_alloc(1, bytes)};
    if (!l.base) {
        free(f);
        return err_set(err, ERR_NOMEM, "no memory for %zu bytes of scratch", bytes);
    }
    place_all(f, &l);
    *out = f;
    return 0;
}

void forward_destroy(struct forward *f)
{
    if (!f)
        return;
    mem_free(f->x); /* the first of the layout: its base */
    free(f);
}
