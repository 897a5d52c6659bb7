#ifndef TESTS_SAFETENSORS_H
#define TESTS_SAFETENSORS_H

#include <stdint.h>

/* The golden answers of a case: tensors by name from a safetensors file. */

struct golden {
    char *data; /* the file */
    const char *body;
    struct json_t *header;
};

struct golden_tensor {
    const void *data; /* float or int64 */
    int64_t dim[4];
    int dims;
};

int golden_open(struct golden *g, const char *path);
void golden_close(struct golden *g);
/* False when there is no such tensor. */
int golden_find(const struct golden *g, const char *name, struct golden_tensor *out);

#endif
