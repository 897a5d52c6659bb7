#ifndef MODEL_PLAN_READER_H
#define MODEL_PLAN_READER_H

#include "plan.h"

/* How plan.c reads a file: settings (plan_settings.c) and tensors (plan_tensors.c). Everything
 * here returns 0, or an error code with the sentence in r->err. */

struct reader {
    struct plan *p;
    const struct weights *w;
    const struct model_options *options;
    bool *used; /* [tensors]: somebody read it */
    int heads, kv_heads, key_size, value_size;
    int window;               /* 0: none */
    enum kv_type kv_types[2]; /* of layers without and with a window */
    size_t vector_bytes;      /* used where they lie in the file */
    struct err *err;
};

/* ---- settings, of the architecture: key "block_count" is "llama.block_count" ---- */

const char *reader_key(const struct reader *r, const char *key, char *buf, size_t bytes);

struct int_row {
    const char *key;
    int otherwise; /* < 0: the key is required */
    int *out;
};

int reader_ints(struct reader *r, const struct int_row *rows, size_t n);
int reader_float(struct reader *r, const char *key, float otherwise, float *out);

/* Steps of plan_init. */
int reader_arch(struct reader *r);
int reader_model_name(struct reader *r);
int reader_sizes(struct reader *r);
int reader_scales(struct reader *r);
int reader_ropes(struct reader *r);
int reader_kv_types(struct reader *r);

/* Names of the cache's groups: of layers without and with a window. */
extern const char *const kv_group_names[2];

/* ---- tensors ---- */

/* NULL: not there. Otherwise it counts as used. */
const struct tensor *reader_tensor(struct reader *r, const char *name);
int reader_missing(struct reader *r, const char *name);
/* A vector of floats: used where it lies when it can be, converted otherwise. NULL when it is
 * absent. */
int reader_vector(struct reader *r, const char *name, int n, const float **out);

/* Rows [first, first + rows) of a matrix that must have `total` rows of `cols` values. */
struct view {
    const char *name;
    int cols, rows, first, total;
};
int reader_matrix(struct reader *r, const struct view *v, struct matrix *out);

/* "blk.LAYER.WHAT.KIND" */
const char *reader_layer_name(char *buf, size_t bytes, int layer, const char *what,
                              const char *kind);
/* A linear map of its own tensor, with its bias if there is one. */
int reader_linear(struct reader *r, int layer, const char *what, int cols, int rows,
                  struct linear *out);

/* Linear maps that the file holds either one by one or fused, one after another, in a tensor
 * `fused`. */
struct part {
    struct linear *out;
    const char *own; /* name of the tensor of its own */
    int rows;
};
int reader_parts(struct reader *r, int layer, const char *fused, int cols, const struct part *parts,
                 int n);
/* layer < 0: of no layer. */
int reader_norm(struct reader *r, int layer, const char *what, bool required, struct norm *out);

#endif
