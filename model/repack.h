#ifndef MODEL_REPACK_H
#define MODEL_REPACK_H

#include "err.h"
#include "pool.h"

#include <stddef.h>
#include <stdint.h>

/* Packed weights in a file of their own, which later starts map instead of packing again and which
 * processes share: DIR/<key>.packed, where the key says which weights, packed how. It appears whole
 * or not at all (it is written beside and renamed), and each of its pieces has a checksum, so a
 * machine that stops in between leaves nothing that would be believed. */

struct repack_file {
    char *path, *temporary; /* temporary: while it is being written */
    uint64_t key;
    uint8_t *map; /* header, checksums, weights; NULL: not open */
    size_t map_bytes;
    uint8_t *weights;
    size_t bytes;
};

/* Changes when the layout of packed weights does. */
#define REPACK_VERSION 1

/* Maps the file of this key, read-only. ERR_NOT_FOUND: there is none; ERR_FORMAT: it is not what it
 * should be, and the sentence says why. */
int repack_find(struct repack_file *f, const char *dir, uint64_t key, size_t bytes,
                struct pool *pool, struct err *err);
/* Room for such a file: the caller fills f->weights, then commits. */
int repack_begin(struct repack_file *f, const char *dir, uint64_t key, size_t bytes,
                 struct err *err);
/* The weights are read-only from now on, and stay usable when this fails. */
int repack_commit(struct repack_file *f, struct pool *pool, struct err *err);
void repack_close(struct repack_file *f); /* of one that was never opened, too */

#endif
