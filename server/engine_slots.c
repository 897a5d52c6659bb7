#include "engine_state.h"

/* Who runs: slots for the choices of requests (schedule.h says whose turn it is). Who gives its
 * slot away keeps its text and its sampler, and finds in the cache what nobody else has needed. */

static int count_slots(const struct engine *e, uint64_t tenant)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++)
        n += !e->running[i]->aside && e->running[i]->request->job->request.tenant == tenant;
    return n;
}

static struct sched_claim claim_of(const struct engine *e, const struct request *r, int slots)
{
    uint64_t tenant = r->job->request.tenant;
    return (struct sched_claim){tenant, count_slots(e, tenant), sched_claim_turn(r->turn, slots),
                                NULL};
}

/* ---- who wants one ---- */

static struct sequence *first_aside(const struct engine *e, const struct request *r)
{
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->aside && e->running[i]->request == r)
            return e->running[i];
    return NULL;
}

static void add_claim(struct engine *e, int n, struct request *r)
{
    e->claims[n] = claim_of(e, r, r->slots);
    e->claims[n].tag = r;
}

/* Each request once, whatever it has that does not run. */
static int list_claims(struct engine *e)
{
    int n = 0;
    for (struct request *r = e->waiting; r && n < e->config.most_queued; r = r->next)
        add_claim(e, n++, r);
    for (int i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i]->request;
        if (!r->waits && first_aside(e, r) == e->running[i])
            add_claim(e, n++, r);
    }
    return n;
}

/* ---- who gives way ---- */

static int list_slots(struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++) {
        const struct request *r = e->running[i]->request;
        if (e->running[i]->aside)
            continue;
        e->slots[n] = claim_of(e, r, r->slots - 1);
        e->slots[n++].tag = e->running[i];
    }
    return n;
}

static void put_aside(struct engine *e, struct sequence *s)
{
    engine_park(e, s);
    s->aside = true;
    s->request->slots--;
    e->n_aside++;
    e->now.preemptions++;
}

/* Which of the n claims gets a slot, which there is then; -1: none. */
static int make_slot(struct engine *e, int n)
{
    int last;
    if (e->n_running - e->n_aside < e->config.most_sequences)
        return sched_next(e->claims, n);
    if (e->n_aside >= e->config.most_sequences)
        return -1;
    int next = sched_take(e->claims, n, e->slots, list_slots(e), &last);
    if (next >= 0)
        put_aside(e, e->slots[last].tag);
    return next;
}

/* ---- giving ---- */

static void give_slot(struct engine *e, struct request *r)
{
    struct sequence *s = first_aside(e, r);
    if (!s) {
        engine_begin(e, r);
        return;
    }
    s->aside = false;
    r->slots++;
    e->n_aside--;
}

static int view_all(struct engine *e, bool aside, int n)
{
    for (int i = 0; i < e->n_running; i++) {
        struct sequence *s = e->running[i];
        if (s->aside == aside)
            e->views[n++] = (struct sched_seq){.tenant = s->request->job->request.tenant,
                                               .turn = s->turn,
                                               .serial = s->serial,
                                               .tag = s};
    }
    return n;
}

static void line_up(struct engine *e)
{
    int n = view_all(e, false, 0), all = view_all(e, true, n);
    sched_rank(e->views, n);
    sched_rank(e->views + n, all - n);
    for (int i = 0; i < all; i++) {
        e->running[i] = e->views[i].tag;
        e->running[i]->rank = e->views[i].rank;
    }
}

void engine_give_slots(struct engine *e)
{
    int next;
    if (!e->claims_changed)
        return;
    while ((next = make_slot(e, list_claims(e))) >= 0)
        give_slot(e, e->claims[next].tag);
    line_up(e);
    e->changes++; /* who stands elsewhere in line may find room */
    e->claims_changed = false;
}

void engine_leave_slot(struct engine *e, struct sequence *s)
{
    e->claims_changed = true;
    if (s->aside)
        e->n_aside--;
    else
        s->request->slots--;
}
