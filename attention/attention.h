#ifndef ATTENTION_ATTENTION_H
#define ATTENTION_ATTENTION_H

#include "cpu.h"
#include "err.h"
#include "pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Attention: given queries and a view of the cache, what is the mix? Positions, masks, windows,
 * sinks, tiled softmax over paged blocks of 32 positions.
 *
 * Bit-exact rules (same bits for a query whatever its company, chunking, thread count or CPU):
 * scores and output are single chains of fma in ascending order; blocks of 32 in position order
 * with one running maximum and sum (online softmax: Milakov and Gimelshein 2018); contexts are cut
 * at every 512 positions from position 0, each part has its own maximum, sum and mix, and these
 * are merged in order, also when one worker computes them all. What a query does not see is never
 * read into its result: slots that are not written yet may hold anything. */

/* ---- element types of the cache ---- */

enum kv_type { KV_F16, KV_BF16, KV_F32, KV_Q8_0, KV_TYPE_COUNT };
const char *kv_type_name(enum kv_type t);
int kv_type_from_name(const char *name); /* -1: no such type */

/* ---- one attention layer ---- */

struct attn_shape {
    int heads;         /* query heads */
    int kv_heads;      /* heads % kv_heads == 0; heads / kv_heads query heads share one */
    int key_size;      /* of a head's query and key: 1 to 4096 */
    int value_size;    /* of a head's value and output: 1 to 4096 */
    enum kv_type type; /* of the cache */
    float scale;       /* scores = scale * q.k */
    float softcap;     /* > 0: scores = cap * tanh(scores / cap) */
    int window;        /* > 0: a position sees itself and the window - 1 before it */
    const float
        *slopes; /* [heads] or NULL: ALiBi, score += slope * (key position - query position) */
    const float *
        sinks; /* [heads] or NULL: a logit per head that takes part in the softmax, with no value */
};

/* ERR_UNSUPPORTED with a sentence when no kernel can do this shape. */
int attn_check(const struct attn_shape *s, struct err *err);

/* Bytes of one layer's keys and values of 32 positions; a multiple of 64. 0 when it overflows. */
size_t attn_block_bytes(const struct attn_shape *s);

/* Stores the key and value of one position. block: this layer's part of a cache block (64-aligned);
 * slot = position % 32; k [kv_heads][key_size], v [kv_heads][value_size]. Rounds once, to nearest;
 * what is stored depends on k and v only (q8_0: 32 dimensions of a head share a scale). Different
 * slots may be stored by different threads at once. */
void attn_store(const struct attn_shape *s, void *block, int slot, const float *k, const float *v);

/* kv heads [first, last) */
struct attn_heads {
    int first, last;
};
/* The same for some heads only; different ones may be stored by different threads at once, too. */
void attn_store_heads(const struct attn_shape *s, void *block, int slot, const float *k,
                      const float *v, struct attn_heads heads);

/* n queries of one sequence at consecutive positions. */
struct attn_span {
    const float *q; /* [n][heads * key_size], rows q_stride floats apart */
    float *out;     /* [n][heads * value_size], rows out_stride floats apart */
    size_t q_stride, out_stride;
    int n;
    int position;        /* of the first query; keys of positions <= position + n - 1 are stored */
    void *const *blocks; /* the group's blocks of the sequence: entry p / 32 */
    size_t offset;       /* of this layer within a block, bytes */
};

/* Scratch that attn_run needs for at most `tokens` queries in a step, contexts up to `context`, on
 * a pool of `threads`. 0 when it overflows, or for a shape that attn_check refuses. */
size_t attn_scratch_bytes(const struct attn_shape *s, int tokens, int context, int threads);

/* The mix of every query of every span, in one phase of the pool. `scratch` as sized above,
 * 64-aligned, with any content. Entries of a span's blocks that lie wholly before its first query's
 * window are not touched. Engine thread. */
void attn_run(struct pool *pool, const struct attn_shape *s, const struct attn_span *spans,
              int n_spans, void *scratch);

/* The same for callers that have a phase of their own: attn_items(plan) items, to be run once each
 * by any workers of a pool of `threads`, with queries, keys and values of the item's heads in
 * place. The plan lies in the scratch; spans must stay, their keys and queries may still be
 * missing. */
