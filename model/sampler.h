#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "kernels/pick.h"
#include "model.h"

/* The inside of the sampler, shared by its files.
 *
 * Results are the same on every machine: element-wise arithmetic is IEEE float without contraction,
 * sums run in a fixed order, and nothing comes from libm, whose last bits depend on the CPU. */

/* ---- sampler_math.c ---- */

/* Weights relative to the best: exp((w - most) * scale); 0 below exp(-87). */
struct weighing {
    float most, scale;
};
/* In place. Returns their sum. */
double weights_exp(float *w, int n, const struct weighing *how);
/* The same, but only summed. */
double logits_exp_sum(const float *logits, int n, const struct weighing *how);
double weights_sum(const float *w, int n);
/* Where the running sum of w passes `target`; the last nonzero one if it never does. */
int weights_find(const float *w, int n, double target);
double math_log(double x);    /* x > 0 */
float math_log_fast(float x); /* x > 0 and not subnormal */

/* ---- sampler_select.c: which candidates are left ---- */

/* So few that looking at them costs nothing. */
enum { CANDIDATES_FEW = 2048, BLOCKS_MOST = 2048 };

/* A row in blocks: their best tell where to look, and the rest is not touched again. */
struct blocks {
    int n, size;
    float most[BLOCKS_MOST];
};
/* Returns the best of all; -INFINITY: none is above it. NaN is passed over. */
float blocks_fill(struct blocks *b, const float *w, int n);

/* Candidates in order of id. ids NULL: candidate i is token i. Dropped ones weigh 0. */
struct candidates {
    float *w;
    int n;
    const int32_t *ids;
    /* Scratch: `blocks` are those of w as candidates_most saw it, `few` the ids of w's candidates
     * once they have been narrowed down. */
    struct blocks blocks;
    int32_t few[CANDIDATES_FEW];
};

float candidates_most(struct candidates *c);
/* The first of at least `most`, which candidates_most returned. */
int candidates_first(const struct candidates *c, float most);

/* The k best floats of w and their indices, ascending by index; ties: the lowest. NaN counts as
 * -INFINITY. `b` is filled with w. */
void floats_top(struct blocks *b, const float *w, int n, int k, struct token_logprob *out);

/* Of logits whose blocks are known: others become -INFINITY or are gone. */
void keep_top_k(struct candidates *c, int k);
void keep_sigma(struct candidates *c, double s);
/* Makes weights of logits: of all, or, where few can be among the best that make up top_p of the
 * sum or are at least min_p, of those alone. (1 and 0: all are wanted.) Returns the sum of all;
 * with top_p 1 and min_p above 0 it may be 0 instead. */
double candidates_weigh(struct candidates *c, const struct weighing *how, double top_p,
                        double min_p);
/* Of weights: others become 0 or are gone. */
void keep_typical(struct candidates *c, double p);
void keep_top_p(struct candidates *c, double amount); /* the best that make up so much */
void keep_min_p(struct candidates *c, double p);
void drop_top_choices(struct candidates *c, double threshold); /* XTC */

/* ---- sampler_history.c: what has been said ---- */

/* A number for each token that has one. Open addressing; token -1: empty. */
struct token_map {
    struct token_value {
        int32_t token, value;
    } * slots;
    uint32_t mask;
    int n;
};
/* The token's number, at first 0; NULL: out of memory. Valid until the next call. */
int32_t *token_map_at(struct token_map *m, int32_t token);
void token_map_clear(struct token_map *m);

/* Repetition, frequency and presence penalties; counts: how often each token occurred in the
 * answer, 0 for those of the prompt alone. */
void counts_penalize(const struct token_map *counts, const struct sampler_params *p, float *logits,
                     int vocab);

/* "Don't repeat yourself": penalises tokens that would continue a repetition. */
struct dry {
    const struct tokenizer *t;
    char **breakers;
    int n_breakers;
    size_t longest;     /* bytes of the longest breaker */
    struct strbuf tail; /* the end of the text, as far as a breaker could still begin in it */
    int32_t *tokens;
    int32_t *lengths;         /* scratch of the same capacity */
    struct token_map repeats; /* scratch: the longest repetition that each token would continue */
    int n, cap;
    int last_break; /* index of the last token in which a breaker ended, -1 */
};
int dry_init(struct dry *d, const struct sampler_params *p, const struct tokenizer *t);
void dry_finish(struct dry *d);
int dry_accept(struct dry *d, int32_t token);
int dry_penalize(struct dry *d, const struct sampler_params *p, float *logits, int vocab);

#endif
