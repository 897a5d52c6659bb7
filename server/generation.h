#ifndef SERVER_GENERATION_H
#define SERVER_GENERATION_H

#include "front.h"
#include "schema.h"

/* A generation: one job seen from the client's side. It is made in the work pool from the body (by
 * the dialect), submitted on the loop, and turns the job's events into an answer or a stream. */

/* How a dialect writes. All append to `out`; text is always escaped. */
struct generation_dialect {
    const char *id_prefix;
    /* The object of a complete answer; may run in the work pool. */
    void (*whole)(struct generation *g, struct strbuf *out);
    /* One stream event for what an engine event brought (or more: a role, an echoed prompt). */
    void (*event)(struct generation *g, const struct job_event *event, struct strbuf *out);
    /* What ends a stream: usage where asked for, the end mark. */
    void (*end)(struct generation *g, struct strbuf *out);
    void (*error)(const struct api_error *e, struct strbuf *out);
};

/* What the client wants to see; the engine's part is in job->request. */
struct generation_options {
    const struct generation_dialect *dialect;
    bool stream, include_usage, continuous_usage;
    bool echo, logprobs, token_ids, tokens_as_ids, prompt_logprobs;
    bool show_special;
    bool cache_info;                     /* the answer says why no more of a prompt was cached */
    int candidates_wanted;               /* n; the job makes request.candidates of each prompt */
    int64_t prompt_tokens, asked_tokens; /* all prompts; max_tokens as asked, -1: none */
};

/* One prompt: what is echoed, and its log-probabilities. */
struct generation_prompt {
    char *text; /* in the job's arena, or NULL */
    size_t text_bytes;
    size_t characters; /* of the text as its tokens spell it: where the answer's offsets begin */
    int cached_tokens;
    enum kv_miss miss;                /* why not more */
    struct job_event *events, **last; /* JOB_PROMPT */
    int tokens_seen;                  /* in them */
};

struct generation_choice {
    struct strbuf text;
    struct job_event *events, **last; /* those with tokens that the answer must show */
    bool begun, ended;                /* first chunk sent; JOB_FINISH seen */
    size_t characters;                /* of the text so far, for text_offset */
    enum job_finish finish;
    const char *stop_string;
    int32_t stop_token;
    int completion_tokens;
    double logprob_sum;
    int64_t latest_ns; /* when its latest token came */
};

struct generation {
    struct exchange *exchange; /* NULL once the client has gone */
    struct server *server;
    struct generation_options options;
    struct job *job;
    char id[96];
    const char *model; /* the name that answers carry, from the configuration or the job's arena */
    int64_t created;
    struct generation_prompt *prompts; /* [job->request.n_prompts], in the job's arena */
    struct generation_choice *choices; /* [n_choices], likewise */
    int n_choices;
    char *unknown_fields; /* names to log once, in the job's arena, or NULL */

    bool counted, submitted, started, ended, done; /* ended: JOB_DONE seen; done: nothing to send */
    struct api_error failure;
    size_t kept_bytes;              /* of what a whole answer is made of */
    int completion_tokens;          /* over all choices, as far as seen */
    int64_t submitted_ns, first_ns; /* handed to the engine; first token seen */

    /* stream */
    bool streaming, ended_stream, ping;
    struct job_event *pending, **pending_last; /* not yet formatted */
    size_t pending_bytes;
    struct strbuf out; /* formatted, not yet taken */
    size_t out_taken;
    int64_t last_write_ms;
};

/* ---- made in the work pool ---- */

/* A generation for ex, with an empty job; NULL with ex->error. */
struct generation *generation_create(struct exchange *ex, const struct generation_dialect *dialect);
/* After the job's prompts and candidates are known: its choices. */
int generation_prepare(struct generation *g, struct api_error *e);
void generation_destroy(struct generation *g); /* accepts NULL */

/* ---- loop thread ---- */

/* Refuses by ex->error when the queue is full or the server drains. */
void generation_admit(struct exchange *ex);
/* The route's `answer`: submits. */
void generation_answer(struct exchange *ex);
/* Takes the engine's news and forwards it. */
void generation_news(struct server *s);
/* The client has left (its socket says so): the job is cancelled at once. */
void generation_gone(struct exchange *ex);
/* The exchange is over: lets go of the job. */
void generation_detach(struct exchange *ex);
/* Pings, held-back headers, time limits. */
void generation_sweep(struct server *s, int64_t now_ms);
/* Ends it with an error: an event in a stream that has begun, else a status. */
void generation_fail(struct generation *g, const struct api_error *e);
/* Its stream is not read fast enough: what waits is dropped, and the reader gets the reason instead
 * if it reads on within some seconds. */
void generation_cut(struct generation *g, const struct api_error *e);

/* ---- generation_stream.c ---- */

void generation_stream_add(struct generation *g, struct job_event *e); /* takes e */
/* After events were added; `shows`: one of them that a client sees. */
void generation_stream_advance(struct generation *g, bool shows);
void generation_stream_sweep(struct generation *g, int64_t now_ms);
void generation_keep_prompt(struct generation *g, struct job_event *e); /* takes e */

/* Of an event that is kept. */
size_t generation_event_bytes(const struct job_event *e);

static inline void generation_chain(struct job_event ***last, struct job_event *e)
{
    e->next = NULL;
    **last = e;
    *last = &e->next;
}

/* Seconds after which a refused client may try again, from the measured speed. */
int generation_retry_seconds(struct server *s);

#endif
