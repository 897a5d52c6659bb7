#include "schedule.h"

#include <stdlib.h>

double sched_turn(double arrival_seconds, int priority)
{
    return arrival_seconds + SCHED_AGE_SECONDS * priority;
}

static int compare(const void *a, const void *b)
{
    const struct sched_seq *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->turn != y->turn)
        return x->turn < y->turn ? -1 : 1;
    if (x->serial != y->serial)
        return x->serial < y->serial ? -1 : 1;
    return y->lent - x->lent;
}

static int earlier_of_tenant(const struct sched_seq *seqs, int n)
{
    int earlier = 0;
    for (int i = 0; i < n; i++)
        earlier += seqs[i].tenant == seqs[n].tenant;
    return earlier;
}

void sched_rank(struct sched_seq *seqs, int n)
{
    for (int i = 0; i < n; i++)
        seqs[i].rank = 0;
    qsort(seqs, (size_t)n, sizeof *seqs, compare);
    for (int i = 0; i < n; i++)
        seqs[i].rank = earlier_of_tenant(seqs, i);
    qsort(seqs, (size_t)n, sizeof *seqs, compare);
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

/* The first of a tenant stands for all of it. */
static bool stands_for_tenant(const struct sched_seq *seqs, int i)
{
    for (int j = 0; j < i; j++)
        if (seqs[j].tenant == seqs[i].tenant)
            return false;
    return true;
}

static bool tenant_wants_more(const struct sched_seq *seqs, int n, int first)
{
    for (int i = first; i < n; i++)
        if (seqs[i].tenant == seqs[first].tenant && wants_more(&seqs[i]))
            return true;
    return false;
}

static int count_wanting_tenants(const struct sched_seq *seqs, int n)
{
    int tenants = 0;
    for (int i = 0; i < n; i++)
        tenants += stands_for_tenant(seqs, i) && tenant_wants_more(seqs, n, i);
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
    while (total < budget && (tenants = count_wanting_tenants(seqs, n)) > 0) {
        int share = (budget - total) / tenants + (budget - total < tenants);
        for (int i = 0; i < n && total < budget; i++)
            if (stands_for_tenant(seqs, i))
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
    if (compare(&seqs[waiter], &seqs[producer]) > 0)
        return;
    seqs[producer].rank = seqs[waiter].rank;
    seqs[producer].turn = seqs[waiter].turn;
    seqs[producer].serial = seqs[waiter].serial;
    seqs[producer].lent = seqs[waiter].lent + 1;
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

double sched_claim_turn(double turn, int slots)
{
    return turn + SCHED_AGE_SECONDS * slots;
}

/* Of a tenant with fewer slots, or of equally many and with an earlier turn. */
static bool goes_first(const struct sched_claim *a, const struct sched_claim *b)
{
    return a->slots != b->slots ? a->slots < b->slots : a->turn < b->turn;
}

int sched_next(const struct sched_claim *claims, int n)
{
    int next = n > 0 ? 0 : -1;
    for (int i = 1; i < n; i++)
        if (goes_first(&claims[i], &claims[next]))
            next = i;
    return next;
}

static bool must_yield(const struct sched_claim *slot, const struct sched_claim *claim)
{
    return slot->tenant == claim->tenant ? slot->turn > claim->turn
                                         : slot->slots >= claim->slots + 2;
}

int sched_yielding(const struct sched_claim *slots, int n, const struct sched_claim *claim)
{
    int last = -1;
    for (int i = 0; i < n; i++)
        if (must_yield(&slots[i], claim) && (last < 0 || !goes_first(&slots[i], &slots[last])))
            last = i;
    return last;
}

/* A tenant's first claim stands for all of it: if nothing gives way to that, nothing does to the
 * others. */
static int drop_tenant(struct sched_claim *claims, int n, uint64_t tenant)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (claims[i].tenant != tenant)
            claims[kept++] = claims[i];
    return kept;
}

int sched_take(struct sched_claim *claims, int n_claims, const struct sched_claim *slots,
               int n_slots, int *yielding)
{
    int next;
    while ((next = sched_next(claims, n_claims)) >= 0) {
        *yielding = sched_yielding(slots, n_slots, &claims[next]);
        if (*yielding >= 0)
            break;
        n_claims = drop_tenant(claims, n_claims, claims[next].tenant);
    }
    return next;
}

int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int least, int most)
{
    if (least > most)
        return most;
    if (!(ms_per_prompt_token > 0))
        return least;
    double room_ms = target_ms - step_ms_without;
    if (room_ms < step_ms_without)
        room_ms = step_ms_without;
    double tokens = room_ms / ms_per_prompt_token;
    if (!(tokens > least))
        return least;
    return tokens >= most ? most : (int)tokens;
}
