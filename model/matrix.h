#ifndef MODEL_MATRIX_H
#define MODEL_MATRIX_H

#include "cpu.h"
#include "err.h"
#include "formats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Matrix products: y[t][r] = sum over k of w[r][k] * x[t][k], w a tensor in any number format.
 *
 * The integer modes round activations (per token and 32 values, to 8 or 16 bits) and never the
 * weights. Every output element is one chain of float steps in ascending k, so its bits depend on
 * neither the number of tokens, nor the tile shape, nor the threads, nor the SIMD level:
 *
 *   per block b of 32 k:  i = sum of q_w * q_x (integers)
 *     scale per 32:       acc = fma(i, scale * d, acc)
 *     scales per 16:      acc = fma(fma(i1, s1, i0 * s0), scale * d, acc)
 *     and with a minimum: acc = fma(min, dsum, acc), one step per 32 or per 16 values
 *   with d the activation's scale of the block and dsum = d * (sum of its q_x).
 *
 * F32, F16 and BF16 weights meet unrounded activations: acc = fma(w, x, acc) for each k. */

enum matrix_mode {
    MATRIX_INT8,  /* own kernels, activations rounded to 8 bits */
    MATRIX_INT16, /* own kernels, activations rounded to 16 bits */
    MATRIX_FLOAT  /* dequantise and call OpenBLAS: results depend on the batch */
};

struct matrix_how {
    enum isa isa; /* at most cpu_isa() */
    enum matrix_mode mode;
};

struct matrix {
    enum format_id format;
    int rows, cols;
    struct matrix_how how;
    const uint8_t *source; /* rows in file order; not owned, must outlive the matrix */
    size_t source_stride;  /* bytes of a row */
    uint8_t *packed;       /* not owned; NULL when packed_bytes is 0 */
    size_t packed_bytes, group_bytes;
};

/* ---- one row, exactly as its format defines it ---- */

/* Whether the format can be unpacked; every function below needs that. */
bool format_known(enum format_id format);
/* n values (whole blocks) of a row. Format must be known. */
void format_unpack(enum format_id format, const void *row, int n, float *out);

/* ---- setting up ---- */

/* Rows are packed in groups of this many, and a range of rows starts at a multiple of it. */
#define MATRIX_GROUP 16

/* Bytes that the packed copy of a rows x cols tensor takes; 0 when the source is used in place. */
size_t matrix_packed_bytes(enum format_id format, int rows, int cols, struct matrix_how how);

/* Keeps `source`. ERR_UNSUPPORTED names a format that has no unpack; ERR_FORMAT a row that is not
 * whole blocks. Then, when m->packed_bytes is not 0, the caller gives m->packed that many bytes,
 * aligned to MEM_LINE, and has every row packed before the first product. */
int matrix_init(struct matrix *m, enum format_id format, int rows, int cols, const void *source,
                struct matrix_how how, struct err *err);
/* Packs rows [row0, row1): row0 a multiple of MATRIX_GROUP, row1 too or equal to rows. Ranges may
 * be packed by several threads at once. */
void matrix_pack_rows(struct matrix *m, int row0, int row1);

/* One dequantised row, for embeddings. Reads the source. */
void matrix_row(const struct matrix *m, int row, float *out);

/* ---- activations ---- */

enum act_kind {
    ACT_INT8,
    ACT_INT16,
    ACT_WORDS8,  /* integers of 8 bits, as words: for many tokens, at levels that multiply words */
    ACT_WORDS16, /* the same of 16 bits */
    ACT_TILED,   /* unrounded, in tiles of tokens */
    ACT_PLAIN,   /* unrounded, row after row */
    ACT_KIND_COUNT
};

/* What a packed activation looks like. It serves every matrix with the same cols, isa and kind. */
struct act_shape {
    enum act_kind kind;
    enum isa isa;
    int cols, tokens;
};

struct act_shape matrix_act_shape(const struct matrix *m, int tokens);
/* What a matrix of this format wants of so many tokens. */
enum act_kind matrix_act_kind(enum format_id format, struct matrix_how how, int tokens);
/* Grows with tokens, in proportion. */
size_t act_bytes(const struct act_shape *s);
/* Tokens [t0, t1), values [k0, k1) of each: k0 a multiple of 32, k1 too or equal to cols. */
struct act_range {
    int t0, t1, k0, k1;
};
/* Rounds and arranges the range's values, x[t * stride + k - k0], into dst (aligned to MEM_LINE).
 * Ranges may be packed by several threads at once. A token with a number that is not finite gives
 * results that are not numbers. */
void act_pack_range(const struct act_shape *s, void *dst, const float *x, size_t stride,
                    const struct act_range *range);
/* All values of tokens [t0, t1). */
void act_pack(const struct act_shape *s, void *dst, const float *x, size_t stride, int t0, int t1);

/* ---- the product ---- */

struct matrix_job {
    const void *act;    /* packed with matrix_act_shape(m, tokens) */
    int tokens, t0, t1; /* [t0, t1) of them: multiples of matrix_tile, or t1 all */
    float *out;         /* out[t * out_stride + r - out_row] */
    size_t out_stride;
    int out_row;
    void *scratch; /* matrix_scratch_bytes, aligned to MEM_LINE, one per worker */
};

/* Rows that one call should do at a time, for the pool: a multiple of MATRIX_GROUP. */
int matrix_chunk(const struct matrix *m, int tokens, int threads);
/* Most results of a chunk, of all tokens, with 1 to `tokens` of them. */
size_t matrix_chunk_values(const struct matrix *m, int tokens, int threads);
/* Tokens that the kernels take at a time, of so many. */
int matrix_tile(const struct matrix *m, int tokens);
/* Enough for any number of tokens and rows. */
size_t matrix_scratch_bytes(enum format_id format, int cols, struct matrix_how how);
/* Writes rows [row0, row1) of the job's tokens; same rule for row0 and row1 as in matrix_pack_rows.
 * Any thread. */
void matrix_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1);

#endif
