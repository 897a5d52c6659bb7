#include "engine_state.h"

#include <stdlib.h>
#include <string.h>

/* Guesses by prompt lookup: a step computes what may come next along with what is due, and keeps it
 * as far as the sampler draws the same. The bits of a row do not depend on its company, so the
 * answer is the same with and without. */

/* Rows of a step that cost little more than one: guesses are for when few sequences run. */
#define CHEAP_ROWS 8

int engine_guess(struct engine *e, struct sequence *s, int decoders, int spare)
{
    int most = CHEAP_ROWS / decoders - 1;
    const int limits[] = {e->config.lookup, spare, s->most - s->generated - 1, e->context - s->n};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        most = limits[i] < most ? limits[i] : most;
    s->guessed = s->right = 0;
    if (most <= 0 || !s->lookup || !sequence_reserve(s, most))
        return 0;
    s->guessed = lookup_guess(s->lookup, s->tokens, s->n, most, s->guess);
    memcpy(s->tokens + s->n, s->guess, (size_t)s->guessed * sizeof *s->guess);
    return s->guessed;
}

bool engine_guess_holds(const struct sequence *s, int position)
{
    return position - s->position == s->right;
}

void engine_guess_drawn(struct sequence *s, int position, int32_t id)
{
    int i = position - s->position;
    if (i < s->guessed && s->guess[i] == id)
        s->right++;
}

void engine_guess_settle(struct engine *e, struct sequence *s)
{
    int end = s->position + 1 + s->right;
    kv_seq_commit(s->kv, end);
    kv_seq_truncate(s->kv, end);
    sequence_store(s, end);
    lookup_learn(s->lookup, s->guessed, s->right);
    e->now.guessed_tokens += (uint64_t)s->guessed;
    e->now.right_tokens += (uint64_t)s->right;
    s->guessed = 0;
}