struct attn_plan;
struct attn_plan *attn_plan_make(const struct attn_shape *s, const struct attn_span *spans,
                                 int n_spans, int threads, void *scratch);
int attn_items(const struct attn_plan *p);
struct attn_heads attn_item_heads(const struct attn_plan *p, int item);
/* Outputs of n queries, from `out` on, that this item made complete; n = 0: of none yet. Whoever
 * is told sees them. */
struct attn_outputs {
    float *out;
    int n;
};
struct attn_outputs attn_run_item(struct attn_plan *p, int item, int worker);

/* e^x, as the softmax computes it: the same bits on every machine and at every level, less than 1.1
 * ulp from the true value; below e^-87.3365 it is 0. The second form works in place, any alignment.
 * For activations and softmaxes elsewhere that must not depend on the machine either. */
float attn_exp(float x);
void attn_exp_n(float *x, size_t n);

/* Kernels of at most this level from now on (default: cpu_isa()). For tests and --kernels. Not
 * thread-safe against running work. */
void attn_set_isa(enum isa most);

/* ---- position encodings ---- */

/* Rotary positions (Su et al. 2021): pair i turns by position * base^(-2 i / dims). Scalings change
 * the frequencies, and some the magnitude:
 *   linear    position interpolation, Chen et al. 2023: frequency / factor
 *   yarn      Peng et al. 2023: fast pairs keep theirs, slow ones are interpolated, a ramp between;
 *             magnitude 0.1 ln(factor) + 1
 *   llama3    Llama 3.1: the same by wavelength, three bands
 *   longrope  Ding et al. 2024: divisors; magnitude sqrt(1 + ln(factor) / ln(original_context)) */
enum rope_scaling {
    ROPE_NONE,
    ROPE_LINEAR,
    ROPE_YARN,
    ROPE_LLAMA3,
    ROPE_LONGROPE,
    ROPE_SCALING_COUNT
};
const char *rope_scaling_name(enum rope_scaling s);

struct rope_config {
    int dims;        /* leading elements of a head that rotate; even */
    bool neighbours; /* pairs (2i, 2i+1); otherwise (i, i + dims/2) */
    float base;
    enum rope_scaling scaling;
    float factor;                         /* linear, yarn, llama3; longrope: context / original */
    int original_context;                 /* yarn, llama3, longrope */
    float yarn_beta_fast, yarn_beta_slow; /* 32 and 1 by default */
    float yarn_ext_factor;                /* 1; 0 leaves interpolation only */
    float attention_factor; /* multiplies q and k (cos and sin); 0: what the scaling's paper says */
    float low_freq, high_freq; /* llama3: 1 and 4 */
    const float *
        divisors; /* [dims/2] or NULL: divides each frequency (GGUF rope_freqs, longrope factors) */
};

/* Frequencies and magnitude worked out once. */
struct rope {
    int dims;
    bool neighbours;
    float magnitude;
    double *frequency; /* [dims/2], radians per position */
};
int rope_init(struct rope *r, const struct rope_config *config, struct err *err);
void rope_finish(struct rope *r);

/* cos and sin (times magnitude) of one position: table [dims] = cos [dims/2], then sin [dims/2].
 * Depends on the position only, computed in double, so it is the same on every machine. */
void rope_table(const struct rope *r, int64_t position, float *table);
/* Rotates `heads` heads, `stride` floats apart, in place. */
void rope_apply(const struct rope *r, const float *table, float *x, int heads, int stride);

/* ALiBi slopes for any number of heads (Press et al. 2022; not a power of two: the geometric series
 * of the next lower power, then every other one of the next higher). out [heads]. */
void alibi_slopes(int heads, float max_bias, float *out);

/* Sinusoidal positions (Vaswani et al. 2017). interleaved: sin, cos, sin, cos ...; else sines then
 * cosines. out [width]. */
void sinusoid(int64_t position, int width, bool interleaved, float *out);

/* Relative positions of a key j as query i sees it: j - i clipped to [-most, most] (Shaw et al.
 * 2018); and T5's buckets (Raffel et al. 2020), of which there must be at least 4, and more than
 * that max_distance. */
int relative_clipped(int i, int j, int most);
int relative_bucket(int i, int j, bool bidirectional, int buckets, int max_distance);

#endif
