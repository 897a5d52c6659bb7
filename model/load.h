#ifndef MODEL_LOAD_H
#define MODEL_LOAD_H

#include "plan.h"
#include "pool.h"
#include "repack.h"

/* Weights on their way from the model's file to where kernels want them. */

/* Walks all matrices of the plan that are multiplied with. */
typedef void matrix_visit(void *arg, struct matrix *m);
void visit_matrices(struct plan *p, matrix_visit *visit, void *arg);

/* All packed matrices, one after another. */
struct packed_weights {
    uint8_t *base; /* NULL: none is packed */
    size_t bytes;
    uint8_t *own;            /* what mem_free gets; NULL: they are in the file */
    struct repack_file file; /* with --repack-cache */
};

struct loading {
    struct pool *pool;
    const char *repack_dir; /* NULL: packed weights are not kept */
    void (*progress)(void *arg, double done);
    void *progress_arg;
};
int packed_load(struct packed_weights *out, struct plan *p, const struct weights *w,
                const struct loading *how, struct err *err);
void packed_finish(struct packed_weights *p);

#endif
