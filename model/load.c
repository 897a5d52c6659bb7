#include "load.h"

#include "checksum.h"
#include "log.h"
#include "share.h"

#include <stdlib.h>
#include <string.h>

void visit_matrices(struct plan *p, matrix_visit *visit, void *arg)
{
    for (int i = 0; i < p->face.layers; i++) {
        struct layer *l = &p->layers[i];
        struct linear *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            visit(arg, &all[j]->matrix);
    }
    visit(arg, &p->output.matrix);
}

/* ---- where each matrix lies ---- */

static void add_bytes(void *arg, struct matrix *m)
{
    *(size_t *)arg += mem_round_up(m->packed_bytes, MEM_LINE);
}

struct placing {
    uint8_t *base;
    size_t at;
};

static void place_matrix(void *arg, struct matrix *m)
{
    struct placing *p = arg;
    if (m->packed_bytes)
        m->packed = p->base + p->at;
    p->at += mem_round_up(m->packed_bytes, MEM_LINE);
}

/* ---- packing ---- */

/* Who packs rows touches their memory first, and so has it on its own node: the same worker as will
 * read them, by the same shares of a matrix as in the forward pass. */

enum { CHUNK_GROUPS = 8 };

struct packing {
    const struct loading *how;
    struct share *shares;
    int threads;
    size_t done, total;
    struct matrix *matrix; /* of the running phase */
};

static void pack_chunks(void *arg, int worker, int64_t first, int64_t last)
{
    const struct packing *p = arg;
    const int rows = CHUNK_GROUPS * MATRIX_GROUP;
    struct matrix *m = p->matrix;
    for (int64_t i = first; i < last; i++) {
        int row0 = shares_take(p->shares, p->threads, worker) * rows;
        matrix_pack_rows(m, row0, m->rows - row0 < rows ? m->rows : row0 + rows);
    }
}

static void pack_matrix(void *arg, struct matrix *m)
{
    struct packing *p = arg;
    const int rows = CHUNK_GROUPS * MATRIX_GROUP;
    if (!m->packed_bytes)
        return;
    p->matrix = m;
    int chunks = (m->rows + rows - 1) / rows;
    shares_set(p->shares, p->threads, chunks);
    pool_run(p->how->pool, pack_chunks, p, chunks, 1);
    weights_let_go(m->source, m->source_stride * (size_t)m->rows);
    p->done += m->packed_bytes;
    if (p->how->progress && p->total)
        p->how->progress(p->how->progress_arg, (double)p->done / (double)p->total);
}

/* ---- the file of packed weights ---- */

static void add_matrix(void *arg, struct matrix *m)
{
    uint64_t *key = arg;
    const int64_t shape[] = {m->format, m->rows, m->cols, (int64_t)m->packed_bytes};
    *key = checksum(*key, shape, sizeof shape);
}

/* Which weights, packed how. */
static uint64_t packed_key(struct plan *p, const struct weights *w)
{
    const char *level = isa_name(p->how.isa);
    uint64_t key = checksum(weights_identity(w), level, strlen(level));
    visit_matrices(p, add_matrix, &key);
    return key;
}

struct checking {
    uint8_t *group; /* room for the largest */
    size_t most;
    bool same;
};

static void find_most(void *arg, struct matrix *m)
{
    struct checking *c = arg;
    if (m->group_bytes > c->most)
        c->most = m->group_bytes;
}

static void check_group(struct checking *c, const struct matrix *m, int row)
{
    struct matrix one = *m;
    one.source += (size_t)row * m->source_stride;
    one.rows = m->rows - row < MATRIX_GROUP ? m->rows - row : MATRIX_GROUP;
    one.packed = c->group;
    matrix_pack_rows(&one, 0, one.rows);
    if (memcmp(c->group, m->packed + (size_t)(row / MATRIX_GROUP) * m->group_bytes, m->group_bytes))
        c->same = false;
}

