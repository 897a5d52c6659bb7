#include "lookup.h"

#include <string.h>

#define RUN        3 /* tokens that must agree */
#define SMOOTHING  0.25f
#define LEAST_HITS 0.4f /* below, a guess costs more than it brings */
#define REST       48

void lookup_init(struct lookup *l)
{
    memset(l, 0, sizeof *l);
    l->hits = 0.7f; /* hopeful at first */
}

static uint32_t slot(const int32_t *run)
{
    uint32_t h = 0;
    for (int i = 0; i < RUN; i++)
        h = (h ^ (uint32_t)run[i]) * 0x9e3779b1u;
    return h >> 20;
}

_Static_assert(LOOKUP_SLOTS == 1 << 12, "slot() gives twelve bits");

/* Takes in what follows every run that ends before the last token. */
static void take_in(struct lookup *l, const int32_t *tokens, int n)
{
    int first = l->indexed < RUN ? RUN : l->indexed;
    for (int next = first; next < n; next++)
        l->after[slot(tokens + next - RUN)] = next;
    l->indexed = n > l->indexed ? n : l->indexed;
}

int lookup_guess(struct lookup *l, const int32_t *tokens, int n, int most, int32_t *out)
{
    take_in(l, tokens, n);
    if (l->rest > 0) {
        l->rest--;
        return 0;
    }
    if (n < RUN + 1 || most <= 0)
        return 0;
    int from = l->after[slot(tokens + n - RUN)];
    if (from == 0 || from >= n ||
        memcmp(tokens + from - RUN, tokens + n - RUN, RUN * sizeof *tokens))
        return 0;
    int count = n - from < most ? n - from : most;
    memcpy(out, tokens + from, (size_t)count * sizeof *out);
    return count;
}

void lookup_learn(struct lookup *l, int guessed, int right)
{
    if (guessed == 0)
        return;
    l->hits += SMOOTHING * ((float)right / (float)guessed - l->hits);
    if (l->hits >= LEAST_HITS)
        return;
    l->rest = REST;
    l->hits = LEAST_HITS + 0.1f; /* the next guess gets a fair try */
}
