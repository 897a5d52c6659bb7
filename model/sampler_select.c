#include "sampler.h"

#include <math.h>
#include <string.h>

/* Which candidates are left, without sorting them. Usually few matter: the best of each block tell
 * where to look, and the rest is never touched again. Where many matter, a radix search finds the
 * border among them all. */

/* ---- the radix search ---- */

/* Maps a float so that the order of unsigned numbers is that of the floats. */
static inline uint32_t order_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float float_of_order(uint32_t order)
{
    uint32_t bits = order >> 31 ? order & 0x7FFFFFFFu : ~order;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* How good a value is: a number, 0 for what is never taken. */
enum cut_kind { CUT_FLOAT, CUT_TYPICAL };
struct cut_rule {
    enum cut_kind kind;
    float middle; /* CUT_TYPICAL: the best is the logarithm closest to it */
};

static inline uint32_t cut_key(const struct cut_rule *rule, float value)
{
    if (rule->kind == CUT_FLOAT)
        return isnan(value) ? order_of_float(-INFINITY) : order_of_float(value);
    return value > 0 ? ~order_of_float(fabsf(math_log_fast(value) - rule->middle)) : 0;
}

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

/* What is cut: values, how good each is, and whether each counts 1 or itself. */
struct cut_row {
    const float *w;
    int n;
    bool by_count;
    const struct cut_rule *rule;
};

/* Adds up the candidates whose key begins like `prefix`, by the next bits. */
static void histogram_fill(struct histogram *h, const struct cut_row *row, uint32_t prefix,
                           struct radix_step step)
{
    uint32_t mask = (1u << (step.above - step.shift)) - 1;
    memset(h, 0, sizeof *h);
    for (int i = 0; i < row->n; i++) {
        uint32_t key = cut_key(row->rule, row->w[i]);
        if ((uint64_t)key >> step.above != prefix)
            continue;
        uint32_t bucket = key >> step.shift & mask;
        h->counts[bucket]++;
        h->sums[bucket] += row->by_count ? 1 : (double)row->w[i];
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

/* What remains after the best have been taken until `amount` is reached. */
struct cut {
    uint32_t key; /* of the worst one taken */
    int ties;     /* how many with this key are taken, lowest index first */
};

static struct cut cut_find(const float *w, int n, double amount, bool by_count,
                           const struct cut_rule *rule)
{
    const struct cut_row row = {w, n, by_count, rule};
    struct histogram h;
    uint32_t prefix = 0, bucket = 0;
    for (int i = 0; i < 3; i++) {
        struct radix_step step = radix_steps[i];
        histogram_fill(&h, &row, prefix, step);
        bucket = histogram_descend(&h, &amount);
        prefix = prefix << (step.above - step.shift) | bucket;
    }
    int count = h.counts[bucket]; /* all of one key */
    double each = count ? h.sums[bucket] / count : 1;
    double ties = each > 0 ? ceil(amount / each) : 1;
    return (struct cut){prefix, ties < 1 ? 1 : ties < count ? (int)ties : count};
}

static void cut_apply(struct candidates *c, struct cut cut, float dropped,
                      const struct cut_rule *rule)
{
    for (int i = 0; i < c->n; i++) {
        uint32_t key = cut_key(rule, c->w[i]);
        if (key < cut.key || (key == cut.key && cut.ties-- <= 0))
            c->w[i] = dropped;
    }
}

static const struct cut_rule by_value = {CUT_FLOAT, 0};

/* ---- looking only where it matters ---- */

enum { BLOCK_LEAST = 32, BLOCK_UNIT = 16 };

float blocks_fill(struct blocks *b, const float *w, int n)
{
    float best = -INFINITY;
    int size = (n + BLOCKS_MOST - 1) / BLOCKS_MOST;
    b->size = size < BLOCK_LEAST ? BLOCK_LEAST : (size + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
    b->n = (n + b->size - 1) / b->size;
    pick_ops()->most(w, n, b->size, b->most);
    pick_ops()->most(b->most, b->n, BLOCKS_MOST, &best);
    return best;
}

float candidates_most(struct candidates *c)
{
    return blocks_fill(&c->blocks, c->w, c->n);
}

int candidates_first(const struct candidates *c, float most)
{
    const struct blocks *b = &c->blocks;
    for (int block = 0; block < b->n; block++) {
        int i = block * b->size, end = c->n - i < b->size ? c->n : i + b->size;
        for (; b->most[block] >= most && i < end; i++)
            if (c->w[i] >= most)
                return i;
    }
    return 0;
}

/* What to look for: values of at least `border`; where they are logits, of those the ones that
 * weigh at least `least`. */
struct search {
    float border, least;
    const struct weighing *how; /* NULL: every value counts as it is */
};

static bool search_hit(const struct search *s, float value)
{
    if (!(value >= s->border))
        return false;
    if (!s->how)
        return true;
    pick_ops()->exp(&value, &value, 1, s->how->most, s->how->scale);
    return value >= s->least;
}

/* Indices of the hits, ascending; how many, or CANDIDATES_FEW + 1 for too many. */
static int blocks_gather(const struct blocks *b, const float *w, int n, const struct search *s,
                         int32_t out[CANDIDATES_FEW])
{
    int found = 0;
    for (int block = 0; block < b->n; block++) {
        if (!(b->most[block] >= s->border))
            continue;
        int i = block * b->size, end = n - i < b->size ? n : i + b->size;
        for (; i < end; i++)
            if (search_hit(s, w[i])) {
                if (found == CANDIDATES_FEW)
                    return found + 1;
                out[found++] = i;
            }
    }
    return found;
}

/* A border that at least k of the row reach: k blocks have one each. */
static float blocks_border(struct blocks *b, int k)
{
    return float_of_order(cut_find(b->most, b->n, k, true, &by_value).key);
}

void floats_top(struct blocks *b, const float *w, int n, int k, struct token_logprob *out)
{
    float values[CANDIDATES_FEW] = {0};
    int32_t ids[CANDIDATES_FEW];
    const int32_t *index = NULL;
    int few = 0;
    if (k <= b->n)
        few = blocks_gather(b, w, n, &(struct search){.border = blocks_border(b, k)}, ids);
    if (few >= k && few <= CANDIDATES_FEW) {
        for (int i = 0; i < few; i++)
            values[i] = w[ids[i]];
        w = values;
        n = few;
        index = ids;
    }
    struct cut cut = cut_find(w, n, k, true, &by_value);
    for (int i = 0, found = 0; i < n && found < k; i++) {
        uint32_t key = cut_key(&by_value, w[i]);
        if (key > cut.key || (key == cut.key && cut.ties-- > 0))
            out[found++] = (struct token_logprob){index ? index[i] : i, w[i]};
    }
}

/* ---- fewer candidates ---- */

/* Few already, or narrowed down. */
static bool is_narrow(const struct candidates *c)
{
    return c->n <= CANDIDATES_FEW || c->ids == c->few;
}

/* Those whose n indices are in `few` remain. */
static void take_few(struct candidates *c, int n)
{
    for (int i = 0; i < n; i++) { /* indices ascend, so that nothing is lost */
        c->w[i] = c->w[c->few[i]];
        c->few[i] = c->ids ? c->ids[c->few[i]] : c->few[i];
    }
    c->ids = c->few;
    c->n = n;
}

/* Where they are few, the hits remain, in their order, as weights if the search is for them. False,
 * and nothing done, where there are many. */
static bool narrow(struct candidates *c, const struct search *s)
{
    int n = blocks_gather(&c->blocks, c->w, c->n, s, c->few);
    if (n == 0 || n > CANDIDATES_FEW)
        return false;
    take_few(c, n);
    if (s->how)
        weights_exp(c->w, n, s->how);
    return true;
}

/* Weights fall with their logits: those of at least `least` are found by these. The border is lower
 * by a little, so that rounding hides none. */
static struct search search_weights(const struct weighing *how, float least)
{
    double border = how->most + (math_log(least) - 0.01) / how->scale;
    return (struct search){nextafterf((float)border, -INFINITY), least, how};
}

/* The best weigh most of all: looks at ever smaller ones until they make up the amount. */
static bool narrow_to_amount(struct candidates *c, const struct weighing *how, double amount)
{
    float weights[CANDIDATES_FEW];
    for (float least = 0x1p-6f; least > 0x1p-60f; least *= 0x1p-3f) {
        struct search s = search_weights(how, least);
        int n = blocks_gather(&c->blocks, c->w, c->n, &s, c->few);
        double sum = 0;
        if (n > CANDIDATES_FEW)
            return false;
        for (int i = 0; i < n; i++)
            weights[i] = c->w[c->few[i]];
        weights_exp(weights, n, how);
        for (int i = 0; i < n; i++)
            sum += (double)weights[i];
        /* A little more, so that rounding cannot hide one that belongs. */
        if (sum > amount * (1 + 1e-9)) {
            take_few(c, n);
            memcpy(c->w, weights, (size_t)n * sizeof *weights);
            return true;
        }
    }
    return false;
}

double candidates_weigh(struct candidates *c, const struct weighing *how, double top_p,
                        double min_p)
{
    double total = 0;
    if (!is_narrow(c) && top_p < 1) {
        total = logits_exp_sum(c->w, c->n, how);
        if (narrow_to_amount(c, how, top_p * total))
            return total;
    } else if (!is_narrow(c) && (float)min_p >= 0x1p-60f) {
        struct search s = search_weights(how, (float)min_p);
        if (narrow(c, &s))
            return total;
    }
    return weights_exp(c->w, c->n, how);
}

/* ---- the rules ---- */

void keep_top_k(struct candidates *c, int k)
{
    if (k >= c->n)
        return;
    if (!is_narrow(c) && k <= c->blocks.n)
        narrow(c, &(struct search){.border = blocks_border(&c->blocks, k)});
    if (k >= c->n)
        return;
    cut_apply(c, cut_find(c->w, c->n, k, true, &by_value), -INFINITY, &by_value);
    if (!is_narrow(c))
        candidates_most(c);
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
    candidates_most(c);
}

void keep_top_p(struct candidates *c, double amount)
{
    cut_apply(c, cut_find(c->w, c->n, amount, false, &by_value), 0, &by_value);
}

/* Locally typical: those whose surprise, -log p, is closest to the expected one. With w = p * total
 * that is |log w - sum of p log w|. */
void keep_typical(struct candidates *c, double p)
{
    double total = weights_sum(c->w, c->n), middle = 0;
    for (int i = 0; i < c->n; i++)
        if (c->w[i] > 0)
            middle += (double)c->w[i] * math_log_fast(c->w[i]);
    struct cut_rule rule = {CUT_TYPICAL, (float)(middle / total)};
    cut_apply(c, cut_find(c->w, c->n, p * total, false, &rule), 0, &rule);
}

void keep_min_p(struct candidates *c, double p)
{
    float least = (float)(p * (double)candidates_most(c));
    if (!is_narrow(c) && narrow(c, &(struct search){.border = least}))
        return;
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
