#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "arch.h"
#include "matrix.h"
#include "mem.h"
#include "model.h"
#include "weights.h"

/* The plan: what the decoder does, one plain record per layer with pointers to weights. Made from
 * an architecture's row and the file's settings; tensors that are present decide what can be
 * decided by presence (biases, tied output, q/k norms, norms after). Every refusal happens here,
 * before memory is taken. */

#define MOST_ROPES 4
#define NO_ROPE    (-1)
#define VARIANTS   2 /* of rotations: see model_variant */

struct norm {
    const float *weight; /* [width]; NULL: the norm is absent */
    const float *bias;   /* or NULL */
};

struct linear {
    struct matrix matrix;
    const float *bias; /* [rows] or NULL */
};

struct layer {
    struct norm attn_norm, attn_post; /* before attention; on its output */
    struct norm ffn_norm, ffn_post;
    struct linear q, k, v, o;
    const float *q_norm, *k_norm; /* [key_size], RMS over each head, before the rotation; or NULL */
    struct linear gate, up, down;
    int rope;      /* which of plan.ropes, or NO_ROPE */
    int group;     /* layer group of the cache */
    size_t offset; /* of this layer in a block of its group */
    struct attn_shape attn;
};

struct plan {
    struct model_plan face; /* what the header shows */
    const struct arch *arch;
    struct layer *layers; /* [face.layers] */
    int width, ffn;
    float eps;
    float embed_scale;
    float logit_scale;       /* multiplies logits; 1: none */
    float logit_softcap;     /* 0: none */
    struct matrix embedding; /* source rows only are read */
    struct linear output;
    struct norm output_norm;
    struct rope ropes[VARIANTS][MOST_ROPES]; /* variants differ in frequencies only */
    int n_variants, n_ropes;
    struct mem_arena small; /* vectors that had to be converted to float */
    struct matrix_how how;
};

/* Fills *p, which is zeroed, from an open file. On failure the caller still calls plan_finish. */
int plan_init(struct plan *p, const struct weights *w, const struct model_options *options,
              struct err *err);
void plan_finish(struct plan *p);

#endif
