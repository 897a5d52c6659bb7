#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "err.h"
#include "formats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file with named tensors and settings. GGUF versions 2 and 3, one file or a split set, mapped
 * read-only; everything that the header says is checked against the file's size before it is
 * believed. Facts of the format: the GGUF specification of the ggml project. */

struct tensor {
    const char *name; /* zero-terminated */
    enum format_id format;
    int dims;
    int64_t dim[4]; /* dim[0] runs fastest: a matrix is [dim[1]] rows of dim[0] columns; unused ones
                       are 1 */
    const void *data; /* in the mapping; aligned as the file says */
    size_t bytes;
};

struct weights;

/* `path`: a file, or the first file of a split set (the others are found beside it). */
int weights_open(const char *path, struct weights **out, struct err *err);
void weights_close(struct weights *w); /* accepts NULL */

const char *weights_path(const struct weights *w);
size_t weights_file_bytes(const struct weights *w); /* of all files */

/* Tells this content from another, wherever it lies: from sizes, times of change, beginnings. */
uint64_t weights_identity(const struct weights *w);

const struct tensor *weights_tensor(const struct weights *w,
                                    const char *name); /* NULL: not there */
size_t weights_tensors(const struct weights *w);
const struct tensor *weights_tensor_at(const struct weights *w, size_t i);

/* Pages of the mapping that hold nothing but data[0, bytes) leave the process (not the page cache);
 * reading them again brings them back. */
void weights_let_go(const void *data, size_t bytes);
/* Reads them in, as far as the system can do so ahead. */
void weights_read_in(const void *data, size_t bytes);

/* Settings. Each getter returns 1 and fills *out when the key is there with a fitting type, 0 when
 * the key is not there (*out untouched), and an error code when it has another type. */
int weights_int(const struct weights *w, const char *key, int64_t *out, struct err *err);
int weights_float(const struct weights *w, const char *key, float *out, struct err *err);
int weights_bool(const struct weights *w, const char *key, bool *out, struct err *err);
/* Strings are not zero-terminated; they live as long as the file is open. */
struct weights_string {
    const char *s;
    size_t bytes;
};
int weights_string(const struct weights *w, const char *key, struct weights_string *out,
                   struct err *err);
/* A string from a file as a sentence can show it: cut, and what is not plain ASCII as '?'. */
struct weights_shown {
    char text[64];
};
const char *weights_show(struct weights_string s, struct weights_shown *shown);

/* Arrays: how many elements (0 when the key is not there or holds no array). */
int64_t weights_array_size(const struct weights *w, const char *key);
/* Fill out[0, n): n must be the size. */
int weights_array_strings(const struct weights *w, const char *key, struct weights_string *out,
                          struct err *err);
int weights_array_ints(const struct weights *w, const char *key, int32_t *out, struct err *err);
int weights_array_floats(const struct weights *w, const char *key, float *out, struct err *err);

#endif
