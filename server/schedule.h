#ifndef SERVER_SCHEDULE_H
#define SERVER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* Whose turn is it? Pure policy: no I/O, no clock, no memory of its own. */

struct sched_seq {
    int left;         /* tokens that wait to be computed: 1 decodes, more is a prompt */
    bool decoding;    /* its prompt has been computed */
    bool waiting;     /* for tokens that another sequence is producing */
    int priority;     /* lower is earlier */
    uint64_t arrival; /* rising */
    bool holds;       /* it has memory that it could give back */
    void *tag;        /* the caller's */
    int grant;        /* out: tokens of this step */
};

struct sched_limits {
    int step_tokens;   /* most tokens of a step */
    int prompt_tokens; /* most prompt tokens of a step while somebody decodes */
};

/* Fills grant: each decoding sequence gets its token, then prompts get chunks, by priority and
 * arrival. Reorders seqs that way. Returns the sum of grants. */
int sched_plan(struct sched_seq *seqs, int n, const struct sched_limits *limits);

/* Which of the sequences must give its memory back so that `needy` (an index) can grow: of those that
 * hold some, the last in line, if it comes after needy; else -1. */
int sched_victim(const struct sched_seq *seqs, int n, int needy);

/* Prompt tokens for a step so that the gap between two tokens of a running stream stays near
 * target_ms, given the measured cost. At least `least`, at most `most`. */
int sched_prompt_budget(double target_ms, double step_ms_without, double ms_per_prompt_token,
                        int least, int most);

#endif
