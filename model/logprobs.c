#include "sampler.h"

#include <math.h>
#include <stdlib.h>

/* `most` is the largest of them. */
static double log_sum_exp(const float *logits, int vocab, float most)
{
    if (!isfinite(most))
        return most > 0 ? most : 0;
    return most + math_log(logits_exp_sum(logits, vocab, &(struct weighing){most, 1}));
}

double logits_log_sum(const float *logits, int vocab)
{
    float most = -INFINITY;
    pick_ops()->most(logits, vocab, vocab > 0 ? vocab : 1, &most);
    return log_sum_exp(logits, vocab, most);
}

static int logprob_compare(const void *a, const void *b)
{
    const struct token_logprob *left = a, *right = b;
    if (left->logprob != right->logprob)
        return left->logprob > right->logprob ? -1 : 1;
    return (left->id > right->id) - (left->id < right->id);
}

float logits_logprob(double logit, double log_sum)
{
    if (isinf(log_sum))
        return logit < log_sum ? -INFINITY : 0;
    return (float)(logit - log_sum);
}

int logprobs_top(const float *logits, int vocab, int k, struct token_logprob *out, double *log_sum)
{
    struct blocks blocks;
    double sum = log_sum_exp(logits, vocab, blocks_fill(&blocks, logits, vocab));
    int n = k < 0 || k > vocab ? vocab : k;
    *log_sum = sum;
    if (n == vocab)
        for (int i = 0; i < n; i++)
            out[i] = (struct token_logprob){i, logits[i]};
    else if (n > 0)
        floats_top(&blocks, logits, vocab, n, out);
    for (int i = 0; i < n; i++)
        out[i].logprob = isnan(out[i].logprob) ? -INFINITY : out[i].logprob;
    /* Ranked by logit: log-probabilities may round two different ones together. */
    qsort(out, (size_t)n, sizeof *out, logprob_compare);
    for (int i = 0; i < n; i++)
        out[i].logprob = logits_logprob(out[i].logprob, sum);
    return n;
}
