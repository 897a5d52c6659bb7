#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "model.h"

/* The inside of the sampler, shared by its files.
 *
 * Results are the same on every machine: element-wise arithmetic is IEEE float without contraction,
 * sums run in a fixed order, and nothing comes from libm, whose last bits depend on the CPU. */

/* ---- sampler_math.c ---- */

/* Weights relative to the best: w[i] = exp((w[i] - most) * scale), in place; 0 below exp(-87). */
void weights_exp(float *w, int n, float most, float scale);
/* The same, but only summed. */
double logits_exp_sum(const float *logits, int n, float most);
double weights_sum(const float *w, int n);
/* Where the running sum of w passes `target`; the last nonzero one if it never does. */
int weights_find(const float *w, int n, double target);
float floats_most(const float *w, int n); /* -INFINITY: none is above it; NaN is skipped */
double math_log(double x);                /* x > 0 */
float math_log_fast(float x);             /* x > 0 and not subnormal */

/* ---- sampler_select.c: which candidates are left ---- */

/* Candidates in order of id. ids NULL: candidate i is token i. Dropped ones weigh 0. */
struct candidates {
    float *w;
    int n;
    const int32_t *ids;
};

/* So few that looking at them costs nothing. */
enum { CANDIDATES_FEW = 2048 };

/* Where they are few, moves those of at least `least` to the front, in their order. `ids` becomes
 * part of c. False, and nothing done, where they are many. */
bool candidates_narrow(struct candidates *c, float least, int32_t ids[CANDIDATES_FEW]);

/* The k best floats of w and their indices, ascending by index; ties: the lowest. NaN counts as
 * -INFINITY. */
void floats_top(const float *w, int n, int k, struct token_logprob *out);

/* Of logits: others become -INFINITY or are gone. */
void keep_top_k(struct candidates *c, int k, int32_t ids[CANDIDATES_FEW]);
void keep_sigma(struct candidates *c, double s);
/* Of weights: others become 0 or are gone. */
void keep_typical(struct candidates *c, double p);
void keep_top_p(struct candidates *c, double p, int32_t ids[CANDIDATES_FEW]);
void keep_min_p(struct candidates *c, double p, int32_t ids[CANDIDATES_FEW]);
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
