#ifndef TESTS_VOCAB_H
#define TESTS_VOCAB_H

#include "model.h"

/* Small vocabularies for tests of the tokenizer: add tokens and rules, then create. */
struct vocab {
    struct tok_vocab v; /* kind, pre, ids and switches are the caller's to set */
    char *texts[1024], *merges[1024];
    size_t text_bytes[1024], merge_bytes[1024];
    float scores[1024];
    int32_t types[1024];
};

void vocab_init(struct vocab *b, enum tok_kind kind, const char *pre);
void vocab_finish(struct vocab *b);
/* A token as files write it; returns its id. */
int32_t vocab_add(struct vocab *b, const char *text, enum tok_type type, float score);
/* All 256 bytes: in GPT-2's alphabet (BPE) or as <0xNN> (SPM). */
void vocab_add_bytes(struct vocab *b);
/* The rule and the token that it makes: "t h". */
int32_t vocab_merge(struct vocab *b, const char *left, const char *right);
/* NULL with the reason printed when it fails. */
struct tokenizer *vocab_create(struct vocab *b);

#endif
