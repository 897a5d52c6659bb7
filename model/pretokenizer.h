#ifndef MODEL_PRETOKENIZER_H
#define MODEL_PRETOKENIZER_H

#include "err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Cuts text into the words within which byte-pair encoding merges. Which patterns a model was
 * trained with is a row of a table in pretokenizer.c, found by the name that GGUF files carry in
 * `tokenizer.ggml.pre`. Immutable after creation: any thread, each with its own pretok_work. */

struct pretokenizer;

/* What the row says besides its patterns. */
struct pretok_traits {
    bool ignore_merges; /* a word that is a token stays whole */
    bool nfc;           /* text is composed (Unicode NFC) first */
    bool characters;    /* no byte alphabet: tokens are UTF-8, spaces U+2581, missing ones <0xNN> */
    bool adds_bos;      /* where the file does not say */
};

/* name NULL: the row "default". ERR_UNSUPPORTED names an unknown one. */
int pretok_create(const char *name, struct pretokenizer **out, struct err *err);
void pretok_destroy(struct pretokenizer *p);
struct pretok_traits pretok_traits(const struct pretokenizer *p);
/* The traits of a name without compiling its patterns; false when it is unknown. */
bool pretok_find(const char *name, struct pretok_traits *out);

struct pretok_work;
struct pretok_work *pretok_work_create(void);
void pretok_work_destroy(struct pretok_work *w);
/* Cuts text (well-formed UTF-8, below 4 GiB). *ends holds where each word ends, until the next
 * call. */
int pretok_split(const struct pretokenizer *p, struct pretok_work *w, const char *text,
                 size_t bytes, const uint32_t **ends, size_t *n, struct err *err);

#endif
