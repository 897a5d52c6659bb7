#ifndef SERVER_SCHEDULE_H
#define SERVER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* Whose turn is it? Pure policy: no I/O, no clock, no memory of its own.
 *
 * Turn: smaller is earlier. A request's turn is the second at which it came plus SCHED_AGE_SECONDS
 * for each step of its priority (lower is earlier). So of equal priorities the older goes first,
 * and a low one waits SCHED_AGE_SECONDS longer for each step and is then before every newcomer:
 * nobody starves, and the order of two requests never changes. Of equal turns (the choices of one
 * request) the smaller serial goes first: the order is strict, or two that hold memory could wait
 * for each other. */

#define SCHED_AGE_SECONDS 10.0

double sched_turn(double arrival_seconds, int priority);

struct sched_seq {
    int left;        /* tokens that wait to be computed */
    bool decoding;   /* its prompt has been computed: one token follows another */
    bool waiting;    /* for tokens that another sequence is producing */
    bool holds;      /* it has memory that it could give back */
    uint64_t tenant; /* whose share its prompt is paid from */
    double turn;
    uint64_t serial; /* no two alike */
    bool lent;       /* its turn is a waiter's: it comes just before that one */
    void *tag;       /* the caller's */
    int grant;       /* out: tokens of this step */
};

struct sched_limits {
    int step_tokens;   /* most tokens of a step */
    int prompt_tokens; /* most prompt tokens of a step while somebody decodes */
};

/* Fills grant and puts seqs in the order of their turns. Decoding sequences come first; then the
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

/* Which of n waiting requests begins next: of the tenant with the fewest running sequences, by
 * turn. running[i] counts those of request i's tenant. -1 when n is 0. */
int sched_next(const double *turns, const int *running, int n);

/* Prompt tokens for a step so that the gap between two tokens of a running stream stays near
 * target_ms, given the measured cost (0: not known yet, which gives `least`): they get what the
 * step takes less than that without them, and no less than half of the step's time, so that who
 * waits for a prompt waits at most twice as long for the others. At least `least`, at most `most`,
 * which goes first, whatever was measured. */
int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int least, int most);

#endif
