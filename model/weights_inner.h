#ifndef MODEL_WEIGHTS_INNER_H
#define MODEL_WEIGHTS_INNER_H

#include "gguf_read.h"
#include "mem.h"
#include "weights.h"

/* What weights.c (files, tensors) and weights_keys.c (settings) share. */

struct mapping {
    const uint8_t *data;
    size_t bytes;
    int64_t changed; /* nanoseconds of its last change */
};

struct key {
    struct weights_string name;
    struct gguf_value value;
};

/* The settings of one file, sorted by name. */
struct keys {
    struct key *list;
    size_t n;
};

struct weights {
    char *path;
    struct mapping *files;
    int n_files;
    struct keys keys;       /* of the first file */
    struct tensor *tensors; /* of all files, sorted by name */
    size_t n_tensors;
    struct mem_arena names;
};

/* Reads n keys. *out is empty on failure; keys_finish frees it. */
int keys_read(struct cursor *c, uint64_t n, struct keys *out, struct err *err);
void keys_finish(struct keys *k);
/* As weights_int, of the file at `path`. */
int keys_int(const struct keys *k, const char *path, const char *key, int64_t *out,
             struct err *err);

/* A name that a sentence can show: 1 to `most` bytes, no control characters. */
bool name_is_plain(const struct weights_string *name, size_t most);

#endif
