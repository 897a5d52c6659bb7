#ifndef SERVER_ENGINE_STATE_H
#define SERVER_ENGINE_STATE_H

#include "engine.h"
#include "schedule.h"
#include "sequence.h"

/* The engine's inside, for its files: engine.c (threads and life), engine_admit.c (who begins and
 * who ends), engine_slots.c (who runs), engine_step.c (a step), engine_choose.c (tokens from
 * logits), engine_report.c (what is told). Engine thread, unless it says otherwise. */

/* A row of the step whose logits are wanted. */
enum want_kind {
    WANT_NONE,
    WANT_SCORE,  /* how likely the prompt token behind it is */
    WANT_DRAW,   /* the next token */
    WANT_GUESSED /* the same, if the guesses before it prove right */
};
struct want {
    struct sequence *s;
    int row, position;
    enum want_kind kind;
    /* what came of it */
    bool chosen, corrupted; /* corrupted: the logits were no numbers */
    int rc;
    struct job_token token; /* its `top` belongs to whoever uses it */
};

struct engine {
    struct engine_config config;
    const struct model_plan *plan;
    const struct tokenizer *tokenizer;
    int context;
    pthread_t thread;
    /* from any thread, under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *incoming, **incoming_last;
    int queued; /* jobs accepted that have not begun */
    bool stop, poke;
    struct engine_stats stats;
    /* news, under `news_lock` */
    pthread_mutex_t news_lock;
    struct job *news;
    /* Held by the engine thread except while the model computes: then nothing below changes, and
     * engine_debug may look. */
    pthread_mutex_t state_lock;
    struct request *waiting, **waiting_last; /* in the order of their arrival */
    int n_waiting;
    struct sequence **running; /* [2 most_sequences], in line; then those aside */
    int n_running, n_aside;    /* the latter are among them */
    bool claims_changed;       /* since slots were last given */
    int begun;                 /* of `queued`, since stats were last published */
    bool told;                 /* an event has been sent since the last notify */
    uint64_t changes; /* counts whenever somebody who found no room may find some: from 1 */
    uint64_t serials;
    struct sched_seq *views; /* [2 most_sequences] */
    struct batch_item *items;
    struct want *wants;
    struct sched_claim *claims; /* [most_queued + most_sequences]: who wants a slot */
    struct sched_claim *slots;  /* [most_sequences]: who has one */
    float *logits, *raw;        /* raw: copies that samplers do not change */
    double prompt_ms_per_token, decode_ms;
    struct engine_stats now;
};

int64_t engine_clock(void); /* nanoseconds of CLOCK_MONOTONIC */

/* ---- engine_admit.c ---- */
void engine_accept(struct engine *e, struct job *j); /* takes the caller's reference */
void engine_drop(struct engine *e); /* cancelled, failed and overdue requests leave */
void engine_admit(struct engine *e);
void engine_finish(struct engine *e, struct sequence *s, enum job_finish finish);
/* The request cannot go on: its error is told with JOB_DONE; engine_drop ends its choices. */
void engine_fail(struct request *r, int code, const char *text);
void engine_fail_memory(struct request *r);
/* Where its prompt came from, once for each sequence. */
void engine_count_prompt(struct engine *e, const struct sequence *s);
/* Takes a sequence's cache away; it is opened again later. */
void engine_park(struct engine *e, struct sequence *s);
/* A sequence that has filled the context goes on with its first tokens and its latest half. */
void engine_shift(struct engine *e, struct sequence *s);

/* Its next choice begins; frees the request when even the last cannot. */
void engine_begin(struct engine *e, struct request *r);

/* ---- engine_slots.c ---- */
/* Slots go to those who have a claim. */
void engine_give_slots(struct engine *e);
void engine_leave_slot(struct engine *e, struct sequence *s); /* it ends */

/* ---- engine_step.c ---- */
void engine_step(struct engine *e);

/* ---- engine_choose.c ---- */
/* Draws from, or scores, the first n rows of e->logits, all but the guessed ones. */
void engine_choose(struct engine *e, struct want *wants, int n);
/* The same for one that had to wait. */
void engine_choose_late(struct engine *e, struct want *wants, int i);

/* ---- engine_guess.c ---- */
/* Guesses what follows s's tokens and puts it behind them; how many. `decoders` share the step,
 * which has room for `spare` rows more. */
int engine_guess(struct engine *e, struct sequence *s, int decoders, int spare);
/* Whether the row of that position still counts: all guesses before it were right. */
bool engine_guess_holds(const struct sequence *s, int position);
void engine_guess_drawn(struct sequence *s, int position, int32_t id);
/* After the step: right guesses stay in the cache, the others go. */
void engine_guess_settle(struct engine *e, struct sequence *s);

/* ---- engine_report.c ---- */
struct job_event *engine_event(enum job_event_kind kind, int choice); /* NULL: out of memory */
void engine_send(struct engine *e, struct job *j, struct job_event *event);
void engine_notify(struct engine *e);
void engine_publish(struct engine *e);

#endif
