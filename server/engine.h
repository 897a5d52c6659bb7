#ifndef SERVER_ENGINE_H
#define SERVER_ENGINE_H

#include "job.h"

/* The engine: one thread that owns the model, the KV cache and every sequence, and runs them all in
 * one batch. */

struct engine;

struct engine_config {
    struct model
        *model; /* loaded; the engine uses it alone from now on, but for its tokenizer and plan */
    struct kv_cache *cache; /* likewise; the caller destroys both after the engine */
    struct pool *pool;
    int most_sequences; /* running at once: slots; as many again may have given theirs away */
    int most_queued;    /* jobs waiting; more are refused with ERR_BUSY */
    int step_tokens;    /* most tokens of a step; 0: the model's */
    double
        itl_target_ms; /* wished gap between two tokens of a stream while prompts are processed */
    int lookup;        /* most tokens that are guessed ahead (lookup.h); 0: none */
    int nice;          /* of the engine's thread */
    void (*notify)(void *arg); /* there is news: any thread, at most once per step; may be NULL */
    void *notify_arg;
};

int engine_create(const struct engine_config *config, struct engine **out,
                  struct err *err); /* starts the thread */
/* Cancels what runs, ends the thread, frees. Every job gets its JOB_DONE first. Accepts NULL. */
void engine_destroy(struct engine *e);

/* Any thread. The engine takes a reference of its own. Errors (no event follows then): ERR_BUSY
 * when the queue is full, ERR_LIMIT when the request can never fit, ERR_ARG when a prompt is empty:
 * the sentence says why. */
int engine_submit(struct engine *e, struct job *job, struct err *err);
/* Any thread: the client has left. The engine drops the job within one step; JOB_DONE follows. */
void engine_cancel(struct engine *e, struct job *job);
/* A job that has had events since it was last handed out, with a reference for the caller to drop;
 * NULL: no more. Any thread. */
struct job *engine_next_news(struct engine *e);

/* Rows of the vocabulary that it keeps for logits, with a pool of so many threads. */
int engine_logit_rows(int threads);
/* The longest prompt plus answer that can run. */
int engine_context(const struct engine *e);

/* Of step_sizes, in buckets.h's form. */
#define ENGINE_STEP_BOUNDS                                                                         \
    {                                                                                              \
        1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 0                          \
    }

/* A consistent copy for /metrics; any thread. */
struct engine_stats {
    int running; /* sequences that have a slot */
    int waiting; /* jobs waiting to start, sequences that have given their slot away */
    /* Of every sequence's prompt: tokens = cached + computed. What is computed again after a
     * preemption or a shift is none of these. */
    uint64_t prompt_tokens, prompt_cached_tokens, prompt_computed_tokens, recomputed_tokens;
    uint64_t generated_tokens;
    uint64_t misses[KV_MISS_COUNT]; /* prompts by the reason why no more of them was cached */
    uint64_t guessed_tokens, right_tokens; /* by prompt lookup */
    uint64_t preemptions, steps, step_tokens;
    uint64_t corrupted; /* requests for which a token was drawn from logits that are no numbers */
    struct buckets step_sizes; /* in tokens: of prompts, and one for each that decoded */
    uint64_t finished[4];      /* by enum job_finish */
    double kv_usage;           /* 0 .. 1: bytes in use by running sequences / arena */
    struct kv_stats kv;
    double tokens_per_second_prefill, tokens_per_second_decode; /* measured lately */
};
void engine_stats(struct engine *e, struct engine_stats *out);

/* What the cache holds, for people: groups and their blocks by state, the hottest prefixes (with
 * their texts when asked), the running sequences. Any thread but the loop's: it may wait for the
 * engine for some milliseconds. The caller owns the object. */
json_t *engine_debug(struct engine *e, bool texts);

#endif
