#ifndef SERVER_SCHEDULE_H
#define SERVER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* Whose turn is it? Pure policy: no I/O, no clock, no memory of its own.
 *
 * Turn: smaller is earlier. A request's turn is the second at which it came plus SCHED_AGE_SECONDS
 * for each step of its priority (lower is earlier). So of equal priorities the older goes first,
 * and a low one waits SCHED_AGE_SECONDS longer for each step and is then before every newcomer:
 * nobody starves. Of equal turns (the choices of one request) the smaller serial goes first: the
 * order is strict, or two that hold memory could wait for each other.
 *
 * Line: who stands before whom when memory is short. The first of each tenant by turn (rank 0),
 * then the second of each, and so on. So it changes only when somebody comes or ends, and the first
 * in line stays first until its end, or until somebody with an earlier turn comes. */

#define SCHED_AGE_SECONDS 10.0

double sched_turn(double arrival_seconds, int priority);

struct sched_seq {
    int left;        /* tokens that wait to be computed */
    bool decoding;   /* its prompt has been computed: one token follows another */
    bool waiting;    /* for tokens that another sequence is producing */
    bool holds;      /* it has memory that it could give back */
    uint64_t tenant; /* whose share its prompt is paid from */
    int rank;        /* sched_rank */
    double turn;
    uint64_t serial; /* no two alike */
    int lent;        /* its turn is a waiter's (or that one's waiter's): it comes just before */
    void *tag;       /* the caller's */
    int grant;       /* out: tokens of this step */
};

struct sched_limits {
    int step_tokens;   /* most tokens of a step */
    int prompt_tokens; /* most prompt tokens of a step while somebody decodes */
};

/* Gives each its rank; leaves them in line. */
void sched_rank(struct sched_seq *seqs, int n);

/* Fills grant and puts seqs in line. Decoding sequences come first; then the
 * prompt tokens are divided evenly between the tenants that have any to compute (what one does not
 * need goes to the others), and within a tenant they go by turn. Returns the sum of the grants. */
int sched_plan(struct sched_seq *seqs, int n, const struct sched_limits *limits);

/* A waiter lends its turn: `producer`, which computes what it waits for, comes just before it if it
 * came after it, and is not kept up by those in between. Indices; to be called before sched_plan,
 * for every waiter. */
void sched_lend(struct sched_seq *seqs, int waiter, int producer);

/* Which of the sequences must give its memory back so that `needy` (an index) can grow: of those
 * that hold some, the last in line, if it comes after needy; else -1. The first in line is never
 * a victim, so it always reaches its end. */
int sched_victim(const struct sched_seq *seqs, int n, int needy);

/* ---- slots ----
 *
 * A slot runs one sequence: one choice of a request. They are divided evenly between tenants, and
 * within a tenant they go by turn, each slot that a request has already counting like a step of
 * priority: of a hundred choices some run, not instead of all that come after them. */

struct sched_claim {
    uint64_t tenant;
    int slots;   /* that its tenant has */
    double turn; /* sched_claim_turn */
    void *tag;   /* the caller's */
};

/* Of a request that has `slots` and claims one more. */
double sched_claim_turn(double turn, int slots);

/* Which of n claims gets the next slot: of the tenant with the fewest, by turn. -1 when n is 0. */
int sched_next(const struct sched_claim *claims, int n);

/* Which of the n slots in use gives way to the claim, or -1. Each stands there with the turn by
 * which it would claim its slot back, the later of one request after the earlier. It is one of a
 * tenant that has two more than the claim's, or of the claim's own with a later turn; so what has
 * given way does not displace what came for it, and the taking ends. */
int sched_yielding(const struct sched_claim *slots, int n, const struct sched_claim *claim);

/* Where no slot is free: of the claims to which one gives way the one that goes first, and in
 * *yielding that slot; -1 when there is none. Changes the order of the claims. */
int sched_take(struct sched_claim *claims, int n_claims, const struct sched_claim *slots,
               int n_slots, int *yielding);

/* Prompt tokens for a step so that the gap between two tokens of a running stream stays near
 * target_ms, given the measured cost (0: not known yet, which gives `least`): they get what the
 * step takes less than that without them, and no less than half of the step's time, so that who
 * waits for a prompt waits at most twice as long for the others. At least `least`, at most `most`,
 * which goes first, whatever was measured. */
int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int least, int most);

#endif
