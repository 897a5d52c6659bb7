#ifndef TESTS_GGUF_BUILDER_H
#define TESTS_GGUF_BUILDER_H

#include "config/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Writes GGUF files for tests: small right ones, wrong ones, and ones with the shapes of a large
 * model and nothing in them (sparse). Failures fail the test. */

/* GGUF's value types. */
enum {
    GB_U8,
    GB_I8,
    GB_U16,
    GB_I16,
    GB_U32,
    GB_I32,
    GB_F32,
    GB_BOOL,
    GB_STRING,
    GB_ARRAY,
    GB_U64,
    GB_I64,
    GB_F64
};

struct gguf_piece {
    uint64_t offset;
    const void *data; /* not owned */
    size_t bytes;
};

struct gguf_builder {
    uint32_t magic, version;
    uint64_t align;
    uint64_t n_keys, n_tensors; /* counted; a test may lie */
    struct strbuf keys, tensors;
    uint64_t data_bytes; /* where the next tensor goes */
    struct gguf_piece *pieces;
    int n_pieces;
};

void gguf_init(struct gguf_builder *b); /* version 3, alignment 32 */
void gguf_finish(struct gguf_builder *b);

/* Keys. raw: bytes as they are to follow the type word. */
void gguf_raw(struct gguf_builder *b, const char *key, uint32_t type, const void *raw,
              size_t bytes);
void gguf_int(struct gguf_builder *b, const char *key, int64_t value); /* as u32 */
void gguf_float(struct gguf_builder *b, const char *key, float value);
void gguf_bool(struct gguf_builder *b, const char *key, bool value);
void gguf_text(struct gguf_builder *b, const char *key, const char *value);
void gguf_array(struct gguf_builder *b, const char *key, uint32_t type, const void *values,
                uint64_t n, size_t element_bytes);
void gguf_texts(struct gguf_builder *b, const char *key, const char *const *values, uint64_t n);

/* The next tensor, placed after the others. data: [bytes], must live until the file is written, or
 * NULL for zeros. `format` is GGUF's number; bytes are not checked against the shape. */
void gguf_tensor(struct gguf_builder *b, const char *name, uint32_t format, int dims,
                 const int64_t *dim, const void *data, size_t bytes);
/* The same for F16 and F32 zeros of the right size; rows 0: a vector. */
void gguf_zeros(struct gguf_builder *b, const char *name, uint32_t format, int64_t cols,
                int64_t rows);
/* A tensor's entry alone. */
void gguf_entry(struct gguf_builder *b, const char *name, uint32_t format, uint32_t dims,
                const int64_t *dim, uint64_t offset);

/* The header, up to the aligned start of the data. */
void gguf_header(const struct gguf_builder *b, struct strbuf *out);
/* Header and data. */
void gguf_bytes(const struct gguf_builder *b, struct strbuf *out);
/* The whole file; what is zero takes no room on the disk. */
void gguf_write(const struct gguf_builder *b, const char *path);

/* ---- whole models of zeros ---- */

struct gguf_shape {
    const char *arch;
    int layers, width, heads, kv_heads, head_size, ffn, vocabulary, context;
    int window;      /* 0: the setting is not written */
    uint32_t format; /* of matrices: 0 F32, 1 F16 */
    bool tied;       /* no output.weight */
};
extern const struct gguf_shape gguf_tiny; /* llama, 2 layers, width 32; runs */

/* Settings, a SentencePiece vocabulary and tensors. One part each, so that a test can spoil one. */
void gguf_settings(struct gguf_builder *b, const struct gguf_shape *s);
void gguf_vocabulary(struct gguf_builder *b, const struct gguf_shape *s);
/* All tensors but the one of that name (NULL: all). */
void gguf_tensors(struct gguf_builder *b, const struct gguf_shape *s, const char *except);
void gguf_model(struct gguf_builder *b, const struct gguf_shape *s);

#endif
