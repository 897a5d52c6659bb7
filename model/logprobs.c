#include "sampler.h"

#include <math.h>
#include <stdlib.h>

static double log_sum_exp(const float *logits, int vocab)
{
    float most = logits_most(logits, vocab);
    if (vocab <= 0 || most == -INFINITY)
        return 0;
    return most + math_log(logits_exp_sum(logits, vocab, most));
}

double logits_log_sum(const float *logits, int vocab)
{
    return log_sum_exp(logits, vocab);
}

/* NaN cannot be ranked: it counts as impossible. */
static uint32_t rank_key(float value, const void *arg)
{
    (void)arg;
    return isnan(value) ? order_of_float(-INFINITY) : order_of_float(value);
}

static int logprob_compare(const void *a, const void *b)
{
    const struct token_logprob *left = a, *right = b;
    if (left->logprob != right->logprob)
        return left->logprob > right->logprob ? -1 : 1;
    return (left->id > right->id) - (left->id < right->id);
}

int logprobs_top(const float *logits, int vocab, int k, struct token_logprob *out, double *log_sum)
{
    double sum = log_sum_exp(logits, vocab);
    *log_sum = sum;
    int count = k < 0 || k > vocab ? vocab : k, n = 0;
    struct cut cut = {0, 0};
    if (count > 0 && count < vocab)
        cut = cut_find(logits, vocab, count, true, rank_key, NULL);
    for (int i = 0; i < vocab && n < count; i++) {
        uint32_t key = rank_key(logits[i], NULL);
        if (key < cut.key || (key == cut.key && cut.ties-- <= 0))
            continue;
        out[n++] = (struct token_logprob){i, isnan(logits[i]) ? -INFINITY : logits[i]};
    }
    /* Ranked by logit: log-probabilities may round two different ones together. */
    qsort(out, (size_t)n, sizeof *out, logprob_compare);
    for (int i = 0; i < n; i++)
        out[i].logprob = (float)(out[i].logprob - sum);
    return n;
}
