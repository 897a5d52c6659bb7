#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include "mem.h"
#include "model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A job: one request on its way from a dialect to the engine and back.
 *
 * Two owners hold a reference each: the front end (loop thread) and, from engine_submit on, the
 * engine. The front end fills the request before it submits and nobody changes it afterwards. The
 * engine puts events into the outbox, the front end takes them. Either may be the last to let go.
 */

enum job_finish {
    FINISH_NONE,
    FINISH_STOP,     /* an end token, a stop token or a stop string */
    FINISH_LENGTH,   /* max_tokens, the context's end or max_time */
    FINISH_CANCELLED /* the client left */
};

/* What is asked. Everything it points to lives in the job's arena. */
struct job_request {
    int n_prompts;
    struct tok_ids *prompts;        /* [n_prompts]; ids allocated in the arena */
    int candidates;                 /* per prompt: n, or best_of */
    struct sampler_params sampling; /* seed is filled in (drawn by the front end when not given) */
    int max_tokens; /* of each candidate; 0: score the prompt only; -1: to the context's end */
    const char *const *stop; /* [n_stop] stop strings, none empty */
    const size_t *stop_bytes;
    int n_stop;
    bool ignore_eos;   /* end tokens do not end the answer */
    bool include_stop; /* keep the stop string in the text */
    bool special;      /* show control tokens in the text (skip_special_tokens: false) */
    int logprobs; /* most likely tokens beside each answer token; 0: the token's own only; -1: all;
                     JOB_NO_LOGPROBS */
    int prompt_logprobs; /* the same for prompt tokens */
    uint64_t salt;       /* whose cached prefixes may be shared */
    uint64_t tenant;     /* whose share of the steps it is paid from */
    bool shift;   /* at the context's end go on with the first `keep` tokens and the latest half */
    int keep;     /* -1: the prompt */
    int priority; /* lower is earlier */
    double max_seconds; /* 0: no limit */
};
#define JOB_NO_LOGPROBS (-2)

/* One token with its log-probability. */
struct job_token {
    int32_t id;
    float logprob; /* NaN for the first prompt token, which nothing predicts */
    int rank;      /* 1: the most likely; 0: not worked out */
    int n_top;
    struct token_logprob *top; /* [n_top], best first */
};

enum job_event_kind {
    JOB_STARTED, /* a prompt has been computed: it is known how much of it was cached (choice =
                    first of that prompt) */
    JOB_PROMPT,  /* prompt tokens with log-probabilities (in order; may come in several events;
                    choice = first of that prompt) */
    JOB_TEXT,    /* new answer text and the tokens that came with it; either may be empty */
    JOB_FINISH,  /* this choice has ended; carries the rest of its text and tokens, too */
    JOB_DONE,    /* the last event of every job: all choices have ended (or it failed) */
};

struct job_event {
    struct job_event *next;
    enum job_event_kind kind;
    int choice; /* prompt * candidates + candidate */
    char *text; /* whole UTF-8 characters; never a part of a stop string. Own allocation (free(3)),
                   may be NULL */
    size_t text_bytes;
    struct job_token
        *tokens; /* [n_tokens]; one allocation with all their `top` behind it; may be NULL */
    int n_tokens;
    /* JOB_STARTED */
    int cached_tokens; /* of this prompt */
    enum kv_miss miss;
    /* JOB_FINISH */
    enum job_finish finish;
    const char *stop_string; /* the one that matched (in the job's arena), or NULL */
    int32_t stop_token;      /* the token that ended it, or -1 */
    int completion_tokens;   /* of this choice, the ending token included when it was drawn */
    double logprob_sum;      /* over its tokens */
    /* JOB_DONE */
    int error; /* 0, or an err_code with the sentence in text */
};
void job_event_destroy(struct job_event *e);

/* Times in nanoseconds of CLOCK_MONOTONIC; 0: not yet. Written by the engine before JOB_DONE, read
 * by the front end after it. */
struct job_times {
    int64_t submitted, started, first_token, finished;
};

struct job {
    struct mem_arena arena; /* front end only, before submit; freed with the job */
    struct job_request request;
    uint64_t id;
    atomic_bool cancelled;
    atomic_int references;
    struct job_times times;
    /* outbox */
    pthread_mutex_t lock;
    struct job_event *first, **last;
    struct job *next_news; /* the engine's list of jobs with news */
    bool listed;           /* it is there */
    void *owner;           /* the front end's; loop thread only */
    void *running;         /* the engine's; engine thread only */
    struct job *next;      /* the engine's queue */
};

struct job *job_create(void); /* one reference; NULL when out of memory */
void job_ref(struct job *j);
void job_unref(struct job *j); /* the last one frees it; accepts NULL */
/* Adds an event, which the job owns from now on. Any thread. */
void job_put(struct job *j, struct job_event *e);
/* Takes all events out, oldest first; NULL when there is none. */
struct job_event *job_take(struct job *j);

#endif
