#ifndef SERVER_INFILL_H
#define SERVER_INFILL_H

#include "model.h"

/* Fill-in-the-middle: which special tokens of a vocabulary stand around what comes before and after
 * the hole. */

struct infill {
    int32_t before, after, middle; /* middle: -1 where the model has none */
    bool after_first;              /* the text after the hole is written first */
};

/* False when the vocabulary has no such tokens. */
bool infill_find(const struct tokenizer *t, struct infill *out);

#endif
