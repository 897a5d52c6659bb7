#ifndef MODEL_KERNELS_OPS_H
#define MODEL_KERNELS_OPS_H

#include "kernels/matrix_layout.h"

#include <stdbool.h>

/* The table of matrix kernels of one SIMD level. */

/* PANEL_BLOCKS: most blocks of k in a panel. Where a row takes several panels the sums are written
 * and read again for each; so a panel is as large as the second level of cache allows (Zen 3: 16
 * blocks cost a tenth of the speed, 64 are level with 128 up to 2,048 k).
 * FETCH_AHEAD: bytes, measured on Zen 4 (4096 about the same, 2048 and 16384 worse); see fetch.h.
 * BLOCKWISE_TILES: most tiles of a `blockwise` kernel, whose sums should stay in the first level of
 * cache. */
enum { TILE_MAX = 12, PANEL_BLOCKS = 128, FETCH_AHEAD = 8192, BLOCKWISE_TILES = 16 };

/* One call: two groups of rows times one tile of tokens, over `blocks` blocks (float weights:
 * values) of k. */
struct core {
    const uint8_t *values[2], *scales[2]; /* of each group; the same twice when there is one */
    const float *factors[2];              /* for cores that want them: the scales of each group as
                                             those of a panel */
    int blocks;
    const uint8_t *act; /* the tile, at the first block */
    int tiles;          /* for `blockwise`: so many whole tiles, one behind the other */
    float *out;         /* row 0 of token 0 of the tile */
    size_t out_stride;
    int rows;     /* rows of the two groups that exist: 1 to 32 */
    bool more;    /* go on from what out holds, else from 0 */
    size_t ahead; /* fetch weights so many bytes further on; 0: do not */
};
typedef void core_fn(const struct core *c);

/* x[32 * blocks] to records that lie `step` bytes apart. */
typedef void act_row_fn(const float *x, int blocks, uint8_t *records, size_t step);

/* Takes blocks [first, first + count) of one group apart; first is a multiple of 8. */
typedef void expand_fn(const uint8_t *group, int blocks, int first, int count, uint8_t *values,
                       float *scales);

/* All blocks' scales of one group as those of a panel. */
typedef void factors_fn(const uint8_t *group, int blocks, float *factors);

enum { ROUNDED_KINDS = ACT_WORDS16 + 1 };

struct matrix_ops {
    int tile[ACT_KIND_COUNT];           /* most tokens of a tile; none of ACT_PLAIN */
    int direct_tiles[VALUES_TABLE + 1]; /* up to so many tiles `direct` is faster than `panel` */
    /* MATRIX_INT8, MATRIX_INT16: from so many tokens on activations are words; 0: never. */
    int words_from[2][VALUES_TABLE + 1];
    int factored_tiles; /* from so many on `factored` is faster than `direct` */
    int fetch_ahead;    /* bytes, where weights are read once */
    /* By kind of activations, of those that are rounded. */
    act_row_fn *act_row[ROUNDED_KINDS];
    expand_fn *expand[ROUNDED_KINDS][FORMAT_COUNT];
    core_fn *const *panel[ROUNDED_KINDS][FORMAT_COUNT]; /* [tokens] */
    core_fn *const *direct[FORMAT_COUNT]; /* ACT_INT8, from the packed groups: [tokens] */
    /* Faster than `direct` on a whole tile, when many tiles share the factors; NULL: none. */
    factors_fn *factors[FORMAT_COUNT];
    core_fn *factored[FORMAT_COUNT];
    /* Faster than `direct` one tile after the other: 2 to BLOCKWISE_TILES whole tiles, all blocks;
     * NULL: none. */
    core_fn *blockwise[FORMAT_COUNT];
    core_fn *const *wide[FORMAT_COUNT];   /* ACT_INT16, the same; for one tile only */
    core_fn *const *floats[FORMAT_COUNT]; /* ACT_TILED: [tokens] */
    /* Multiplies as the integer cores do, on registers alone, `rounds` times; how many
     * multiplications and additions a round is. NULL: cannot say. */
    double (*peak)(int rounds);
};

#define ISA(id, name, needs) extern const struct matrix_ops matrix_ops_##name;
#include "isa.def"
#undef ISA

/* The ops of a level. */
const struct matrix_ops *matrix_ops(enum isa isa);

/* Tiles are of one width, but for the last: 9 tokens are 5 and 4 rather than 8 and 1. */
static inline int tile_width(const struct act_shape *s, const struct matrix_ops *ops)
{
    int most = ops->tile[s->kind], tiles = (s->tokens + most - 1) / most;
    return (s->tokens + tiles - 1) / tiles;
}

/* Plain C, the definition of right: one row at a time, from the file's own bytes. */
void ref_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1);
size_t ref_scratch_bytes(int cols);

/* Packs the group of rows that begins at row0 from the source. */
void pack_group(struct matrix *m, int row0);

#endif
