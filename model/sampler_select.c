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

/* Adds up the candidates whose key begins like `prefix`, by the next bits. */
static void histogram_fill(struct histogram *h, const struct candidates *c, uint32_t prefix,
                           struct radix_step step, bool by_count, const struct cut_rule *rule)
{
    uint32_t mask = (1u << (step.above - step.shift)) - 1;
    memset(h, 0, sizeof *h);
    for (int i = 0; i < c->n; i++) {
        uint32_t key = cut_key(rule, c->w[i]);
        if ((uint64_t)key >> step.above != prefix)
            continue;
        uint32_t bucket = key >> step.shift & mask;
        h->counts[bucket]++;
        h->sums[bucket] += by_count ? 1 : c->w[i];
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

/* by_count: each counts 1, else its value. */
static struct cut cut_find(const struct candidates *c, double amount, bool by_count,
                           const struct cut_rule *rule)
{
    struct histogram h;
    uint32_t prefix = 0, bucket = 0;
    for (int i = 0; i < 3; i++) {
        struct radix_step step = radix_steps[i];
        histogram_fill(&h, c, prefix, step, by_count, rule);
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

enum { BLOCKS = 2048, BLOCK_LEAST = 32 };

struct blocks {
    int n, size;
    float most[BLOCKS];
};

static void blocks_fill(struct blocks *b, const float *w, int n)
{
    b->size = (n + BLOCKS - 1) / BLOCKS;
    b->size = b->size < BLOCK_LEAST ? BLOCK_LEAST : b->size;
    b->n = 0;
    for (int i = 0; i < n; i += b->size)
        b->most[b->n++] = floats_most(w + i, n - i < b->size ? n - i : b->size);
}

/* Indices of those that are at least `least`, ascending; how many, or `cap` + 1 for too many. */
static int blocks_gather(const struct blocks *b, const float *w, int n, float least, int32_t *out,
                         int cap)
{
    int found = 0;
    for (int block = 0; block < b->n; block++) {
        if (!(b->most[block] >= least))
            continue;
        int i = block * b->size, end = n - i < b->size ? n : i + b->size;
        for (; i < end; i++)
            if (w[i] >= least) {
                if (found == cap)
                    return cap + 1;
                out[found++] = i;
            }
    }
    return found;
}

/* A border that at least k of w reach: k blocks have one each. */
static float blocks_border(struct blocks *b, int k)
{
    struct candidates most = {b->most, b->n, NULL};
    return float_of_order(cut_find(&most, k, true, &by_value).key);
}

static void candidates_take(struct candidates *c, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) { /* ids hold indices: ascending, so that nothing is lost */
        c->w[i] = c->w[ids[i]];
        ids[i] = c->ids ? c->ids[ids[i]] : ids[i];
    }
    c->ids = ids;
    c->n = n;
}

static bool blocks_narrow(const struct blocks *b, struct candidates *c, float least,
                          int32_t ids[CANDIDATES_FEW])
{
    int n = blocks_gather(b, c->w, c->n, least, ids, CANDIDATES_FEW);
    if (n == 0 || n > CANDIDATES_FEW)
        return false;
    candidates_take(c, ids, n);
    return true;
}

/* Few already, or their ids are in the scratch that narrowing would need. */
static bool is_narrow(const struct candidates *c, const int32_t *ids)
{
    return c->n <= CANDIDATES_FEW || c->ids == ids;
}

bool candidates_narrow(struct candidates *c, float least, int32_t ids[CANDIDATES_FEW])
{
    struct blocks b;
    if (is_narrow(c, ids))
        return false;
    blocks_fill(&b, c->w, c->n);
    return blocks_narrow(&b, c, least, ids);
}

void floats_top(const float *w, int n, int k, struct token_logprob *out)
{
    struct blocks b;
    float values[CANDIDATES_FEW];
    int32_t ids[CANDIDATES_FEW];
    struct candidates c = {(float *)w, n, NULL};
    blocks_fill(&b, w, n);
    int few = k <= b.n ? blocks_gather(&b, w, n, blocks_border(&b, k), ids, CANDIDATES_FEW) : 0;
    if (few >= k && few <= CANDIDATES_FEW) {
        for (int i = 0; i < few; i++)
            values[i] = w[ids[i]];
        c = (struct candidates){values, few, ids};
    }
    struct cut cut = cut_find(&c, k, true, &by_value);
    for (int i = 0, found = 0; i < c.n && found < k; i++) {
        uint32_t key = cut_key(&by_value, c.w[i]);
        if (key > cut.key || (key == cut.key && cut.ties-- > 0))
            out[found++] = (struct token_logprob){c.ids ? c.ids[i] : i, c.w[i]};
    }
}

/* ---- the rules ---- */

void keep_top_k(struct candidates *c, int k, int32_t ids[CANDIDATES_FEW])
{
    struct blocks b;
    if (k >= c->n)
        return;
    if (!is_narrow(c, ids)) {
        blocks_fill(&b, c->w, c->n);
        if (k <= b.n)
            blocks_narrow(&b, c, blocks_border(&b, k), ids);
    }
    if (k < c->n)
        cut_apply(c, cut_find(c, k, true, &by_value), -INFINITY, &by_value);
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

/* The best weigh most of all: looks at ever smaller ones until they make up the amount. */
static void narrow_to_amount(struct candidates *c, double amount, int32_t ids[CANDIDATES_FEW])
{
    struct blocks b;
    blocks_fill(&b, c->w, c->n);
    for (float least = 0x1p-6f; least > 0x1p-60f; least *= 0x1p-3f) {
        int n = blocks_gather(&b, c->w, c->n, least, ids, CANDIDATES_FEW);
        double sum = 0;
        if (n > CANDIDATES_FEW)
            return;
        for (int i = 0; i < n; i++)
            sum += c->w[ids[i]];
        /* A little more, so that rounding cannot hide one that belongs. */
        if (sum > amount * (1 + 1e-9)) {
            candidates_take(c, ids, n);
            return;
        }
    }
}

void keep_top_p(struct candidates *c, double p, int32_t ids[CANDIDATES_FEW])
{
    double amount = p * weights_sum(c->w, c->n);
    if (!is_narrow(c, ids))
        narrow_to_amount(c, amount, ids);
    cut_apply(c, cut_find(c, amount, false, &by_value), 0, &by_value);
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
    cut_apply(c, cut_find(c, p * total, false, &rule), 0, &rule);
}

void keep_min_p(struct candidates *c, double p, int32_t ids[CANDIDATES_FEW])
{
    float least = (float)(p * floats_most(c->w, c->n));
    if (candidates_narrow(c, least, ids))
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
