#include "sequence.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool sequence_reserve(struct sequence *s, int n)
{
    if (s->cap - s->n >= n)
        return true;
    int cap = s->cap + s->cap / 2 + 64;
    int32_t *tokens = realloc(s->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
        return false;
    s->tokens = tokens;
    s->cap = cap;
    return true;
}

static bool add_token(struct sequence *s, int32_t id)
{
    if (!sequence_reserve(s, 1))
        return false;
    s->tokens[s->n++] = id;
    return true;
}

static int add_lookup(struct sequence *s, struct err *err)
{
    s->lookup = malloc(sizeof *s->lookup);
    if (!s->lookup)
        return err_set(err, ERR_NOMEM, "no memory for a sequence");
    lookup_init(s->lookup);
    return 0;
}

int sequence_create(struct request *r, const struct tokenizer *t, int context, bool lookup,
                    struct sequence **out, struct err *err)
{
    const struct job_request *q = &r->job->request;
    struct sequence *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a sequence");
    s->request = r;
    s->choice = r->started;
    s->prompt = s->choice / q->candidates;
    s->stop_token = -1;
    s->turn = r->turn;
    const struct tok_ids *prompt = &q->prompts[s->prompt];
    const struct stream_stops stops = {q->stop, q->stop_bytes, q->n_stop, q->include_stop};
    stream_init(&s->stream, &stops);
    int rc = sampler_create(&q->sampling, t, s->choice % q->candidates, &s->sampler, err);
    if (rc == 0 && lookup)
        rc = add_lookup(s, err);
    for (int i = 0; i < prompt->n && rc == 0; i++) {
        if (!add_token(s, prompt->ids[i]) || sampler_accept(s->sampler, prompt->ids[i], false))
            rc = err_set(err, ERR_NOMEM, "no memory for a prompt of %d tokens", prompt->n);
    }
    if (rc) {
        sequence_destroy(s);
        return rc;
    }
    s->prompt_n = prompt->n;
    bool endless = q->shift && q->max_tokens < 0;
    s->most = endless ? INT_MAX : q->max_tokens;
    if (!q->shift && (q->max_tokens < 0 || q->max_tokens > context - s->n))
        s->most = context - s->n;
    bool scores = q->prompt_logprobs != JOB_NO_LOGPROBS && s->choice % q->candidates == 0;
    s->scored = scores ? 0 : s->prompt_n;
    *out = s;
    return 0;
}

void sequence_destroy(struct sequence *s)
{
    if (!s)
        return;
    kv_seq_close(s->kv);
    sampler_destroy(s->sampler);
    stream_finish(&s->stream);
    free(s->lookup);
    free(s->tokens);
    free(s);
}

int sequence_left(const struct sequence *s)
{
    return s->n - (s->kv ? kv_seq_length(s->kv) : 0);
}

bool sequence_decodes(const struct sequence *s)
{
    return s->generated > 0 && sequence_left(s) == 1;
}

int sequence_cached(const struct sequence *s)
{
    int had = s->known < s->prompt_n ? s->known : s->prompt_n;
    return had - s->computed;
}

int sequence_store(struct sequence *s, int end)
{
    int fresh_from = s->position > s->known ? s->position : s->known;
    int fresh = end > fresh_from ? end - fresh_from : 0;
    if (!s->announced)
        s->computed += fresh;
    if (end > s->known)
        s->known = end;
    return s->grant - fresh;
}

int sequence_reusable(const struct sequence *s)
{
    int most = s->n - 1;
    if (s->shifted)
        return 0;
    if (s->scored < s->prompt_n && s->scored - 1 < most)
        most = s->scored - 1;
    return most < 0 ? 0 : most;
}

void sequence_shift(struct sequence *s, int context)
{
    int keep = s->request->job->request.keep;
    if (keep < 0)
        keep = s->prompt_n;
    if (keep > context / 2)
        keep = context / 2;
    int latest = (context - keep) / 2;
    memmove(s->tokens + keep, s->tokens + s->n - latest, (size_t)latest * sizeof *s->tokens);
    s->n = keep + latest;
    s->prompt_n = s->n < s->prompt_n ? s->n : s->prompt_n;
    s->scored = s->prompt_n;
    s->known = s->n;
    s->shifted = true;
    if (s->lookup)
        lookup_init(s->lookup);
}

static bool is_stop_token(const struct sequence *s, const struct tokenizer *t, int32_t id)
{
    const struct job_request *q = &s->request->job->request;
    const struct sampler_params *p = &q->sampling;
    if (!q->ignore_eos && tok_is_end(t, id))
        return true;
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

int sequence_accept(struct sequence *s, const struct tokenizer *t, struct job_token *token,
                    enum job_finish *finish)
{
    const struct job_request *q = &s->request->job->request;
    bool ends = is_stop_token(s, t, token->id);
    size_t bytes = 0;
    const char *piece = tok_piece(t, token->id, q->special, &bytes);
    if (ends && !q->include_stop)
        bytes = 0;
    if (!add_token(s, token->id) || sampler_accept(s->sampler, token->id, true)) {
        free(token->top);
        return ERR_NOMEM;
    }
    s->generated++;
    s->logprob_sum += token->logprob;
    int stop = stream_push(&s->stream, token, piece, bytes, s->generated > q->sampling.min_tokens);
    if (s->stream.failed)
        return ERR_NOMEM;
    *finish = FINISH_NONE;
    if (stop >= 0) {
        s->stop_string = q->stop[stop];
        *finish = FINISH_STOP;
    } else if (ends) {
        s->stop_token = token->id;
        *finish = FINISH_STOP;
    } else if (s->generated >= s->most) {
        *finish = FINISH_LENGTH;
    }
    return 0;
}
