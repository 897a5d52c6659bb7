#ifndef SERVER_LOOKUP_H
#define SERVER_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

/* Prompt lookup (Saxena 2023): an answer often repeats what was said before, so the tokens that
 * once followed the latest three are a good guess at what comes next. The guess is computed along
 * with the token that is due, for little more than that token costs, and kept as far as the sampler
 * draws the same: the answer's bytes are those without it.
 *
 * One per sequence; engine thread. */

#define LOOKUP_SLOTS 4096
#define LOOKUP_MOST  7 /* tokens of a guess */

struct lookup {
    int32_t after[LOOKUP_SLOTS]; /* where what followed a run of three begins; 0: nothing */
    int indexed;                 /* tokens that have been taken in */
    float hits;                  /* smoothed share of guessed tokens that were right */
    int rest;                    /* tokens to let pass before the next guess, after bad ones */
};

void lookup_init(struct lookup *l);

/* A guess of at most `most` tokens at what follows tokens[0, n), to out; how many. The tokens of
 * earlier calls must not have changed. */
int lookup_guess(struct lookup *l, const int32_t *tokens, int n, int most, int32_t *out);

/* Of a guess of `guessed` tokens, `right` were drawn. Guessing rests where it does not pay. */
void lookup_learn(struct lookup *l, int guessed, int right);

#endif
