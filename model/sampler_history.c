#include "sampler.h"

#include <stdlib.h>
#include <string.h>

/* ---- numbers by token ---- */

static struct token_value *map_slot(const struct token_map *m, int32_t token)
{
    for (uint32_t i = (uint32_t)token * 0x9E3779B1u >> 7;; i++) {
        struct token_value *slot = &m->slots[i & m->mask];
        if (slot->token < 0 || slot->token == token)
            return slot;
    }
}

void token_map_clear(struct token_map *m)
{
    for (size_t i = 0; m->slots && i <= m->mask; i++)
        m->slots[i] = (struct token_value){-1, 0};
    m->n = 0;
}

static int map_grow(struct token_map *m)
{
    struct token_map next = {.mask = m->slots ? m->mask * 2 + 1 : 255};
    next.slots = malloc(((size_t)next.mask + 1) * sizeof *next.slots);
    if (!next.slots)
        return ERR_NOMEM;
    token_map_clear(&next);
    for (size_t i = 0; m->slots && i <= m->mask; i++)
        if (m->slots[i].token >= 0)
            *map_slot(&next, m->slots[i].token) = m->slots[i];
    next.n = m->n;
    free(m->slots);
    *m = next;
    return 0;
}

int32_t *token_map_at(struct token_map *m, int32_t token)
{
    if ((!m->slots || (uint32_t)m->n > m->mask / 2) && map_grow(m) < 0)
        return NULL;
    struct token_value *slot = map_slot(m, token);
    m->n += slot->token < 0;
    slot->token = token;
    return &slot->value;
}

void counts_penalize(const struct token_map *counts, const struct sampler_params *p, float *logits,
                     int vocab)
{
    for (size_t i = 0; counts->slots && i <= counts->mask; i++) {
        const struct token_value *slot = &counts->slots[i];
        if (slot->token < 0 || slot->token >= vocab)
            continue;
        double logit = logits[slot->token];
        logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
        logit -= slot->value * p->frequency_penalty;
        logit -= slot->value > 0 ? p->presence_penalty : 0;
        logits[slot->token] = (float)logit;
    }
}

/* ---- DRY ---- */

static const char *const usual_breakers[] = {"\n", ":", "\"", "*"};

int dry_init(struct dry *d, const struct sampler_params *p, const struct tokenizer *t)
{
    const char *const *breakers = p->dry_breakers ? p->dry_breakers : usual_breakers;
    int n = p->dry_breakers ? p->n_dry_breakers : 4;
    d->t = t;
    d->last_break = -1;
    d->breakers = calloc((size_t)n + 1, sizeof *d->breakers);
    if (!d->breakers)
        return ERR_NOMEM;
    for (int i = 0; i < n && t; i++) {
        size_t bytes = strlen(breakers[i]);
        if (bytes == 0)
            continue;
        if (!(d->breakers[d->n_breakers] = strdup(breakers[i])))
            return ERR_NOMEM;
        d->n_breakers++;
        d->longest = bytes > d->longest ? bytes : d->longest;
    }
    return 0;
}

void dry_finish(struct dry *d)
{
    for (int i = 0; i < d->n_breakers; i++)
        free(d->breakers[i]);
    free(d->breakers);
    free(d->tokens);
    free(d->lengths);
    free(d->repeats.slots);
    strbuf_finish(&d->tail);
}

static bool text_has(const char *text, size_t bytes, const char *part)
{
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= bytes; i++)
        if (memcmp(text + i, part, n) == 0)
            return true;
    return false;
}

static bool breaker_in(const struct dry *d, const char *text, size_t bytes)
{
    for (int i = 0; i < d->n_breakers; i++)
        if (text_has(text, bytes, d->breakers[i]))
            return true;
    return false;
}

/* Whether a breaker ends within the token, which may have begun in the ones before. */
static int breaker_track(struct dry *d, int32_t token)
{
    size_t bytes;
    const char *piece = tok_piece(d->t, token, true, &bytes);
    strbuf_add(&d->tail, piece, bytes);
    if (d->tail.failed)
        return ERR_NOMEM;
    if (bytes && breaker_in(d, d->tail.data, d->tail.len)) {
        d->last_break = d->n - 1;
        strbuf_clear(&d->tail);
    }
    if (d->tail.len >= d->longest)
        strbuf_consume(&d->tail, d->tail.len - (d->longest - 1));
    return 0;
}

static int dry_grow(struct dry *d)
{
    int cap = d->cap ? d->cap * 2 : 256;
    int32_t *tokens = realloc(d->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
        return ERR_NOMEM;
    d->tokens = tokens;
    int32_t *lengths = realloc(d->lengths, (size_t)cap * sizeof *lengths);
    if (!lengths)
        return ERR_NOMEM;
    d->lengths = lengths;
    d->cap = cap;
    return 0;
}

int dry_accept(struct dry *d, int32_t token)
{
    if (d->n == d->cap && dry_grow(d) < 0)
        return ERR_NOMEM;
    d->tokens[d->n++] = token;
    return d->n_breakers ? breaker_track(d, token) : 0;
}

/* lengths[k]: how many tokens before last[-k] equal those at the end, at most `most`; last points
 * to the last token. The Z algorithm, backwards, linear in n. */
static void repeats_find(const int32_t *last, int n, int most, int32_t *lengths)
{
    int left = 0, right = 0; /* of the match that reaches furthest back: [left, right) */
    for (int k = 1; k < n; k++) {
        int length = 0;
        if (k < right)
            length = lengths[k - left] < right - k ? lengths[k - left] : right - k;
        while (length < most && k + length < n && last[-length] == last[-k - length])
            length++;
        lengths[k] = length;
        if (k + length > right) {
            left = k;
            right = k + length;
        }
    }
}

static double power(double base, int n)
{
    double result = 1;
    for (; n > 0 && result < 1e30; n--)
        result *= base;
    return result;
}

/* Tokens that would continue a repetition, by the longest that each of them continues. */
static int repeats_collect(struct dry *d, int n, int least)
{
    const int32_t *last = d->tokens + d->n - 1;
    token_map_clear(&d->repeats);
    for (int k = 1; k < n; k++) {
        if (d->lengths[k] < least)
            continue;
        int32_t *longest = token_map_at(&d->repeats, last[1 - k]);
        if (!longest)
            return ERR_NOMEM;
        *longest = d->lengths[k] > *longest ? d->lengths[k] : *longest;
    }
    return 0;
}

int dry_penalize(struct dry *d, const struct sampler_params *p, float *logits, int vocab)
{
    int n = p->dry_last_n < 0 || p->dry_last_n > d->n ? d->n : p->dry_last_n;
    int most = d->n - 1 - d->last_break, least = p->dry_allowed_length;
    most = most < n ? most : n;
    if (n <= least || most < least)
        return 0;
    repeats_find(d->tokens + d->n - 1, n, most, d->lengths);
    if (repeats_collect(d, n, least) < 0)
        return ERR_NOMEM;
    for (size_t i = 0; d->repeats.slots && i <= d->repeats.mask; i++) {
        const struct token_value *slot = &d->repeats.slots[i];
        size_t bytes = 0;
        if (slot->token < 0 || slot->token >= vocab)
            continue;
        const char *piece = d->t ? tok_piece(d->t, slot->token, true, &bytes) : "";
        if (!breaker_in(d, piece, bytes))
            logits[slot->token] -= (float)(p->dry_multiplier *
                                           power(p->dry_base, slot->value - least));
    }
    return 0;
}
