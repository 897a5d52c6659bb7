#ifndef MODEL_PRETOK_TABLE_H
#define MODEL_PRETOK_TABLE_H

#include "pretokenizer.h"

enum { PRETOK_STEPS = 6, PRETOK_NAMES = 16 };

/* Each step is a pattern (PCRE2, UTF and UCP) applied to every word found so far: a match becomes a
 * word of its own, and what lies between matches stays together. */
struct pretok_row {
    const char *names[PRETOK_NAMES];
    const char *steps[PRETOK_STEPS];
    unsigned threes; /* bit i: matches of step i are cut into groups of three, from their end */
    struct pretok_traits traits;
};

extern const struct pretok_row pretok_rows[];
extern const int pretok_n_rows;

#endif
