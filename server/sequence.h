#ifndef SERVER_SEQUENCE_H
#define SERVER_SEQUENCE_H

#include "engine.h"
#include "lookup.h"
#include "stream.h"

/* One candidate answer to one prompt while it runs. Engine thread only. */

/* A job that the engine works on. */
struct request {
    struct job *job;
    struct request *next;       /* in the engine's queue */
    struct job_event *done;     /* JOB_DONE, made early so that it can always be sent */
    double turn;                /* see schedule.h */
    int choices, started, live; /* in all; begun; of these not yet ended */
    int slots;                  /* of the live ones, those that have a slot */
    bool waits;                 /* it is in the engine's line of those that have yet to begin */
    bool corrupted;             /* counted as such */
    bool finished;              /* one choice has ended, or all were dropped: nothing new begins */
};

struct sequence {
    struct request *request;
    int prompt, choice;
    int32_t *tokens; /* prompt and answer */
    int n, cap, prompt_n;
    int generated, most; /* tokens drawn; most that may be */
    int scored; /* prompt tokens whose log-probability has been sent; prompt_n when none are wanted
                 */
    double turn;
    int rank;            /* in line: see schedule.h */
    uint64_t serial;     /* the order of those with equal turns */
    bool aside;          /* it has given its slot to another and goes on when there is one again */
    uint64_t refused_at; /* engine's count of changes when there was no room for it; 0: never */
    bool opened;         /* it has had a place in the cache */
    bool shifted;        /* it has left the tree of prefixes */
    int variant;         /* of its positions: see model_variant */
    enum kv_miss miss;   /* why the cache had no more of its prompt */
    int known;         /* leading tokens that it has had: the rest is computed for the first time */
    int computed;      /* prompt tokens that it computed itself, each counted once */
    struct kv_seq *kv; /* NULL: waits for memory */
    bool announced;    /* JOB_STARTED has been sent */
    struct sampler *sampler;
    struct stream stream;
    double logprob_sum;
    int32_t stop_token;
    const char *stop_string;
    struct lookup *lookup; /* NULL: no guesses */
    int32_t guess[LOOKUP_MOST];
    int guessed, right; /* tokens guessed for this step; of them drawn so far */
    /* this step */
    int grant, first_row, position;
    bool decoded; /* the grant is the one token that follows the others */
};

/* lookup: it may guess. */
int sequence_create(struct request *r, const struct tokenizer *t, int context, bool lookup,
                    struct sequence **out, struct err *err);
void sequence_destroy(struct sequence *s); /* closes its cache entry */

/* Room for n tokens behind those that are there. */
bool sequence_reserve(struct sequence *s, int n);

/* Tokens that still have to be computed, the freshly drawn one included. */
int sequence_left(const struct sequence *s);
/* Leading tokens that may come from the cache: the last one never, and none whose successor must be
 * scored. */
int sequence_reusable(const struct sequence *s);

/* The next token follows those before it and nothing waits between. */
bool sequence_decodes(const struct sequence *s);
/* Prompt tokens that came from the cache, as far as it has got. */
int sequence_cached(const struct sequence *s);
/* The tokens up to `end` are stored. Returns how many of the grant it has computed before (and lost
 * to a preemption). */
int sequence_store(struct sequence *s, int end);

/* The context is full: keeps the first request.keep tokens and the latest half of the rest. What
 * follows is a function of the request alone, as ever: the tokens kept are computed anew at their
 * new places, by which a shifted sequence may be preempted and resumed like any other and says the
 * same again. (To turn the stored keys to new positions instead would be faster once per half
 * context, but the values would still have seen what has been dropped, and no resumption could
 * bring that back.) */
void sequence_shift(struct sequence *s, int context);

/* Takes a drawn token in: text, stops, limits. Returns how the answer ends with it, or FINISH_NONE.
 * ERR_NOMEM on failure. */
int sequence_accept(struct sequence *s, const struct tokenizer *t, struct job_token *token,
                    enum job_finish *finish);

#endif
