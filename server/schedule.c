#include "schedule.h"

#include <stdlib.h>

double sched_turn(double arrival_seconds, int priority)
{
    return arrival_seconds + SCHED_AGE_SECONDS * priority;
}

static int compare(const void *a, const void *b)
{
    const struct sched_seq *x = a, *y = b;
    return (x->turn > y->turn) - (x->turn < y->turn);
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int grant_decodes(struct sched_seq *seqs, int n, int most)
{
    int total = 0;
    for (int i = 0; i < n && total < most; i++) {
        if (!seqs[i].decoding || seqs[i].waiting)
            continue;
        seqs[i].grant = smaller(seqs[i].left, most - total);
        total += seqs[i].grant;
    }
    return total;
}

static bool wants_more(const struct sched_seq *s)
{
    return !s->decoding && !s->waiting && s->grant < s->left;
}

/* The first of its tenant, in order, that wants more. */
static bool leads_tenant(const struct sched_seq *seqs, int i)
{
    for (int j = 0; j < i; j++)
        if (seqs[j].tenant == seqs[i].tenant && wants_more(&seqs[j]))
            return false;
    return wants_more(&seqs[i]);
}

static int count_tenants(const struct sched_seq *seqs, int n)
{
    int tenants = 0;
    for (int i = 0; i < n; i++)
        tenants += leads_tenant(seqs, i);
    return tenants;
}

/* Up to `share` tokens for the prompts of seqs[first]'s tenant, by turn. */
static int grant_tenant(struct sched_seq *seqs, int n, int first, int share)
{
    int given = 0;
    for (int i = first; i < n && given < share; i++) {
        if (seqs[i].tenant != seqs[first].tenant || !wants_more(&seqs[i]))
            continue;
        int more = smaller(seqs[i].left - seqs[i].grant, share - given);
        seqs[i].grant += more;
        given += more;
    }
    return given;
}

/* Rounds of equal shares, until the budget or the demand is used up. */
static int grant_prompts(struct sched_seq *seqs, int n, int budget)
{
    int total = 0, tenants;
    while (total < budget && (tenants = count_tenants(seqs, n)) > 0) {
        int share = (budget - total + tenants - 1) / tenants;
        for (int i = 0; i < n && total < budget; i++)
            if (leads_tenant(seqs, i))
                total += grant_tenant(seqs, n, i, smaller(share, budget - total));
    }
    return total;
}

int sched_plan(struct sched_seq *seqs, int n, const struct sched_limits *limits)
{
    qsort(seqs, (size_t)n, sizeof *seqs, compare);
    for (int i = 0; i < n; i++)
        seqs[i].grant = 0;
    int total = grant_decodes(seqs, n, limits->step_tokens);
    int budget = limits->step_tokens - total;
    if (total)
        budget = smaller(budget, limits->prompt_tokens);
    return total + grant_prompts(seqs, n, budget);
}

void sched_lend(struct sched_seq *seqs, int waiter, int producer)
{
    if (seqs[waiter].turn < seqs[producer].turn)
        seqs[producer].turn = seqs[waiter].turn;
}

int sched_victim(const struct sched_seq *seqs, int n, int needy)
{
    int victim = -1;
    for (int i = 0; i < n; i++)
        if (i != needy && seqs[i].holds && compare(&seqs[needy], &seqs[i]) < 0 &&
            (victim < 0 || compare(&seqs[victim], &seqs[i]) < 0))
            victim = i;
    return victim;
}

int sched_next(const double *turns, const int *running, int n)
{
    int next = n > 0 ? 0 : -1;
    for (int i = 1; i < n; i++)
        if (running[i] < running[next] || (running[i] == running[next] && turns[i] < turns[next]))
            next = i;
    return next;
}

int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int least, int most)
{
    if (!(ms_per_prompt_token > 0) || least > most)
        return most;
    double tokens = (target_ms - step_ms_without) / ms_per_prompt_token;
    if (!(tokens > least))
        return least;
    return tokens >= most ? most : (int)tokens;
}
