#include "sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The order of things, which is vLLM's: what clients of the OpenAI API expect.
 *
 *   1. logit bias
 *   2. repetition, frequency and presence penalty
 *   3. DRY
 *   4. barred tokens: not allowed ones, bad words, end and stop tokens before min_tokens
 *      (temperature 0 ends here with the best, the lowest id among equals)
 *   5. top-n-sigma, top-k: by logit, which temperature does not reorder
 *   6. temperature
 *   7. typical, top-p, min-p: each of what the ones before it left, renormalised
 *   8. XTC
 *   9. one draw
 *
 * Temperature comes before the nucleus is measured: llama.cpp applies it last, so that its top_p
 * looks at the untempered model. With temperature 1 both are the same. */

const struct sampler_params sampler_params_default = {
    .temperature = 1,
    .top_p = 1,
    .typical_p = 1,
    .xtc_threshold = 0.1,
    .repetition_penalty = 1,
    .dry_base = 1.75,
    .dry_allowed_length = 2,
    .dry_last_n = -1,
};

/* Below it, logits divided by it would overflow before anything else could be drawn. */
#define GREEDY_BELOW 1e-5
struct sampler {
    struct sampler_params p; /* its lists are copies */
    int candidate;
    int vocab;                  /* 0: no tokenizer to tell */
    int n_answer, n_answer_cap; /* cap of `answer` */
    int32_t *answer;            /* with bad words: what has been answered */
    struct tok_ids *bad_words;
    int32_t *bias_ids, *allowed, *barred; /* barred: before min_tokens, or always */
    float *bias;
    int n_barred;
    bool counting, repeating; /* penalties, DRY are on */
    struct token_map counts;
    struct dry dry;
};

/* ---- creation ---- */

static int number_check(const char *name, double x, double least, double most, struct err *err)
{
    if (x >= least && x <= most)
        return 0;
    return err_set(err, ERR_ARG, "%s is %g, but must be between %g and %g", name, x, least, most);
}

static int params_check(const struct sampler_params *p, struct err *err)
{
    const struct {
        const char *name;
        double value, least, most;
    } numbers[] = {
        {"temperature", p->temperature, 0, 1e6},
        {"top_p", p->top_p, 0, 1e6},
        {"min_p", p->min_p, -1e6, 1},
        {"typical_p", p->typical_p, 0, 1e6},
        {"top_n_sigma", p->top_n_sigma, -1e6, 1e6},
        {"xtc_probability", p->xtc_probability, -1e6, 1e6},
        {"xtc_threshold", p->xtc_threshold, 0, 1e6},
        {"repetition_penalty", p->repetition_penalty, 1e-6, 1e6},
        {"presence_penalty", p->presence_penalty, -1e6, 1e6},
        {"frequency_penalty", p->frequency_penalty, -1e6, 1e6},
        {"dry_multiplier", p->dry_multiplier, 0, 1e6},
        {"dry_base", p->dry_base, 0, 1e6},
        {"dry_allowed_length", p->dry_allowed_length, 0, 1e9},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int code = number_check(numbers[i].name, numbers[i].value, numbers[i].least,
                                numbers[i].most, err);
        if (code < 0)
            return code;
    }
    return 0;
}

static int ids_check(const struct sampler *s, const char *name, const int32_t *ids, int n,
                     struct err *err)
{
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (s->vocab && ids[i] >= s->vocab))
            return err_set(err, ERR_ARG, "%s names token %d, but the vocabulary has %d tokens",
                           name, ids[i], s->vocab);
    return 0;
}

static void *copy(const void *from, int n, size_t bytes)
{
    void *to = malloc((size_t)n * bytes + 1);
    if (to && n)
        memcpy(to, from, (size_t)n * bytes);
    return to;
}

static int id_compare(const void *a, const void *b)
{
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    return (left > right) - (left < right);
}

/* Ascending, each once, so that gathering can go in place. */
static int ids_sort(int32_t *ids, int n)
{
    int kept = 0;
    qsort(ids, (size_t)n, sizeof *ids, id_compare);
    for (int i = 0; i < n; i++)
        if (kept == 0 || ids[i] != ids[kept - 1])
            ids[kept++] = ids[i];
    return kept;
}

