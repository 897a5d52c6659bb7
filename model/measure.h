#ifndef MODEL_MEASURE_H
#define MODEL_MEASURE_H

#include "matrix.h"
#include "model.h"

/* model_measure, given what it needs of the model. The output layer is the last matrix. */
struct model_measuring {
    enum isa isa;
    struct pool *pool;
    const uint8_t *packed; /* all packed weights */
    size_t packed_bytes;
    model_speed_fn *report;
    void *arg;
};
int measure_kernels(const struct model_measuring *how, struct matrix **matrices, int n,
                    struct model_ceilings *best, struct err *err);

#endif
