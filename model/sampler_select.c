#include "sampler.h"

#include <math.h>
#include <string.h>

uint32_t order_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* ---- the best few without sorting: a radix search for the key at which the amount is reached ----
 */

enum { RADIX_BITS = 11, RADIX = 1 << RADIX_BITS };

struct histogram {
    double sums[RADIX];
    int counts[RADIX];
};

/* The bits of a key that one step looks at; those above are settled. */
struct radix_step {
    int above, shift;
};
static const struct radix_step radix_steps[] = {{32, 21}, {21, 10}, {10, 0}};

/* Adds up the candidates whose key begins like `prefix`, by the next bits. */
static void histogram_fill(struct histogram *h, const float *values, int n, uint32_t prefix,
                           struct radix_step step, bool by_count, cut_key *key, const void *arg)
{
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++) {
        uint32_t k = key(values[i], arg);
        if (k == 0 || (uint64_t)k >> step.above != prefix)
            continue;
        uint32_t bucket = k >> step.shift & ((1u << (step.above - step.shift)) - 1);
        h->counts[bucket]++;
        h->sums[bucket] += by_count ? 1 : values[i];
    }
}

/* From the top: the bucket in which `*amount` is reached, less what lies above it. When rounding
 * leaves it unreached, the lowest that holds anything. */
static uint32_t histogram_descend(const struct histogram *h, double *amount)
{
    uint32_t last = 0;
    double left = *amount;
    for (uint32_t b = RADIX; b-- > 0;) {
        if (h->counts[b] == 0)
            continue;
        last = b;
        *amount = left;
        if (h->sums[b] >= left)
            return b;
        left -= h->sums[b];
    }
    return last;
}

struct cut cut_find(const float *values, int n, double amount, bool by_count, cut_key *key,
                    const void *arg)
{
    struct histogram h;
    uint32_t prefix = 0, bucket = 0;
    for (int i = 0; i < 3; i++) {
        struct radix_step step = radix_steps[i];
        histogram_fill(&h, values, n, prefix, step, by_count, key, arg);
        bucket = histogram_descend(&h, &amount);
        prefix = prefix << (step.above - step.shift) | bucket;
    }
    int count = h.counts[bucket]; /* all of one key */
    double each = count ? h.sums[bucket] / count : 1;
    double ties = each > 0 ? ceil(amount / each) : 1;
    return (struct cut){prefix, ties < 1 ? 1 : ties < count ? (int)ties : count};
}

static void cut_apply(struct candidates *c, struct cut cut, float dropped, cut_key *key,
                      const void *arg)
{
    int ties = cut.ties;
    for (int i = 0; i < c->n; i++) {
        uint32_t k = key(c->w[i], arg);
        if (k < cut.key || (k == cut.key && ties-- <= 0))
            c->w[i] = dropped;
    }
}

/* ---- the rules ---- */

static uint32_t logit_key(float value, const void *arg)
{
    (void)arg;
    return value > -INFINITY ? order_of_float(value) : 0;
}

static uint32_t weight_key(float value, const void *arg)
{
    (void)arg;
    return value > 0 ? order_of_float(value) : 0;
}

void keep_top_k(struct candidates *c, int k)
{
    if (k <= 0 || k >= c->n)
        return;
    cut_apply(c, cut_find(c->w, c->n, k, true, logit_key, NULL), -INFINITY, logit_key, NULL);
}

void keep_sigma(struct candidates *c, double s)
{
    double sum = 0, squares = 0, most = -INFINITY;
    int n = 0;
    for (int i = 0; i < c->n; i++)
        if (isfinite(c->w[i])) {
            sum += c->w[i];
            most = c->w[i] > most ? c->w[i] : most;
            n++;
        }
    if (n == 0)
        return;
    double mean = sum / n;
    for (int i = 0; i < c->n; i++)
        if (isfinite(c->w[i]))
            squares += (c->w[i] - mean) * (c->w[i] - mean);
    double least = most - s * sqrt(squares / n);
    for (int i = 0; i < c->n; i++)
        if (c->w[i] < least)
            c->w[i] = -INFINITY;
}

void keep_top_p(struct candidates *c, double p)
{
    double amount = p * weights_sum(c->w, c->n);
    cut_apply(c, cut_find(c->w, c->n, amount, false, weight_key, NULL), 0, weight_key, NULL);
}

/* Locally typical: the surprise of a token close to the expected one. */
struct typical {
    double log_total, entropy;
};

static uint32_t typical_key(float value, const void *arg)
{
    const struct typical *t = arg;
    if (!(value > 0))
        return 0;
    double surprise = t->log_total - math_log(value);
    return ~order_of_float((float)fabs(surprise - t->entropy));
}

void keep_typical(struct candidates *c, double p)
{
    double total = weights_sum(c->w, c->n);
    struct typical t = {math_log(total), 0};
    for (int i = 0; i < c->n; i++)
        if (c->w[i] > 0)
            t.entropy += c->w[i] / total * (t.log_total - math_log(c->w[i]));
    cut_apply(c, cut_find(c->w, c->n, p * total, false, typical_key, &t), 0, typical_key, &t);
}

static float weights_most(const struct candidates *c)
{
    float most = 0;
    for (int i = 0; i < c->n; i++)
        most = c->w[i] > most ? c->w[i] : most;
    return most;
}

void keep_min_p(struct candidates *c, double p)
{
    double least = p * weights_most(c);
    for (int i = 0; i < c->n; i++)
        if (c->w[i] < least)
            c->w[i] = 0;
}

void drop_top_choices(struct candidates *c, double threshold)
{
    double least = threshold * weights_sum(c->w, c->n);
    int stays = -1, n = 0;
    for (int i = 0; i < c->n; i++)
        if (c->w[i] > 0 && c->w[i] >= least) {
            n++;
            stays = stays < 0 || c->w[i] <= c->w[stays] ? i : stays;
        }
    for (int i = 0; n > 1 && i < c->n; i++)
        if (c->w[i] >= least && i != stays)
            c->w[i] = 0;
}