static void check_matrix(void *arg, struct matrix *m)
{
    int last = (m->rows - 1) / MATRIX_GROUP;
    const int groups[] = {0, last / 2, last};
    for (int i = 0; i < 3 && m->packed_bytes; i++)
        check_group(arg, m, groups[i] * MATRIX_GROUP);
    weights_let_go(m->source, m->source_stride * (size_t)m->rows);
}

/* Some rows of every matrix, packed again: whoever changes the layout and forgets REPACK_VERSION,
 * or the model and sets its clock back, is found out. */
static int check_samples(struct plan *p, const struct repack_file *f, struct err *err)
{
    struct checking c = {.same = true};
    visit_matrices(p, find_most, &c);
    c.group = mem_alloc(1, c.most);
    if (!c.group)
        return err_set(err, ERR_NOMEM, "no memory to check %s", f->path);
    visit_matrices(p, check_matrix, &c);
    mem_free(c.group);
    if (!c.same)
        return err_set(err, ERR_FORMAT, "%s does not hold what the model's file does", f->path);
    return 0;
}

/* True: the weights are there. */
static bool use_file(struct packed_weights *out, struct plan *p, const struct loading *how,
                     uint64_t key)
{
    struct err err;
    int rc = repack_find(&out->file, how->repack_dir, key, out->bytes, how->pool, &err);
    if (rc == 0) {
        visit_matrices(p, place_matrix, &(struct placing){.base = out->file.weights});
        rc = check_samples(p, &out->file, &err);
        if (rc)
            repack_close(&out->file);
    }
    if (rc && rc != ERR_NOT_FOUND)
        log_warning("%s: the weights are packed again", err.text);
    if (rc == 0)
        log_info("the weights are packed already, in %s", out->file.path);
    return rc == 0;
}

static void keep_file(struct packed_weights *out, const struct loading *how)
{
    struct err err;
    if (repack_commit(&out->file, how->pool, &err))
        log_warning("%s: the next start packs the weights again", err.text);
    else
        log_info("the packed weights are kept in %s", out->file.path);
}

/* ---- all ---- */

/* In the file to be kept, or in memory of our own. */
static int make_room(struct packed_weights *out, const struct loading *how, uint64_t key,
                     const struct weights *w, struct err *err)
{
    struct err why;
    if (how->repack_dir && repack_begin(&out->file, how->repack_dir, key, out->bytes, &why) == 0) {
        out->base = out->file.weights;
        return 0;
    }
    if (how->repack_dir)
        log_warning("%s: the packed weights are not kept", why.text);
    out->own = out->base = mem_alloc(1, out->bytes);
    if (!out->own)
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes of weights", weights_path(w),
                       out->bytes);
    if (pool_nodes(how->pool) == 1) /* one of them may hold rows of several nodes' workers */
        mem_use_huge_pages(out->own, out->bytes);
    return 0;
}

int packed_load(struct packed_weights *out, struct plan *p, const struct weights *w,
                const struct loading *how, struct err *err)
{
    *out = (struct packed_weights){0};
    visit_matrices(p, add_bytes, &out->bytes);
    if (!out->bytes)
        return 0;
    uint64_t key = how->repack_dir ? packed_key(p, w) : 0;
    if (how->repack_dir && use_file(out, p, how, key)) {
        out->base = out->file.weights;
        return 0;
    }
    int rc = make_room(out, how, key, w, err);
    if (rc)
        return rc;
    int threads = pool_threads(how->pool);
    struct packing packing = {.how = how, .threads = threads, .total = out->bytes};
    packing.shares = mem_alloc((size_t)threads, sizeof *packing.shares);
    if (!packing.shares)
        return err_set(err, ERR_NOMEM, "no memory to pack weights");
    visit_matrices(p, place_matrix, &(struct placing){.base = out->base});
    visit_matrices(p, pack_matrix, &packing);
    mem_free(packing.shares);
    if (out->file.map)
        keep_file(out, how);
    return 0;
}

void packed_finish(struct packed_weights *p)
{
    repack_close(&p->file);
    mem_free(p->own);
    *p = (struct packed_weights){0};
}