static int lists_copy(struct sampler *s, const struct sampler_params *p)
{
    s->bias_ids = copy(p->bias_ids, p->n_bias, sizeof *p->bias_ids);
    s->bias = copy(p->bias, p->n_bias, sizeof *p->bias);
    s->bad_words = calloc((size_t)p->n_bad_words + 1, sizeof *s->bad_words);
    if (!s->bias_ids || !s->bias || !s->bad_words)
        return ERR_NOMEM;
    if (p->allowed) {
        if (!(s->allowed = copy(p->allowed, p->n_allowed, sizeof *p->allowed)))
            return ERR_NOMEM;
        s->p.n_allowed = ids_sort(s->allowed, p->n_allowed);
    }
    for (int i = 0; i < p->n_bad_words; i++) {
        const struct tok_ids *word = &p->bad_words[i];
        if (!(s->bad_words[i].ids = copy(word->ids, word->n, sizeof *word->ids)))
            return ERR_NOMEM;
        s->bad_words[i].n = word->n;
    }
    return 0;
}

/* End tokens, and before min_tokens the request's stop tokens, too. */
static int barred_copy(struct sampler *s, const struct sampler_params *p, const struct tokenizer *t)
{
    int n = 0;
    const int32_t *ends = t ? tok_ends(t, &n) : NULL;
    if (p->min_tokens <= 0)
        return 0;
    if (!(s->barred = malloc(((size_t)n + (size_t)p->n_stop_ids + 1) * sizeof *s->barred)))
        return ERR_NOMEM;
    for (int i = 0; i < n; i++)
        s->barred[s->n_barred++] = ends[i];
    for (int i = 0; i < p->n_stop_ids; i++)
        s->barred[s->n_barred++] = p->stop_ids[i];
    return 0;
}

static int all_ids_check(const struct sampler *s, const struct sampler_params *p, struct err *err)
{
    int code;
    if ((code = ids_check(s, "logit_bias", p->bias_ids, p->n_bias, err)) < 0 ||
        (code = ids_check(s, "allowed_token_ids", p->allowed, p->n_allowed, err)) < 0 ||
        (code = ids_check(s, "stop_token_ids", p->stop_ids, p->n_stop_ids, err)) < 0)
        return code;
    if (p->allowed && p->n_allowed == 0)
        return err_set(err, ERR_ARG, "the list of allowed tokens is empty");
    for (int i = 0; i < p->n_bad_words; i++)
        if ((code = ids_check(s, "bad_words", p->bad_words[i].ids, p->bad_words[i].n, err)) < 0)
            return code;
    return 0;
}

int sampler_create(const struct sampler_params *params, const struct tokenizer *t, int candidate,
                   struct sampler **out, struct err *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a sampler");
    s->p = *params;
    s->candidate = candidate;
    s->vocab = t ? tok_size(t) : 0;
    s->counting = params->repetition_penalty != 1 || params->presence_penalty != 0 ||
                  params->frequency_penalty != 0;
    s->repeating = params->dry_multiplier > 0 && params->dry_base >= 1 && params->dry_last_n != 0;
    int code = params_check(params, err);
    if (code == 0)
        code = all_ids_check(s, params, err);
    if (code < 0)
        goto fail;
    if (lists_copy(s, params) < 0 || barred_copy(s, params, t) < 0 ||
        (s->repeating && dry_init(&s->dry, params, t) < 0)) {
        code = err_set(err, ERR_NOMEM, "no memory for a sampler");
        goto fail;
    }
    *out = s;
    return 0;
fail:
    sampler_destroy(s);
    return code;
}

void sampler_destroy(struct sampler *s)
{
    if (!s)
        return;
    for (int i = 0; s->bad_words && i < s->p.n_bad_words; i++)
        free(s->bad_words[i].ids);
    free(s->bad_words);
    free(s->bias_ids);
    free(s->bias);
    free(s->allowed);
    free(s->barred);
    free(s->answer);
    free(s->counts.slots);
    dry_finish(&s->dry);
    free(s);
}

/* ---- what has been said ---- */

static int answer_add(struct sampler *s, int32_t token)
{
    if (s->n_answer == s->n_answer_cap) {
        int cap = s->n_answer_cap ? s->n_answer_cap * 2 : 256;
        int32_t *answer = realloc(s->answer, (size_t)cap * sizeof *answer);
        if (!answer)
            return ERR_NOMEM;
        s->answer = answer;
        s->n_answer_cap = cap;
    }
    s->answer[s->n_answer] = token;
    return 0;
}

int sampler_accept(struct sampler *s, int32_t token, bool answer)
{
    int code = 0;
    if (s->counting && token >= 0) {
        int32_t *count = token_map_at(&s->counts, token);
        if (count)
            *count += answer;
        else
            code = ERR_NOMEM;
    }
    if (s->repeating && dry_accept(&s->dry, token) < 0)
        code = ERR_NOMEM;
    if (!answer)
        return code;
    if (s->p.n_bad_words && answer_add(s, token) < 0)
        return ERR_NOMEM; /* the answer keeps its order only without a gap */
    s->n_answer++;
    return code;
}

