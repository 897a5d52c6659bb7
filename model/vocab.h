#ifndef MODEL_VOCAB_H
#define MODEL_VOCAB_H

#include "model.h"
#include "weights.h"

/* The tokenizer that the file's settings describe. */
int vocab_create(const struct weights *w, int vocabulary, struct tokenizer **out, struct err *err);

#endif
