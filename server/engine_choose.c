#include "engine_state.h"

#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What rows of logits say: the token drawn from each, or how likely a prompt token was. The rows of
 * a step are independent but for those behind guesses, so the pool's workers share them; the engine
 * thread then does with the results what concerns more than one sequence. */

static int raw_rows(int threads)
{
    return threads < MODEL_LOGIT_ROWS ? threads : MODEL_LOGIT_ROWS;
}

int engine_logit_rows(int threads)
{
    return MODEL_LOGIT_ROWS + raw_rows(threads);
}

/* `top`: so many of the likeliest along with it; -1: all. */
static int fill_token(const struct engine *e, const float *logits, int32_t id, int top,
                      struct job_token *out)
{
    int vocab = e->plan->vocabulary;
    double log_sum;
    int k = top < 0 ? vocab : top;
    *out = (struct job_token){.id = id};
    if (k > 0) {
        out->top = malloc((size_t)k * sizeof *out->top);
        if (!out->top)
            return ERR_NOMEM;
        out->n_top = logprobs_top(logits, vocab, top, out->top, &log_sum);
    } else {
        log_sum = logits_log_sum(logits, vocab);
    }
    out->logprob = logits_logprob(logits[id], log_sum);
    return 0;
}

/* raw: room for a copy of the logits, which the sampler changes. */
static int draw(const struct engine *e, struct sequence *s, float *logits, float *raw,
                struct job_token *out)
{
    const struct job_request *q = &s->request->job->request;
    int vocab = e->plan->vocabulary;
    bool wants_logprob = q->logprobs != JOB_NO_LOGPROBS || q->candidates > 1;
    if (wants_logprob)
        memcpy(raw, logits, (size_t)vocab * sizeof *logits);
    *out = (struct job_token){.id = sampler_pick(s->sampler, logits, vocab)};
    if (!wants_logprob)
        return 0;
    return fill_token(e, raw, out->id, q->logprobs == JOB_NO_LOGPROBS ? 0 : q->logprobs, out);
}

static void choose(const struct engine *e, struct want *w, float *logits, float *raw)
{
    struct sequence *s = w->s;
    w->corrupted = isnan(logits[0]); /* a state that is no number makes every logit none */
    if (w->kind == WANT_SCORE)
        w->rc = fill_token(e, logits, s->tokens[w->position + 1],
                           s->request->job->request.prompt_logprobs, &w->token);
    else
        w->rc = draw(e, s, logits, raw, &w->token);
    w->chosen = true;
}

static float *row(const struct engine *e, float *rows, int i)
{
    return rows + (size_t)i * (size_t)e->plan->vocabulary;
}

struct choosing {
    const struct engine *e;
    struct want *wants;
    bool by_worker; /* there is a raw row for each worker, else for each want */
};

static void choose_some(void *arg, int worker, int64_t first, int64_t last)
{
    const struct choosing *c = arg;
    const struct engine *e = c->e;
    for (int i = (int)first; i < (int)last; i++)
        if (c->wants[i].kind != WANT_GUESSED)
            choose(e, &c->wants[i], row(e, e->logits, i),
                   row(e, e->raw, c->by_worker ? worker : i));
}

void engine_choose(struct engine *e, struct want *wants, int n)
{
    int threads = pool_threads(e->config.pool);
    struct choosing c = {e, wants, threads <= raw_rows(threads)};
    pool_run(e->config.pool, choose_some, &c, n, 1);
}

void engine_choose_late(struct engine *e, struct want *wants, int i)
{
    if (!wants[i].chosen)
        choose(e, &wants[i], row(e, e->logits, i), e->raw);
}
