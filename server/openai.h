#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H

#include "generation.h"

/* OpenAI's dialect: the typed request, how a job is made of it, and what both endpoints write. */

/* Fields as they were given; the defaults are those of openai_request_default. Strings and JSON are
 * borrowed from the body. */
struct openai_request {
    const char *model, *request_id, *cache_salt, *truncation_side;
    const char *suffix;
    const json_t *prompt, *messages;
    int64_t n, best_of, max_tokens, max_completion_tokens;   /* -1: not given */
    const json_t *logprobs, *top_logprobs, *prompt_logprobs; /* integers */
    bool chat_logprobs;
    bool echo, stream;
    const json_t *stream_options, *stop, *logit_bias;
    const json_t *seed;
    double temperature, top_p, min_p, typical_p, top_n_sigma;
    int64_t top_k, min_tokens;
    double xtc_probability, xtc_threshold;
    double repetition_penalty, presence_penalty, frequency_penalty;
    double dry_multiplier, dry_base;
    int64_t dry_allowed_length, dry_last_n;
    const json_t *dry_breakers, *stop_token_ids, *allowed_token_ids, *bad_words;
    bool include_stop, ignore_eos, skip_special, return_token_ids, tokens_as_ids;
    const json_t *add_special; /* bool or NULL: not given */
    bool context_shift, return_cache_info;
    int64_t n_keep; /* -1: the whole prompt */
    int64_t truncate_prompt, priority;
    double max_time;
    /* chat */
    const json_t *add_generation_prompt, *template_kwargs, *documents, *tools;
    const char *reasoning_effort;
    bool continue_final;
};
extern const struct openai_request openai_request_default;

extern const struct generation_dialect openai_completion_dialect, openai_chat_dialect;
extern const struct schema_field openai_completion_fields[], openai_chat_fields[],
    openai_common_fields[];

/* Reads the body. NULL with ex->error; else the JSON, to which `out` points: json_decref it when
 * the job is made. */
json_t *openai_request_read(struct exchange *ex, bool chat, struct openai_request *out,
                            struct schema_unknown *unknown);
/* 0 when `name` (NULL: none given) is served, else -1 with a 404 that names those that are. */
int openai_served(const struct server *s, const char *name, struct api_error *e);
/* Whether the model is served, and the name the answer carries. */
int openai_check_model(struct generation *g, const struct openai_request *r, struct api_error *e);
/* All that both endpoints share but the prompts, which are in g already. */
int openai_fill(struct generation *g, const struct openai_request *r, bool chat,
                const struct schema_unknown *unknown, struct api_error *e);
/* The tokens of r->messages, rendered by the model's template; free(3) ids->ids in any case. */
int openai_chat_prompt(const struct server *s, const struct openai_request *r, struct tok_ids *ids,
                       struct api_error *e);
/* Adds a prompt's tokens to g: [i] of g->job->request.prompts; copies into the arena, frees ids. */
int openai_take_prompt(struct generation *g, int i, struct tok_ids *ids,
                       const struct openai_request *r, struct api_error *e);
int openai_make_prompts(struct generation *g, int n, struct api_error *e);

/* ---- what is written ---- */

void openai_usage(const struct generation *g, struct strbuf *out);
/* {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":.. without the closing brace */
void openai_head(const struct generation *g, const char *object, struct strbuf *out);
/* "finish_reason":..,"stop_reason":.. of a choice that has ended */
void openai_finish(const struct generation *g, const struct generation_choice *c,
                   struct strbuf *out);
/* [1,2,...] */
void openai_ids(const int32_t *ids, int n, struct strbuf *out);
void openai_event_ids(const struct job_event *chain, struct strbuf *out);
/* A token as a JSON string: its text, "token_id:N", or "bytes:\xNN" when it is no whole text. */
void openai_token(const struct generation *g, int32_t id, struct strbuf *out);
void openai_logprob(float logprob, struct strbuf *out);
/* vLLM's prompt_logprobs: [null, {"id": {"logprob","rank","decoded_token"}}, ...] */
void openai_prompt_logprobs(const struct generation *g, const struct generation_prompt *p,
                            struct strbuf *out);
void openai_stream_error(const struct api_error *e, struct strbuf *out);
/* An event that carries choices: what stands before and after them. */
void openai_chunk_begin(const struct generation *g, const char *object, struct strbuf *out);
void openai_chunk_end(const struct generation *g, struct strbuf *out);
/* The usage event, where it was asked for, and the end mark. */
void openai_stream_end(struct generation *g, const char *object, struct strbuf *out);
/* Which n of the candidates of a prompt are shown, best first: out[n] choice indices. */
void openai_ranked(const struct generation *g, int prompt, int *out);

#endif