/* ---- one pick ---- */

static void bad_words_bar(const struct sampler *s, float *logits, int n)
{
    for (int i = 0; i < s->p.n_bad_words; i++) {
        const struct tok_ids *word = &s->bad_words[i];
        int before = word->n - 1;
        if (before < 0 || before > s->n_answer || word->ids[before] >= n)
            continue;
        const int32_t *said = s->answer + s->n_answer - before;
        if (before == 0 || memcmp(said, word->ids, (size_t)before * sizeof *said) == 0)
            logits[word->ids[before]] = -INFINITY;
    }
}

static void logits_edit(struct sampler *s, float *logits, int n)
{
    for (int i = 0; i < s->p.n_bias; i++)
        if (s->bias_ids[i] < n)
            logits[s->bias_ids[i]] += s->bias[i];
    if (s->counting)
        counts_penalize(&s->counts, &s->p, logits, n);
    if (s->repeating)
        dry_penalize(&s->dry, &s->p, logits, n);
    bad_words_bar(s, logits, n);
    if (s->n_answer < s->p.min_tokens)
        for (int i = 0; i < s->n_barred; i++)
            if (s->barred[i] < n)
                logits[s->barred[i]] = -INFINITY;
}

/* Only the allowed ones, in place: their ids ascend, so none is overwritten before it is read. */
static void candidates_init(struct candidates *c, const struct sampler *s, float *logits, int n)
{
    int kept = 0;
    c->w = logits;
    c->n = n;
    c->ids = s->allowed;
    if (!s->allowed)
        return;
    while (kept < s->p.n_allowed && s->allowed[kept] < n) {
        logits[kept] = logits[s->allowed[kept]];
        kept++;
    }
    c->n = kept;
}

static int32_t candidate_id(const struct candidates *c, int i)
{
    return c->ids ? c->ids[i] : i;
}

/* A number in [0, 1) that depends on its arguments only (splitmix64's finish, once for each). */
static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

enum draw { DRAW_TOKEN, DRAW_XTC };

static double draw(const struct sampler *s, enum draw which)
{
    uint64_t z = mix(s->p.seed);
    z = mix(z ^ (uint64_t)(uint32_t)s->candidate);
    z = mix(z ^ (uint64_t)(uint32_t)s->n_answer);
    z = mix(z ^ (uint64_t)which);
    return (double)(z >> 11) * 0x1p-53;
}

static int32_t draw_pick(const struct sampler *s, struct candidates *c, float most)
{
    const struct sampler_params *p = &s->p;
    if (p->top_n_sigma > 0)
        keep_sigma(c, p->top_n_sigma);
    if (p->top_k > 0)
        keep_top_k(c, p->top_k);
    const struct weighing how = {most, (float)(1 / p->temperature)};
    bool typical = p->typical_p<1, xtc = p->xtc_probability> 0;
    double total = candidates_weigh(c, &how, typical ? 1 : p->top_p, typical ? 0 : p->min_p);
    if (typical)
        keep_typical(c, p->typical_p);
    if (typical && p->top_p < 1)
        total = weights_sum(c->w, c->n);
    if (p->top_p < 1)
        keep_top_p(c, p->top_p * total);
    if (p->min_p > 0)
        keep_min_p(c, p->min_p);
    if (xtc && draw(s, DRAW_XTC) < p->xtc_probability)
        drop_top_choices(c, p->xtc_threshold);
    if (typical || xtc || p->top_p < 1 || p->min_p > 0)
        total = weights_sum(c->w, c->n);
    return candidate_id(c, weights_find(c->w, c->n, draw(s, DRAW_TOKEN) * total));
}

/* Infinity cannot be subtracted from itself: the largest float is as good. */
static float infinities_clamp(struct candidates *c)
{
    for (int i = 0; i < c->n; i++)
        c->w[i] = c->w[i] > FLT_MAX ? FLT_MAX : c->w[i];
    return candidates_most(c);
}

int32_t sampler_pick(struct sampler *s, float *logits, int vocab)
{
    struct candidates c;
    int n = s->vocab && s->vocab < vocab ? s->vocab : vocab; /* rows of padding are no tokens */
    logits_edit(s, logits, n);
    candidates_init(&c, s, logits, n);
    if (c.n == 0)
        return s->allowed ? s->allowed[0] : 0;
    float most = candidates_most(&c);
    if (most > FLT_MAX)
        most = infinities_clamp(&c);
    if (s->p.temperature < GREEDY_BELOW || most == -INFINITY)
        return candidate_id(&c, candidates_first(&c, most));
    return draw_pick(s, &c, most);
}
