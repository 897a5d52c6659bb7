#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vocab_init(struct vocab *b, enum tok_kind kind, const char *pre)
{
    memset(b, 0, sizeof *b);
    b->v.kind = kind;
    b->v.pre = pre;
    b->v.bos = b->v.eos = b->v.eot = b->v.unk = b->v.pad = -1;
}

void vocab_finish(struct vocab *b)
{
    for (int i = 0; i < b->v.size; i++)
        free(b->texts[i]);
    for (int i = 0; i < b->v.n_merges; i++)
        free(b->merges[i]);
}

int32_t vocab_add(struct vocab *b, const char *text, enum tok_type type, float score)
{
    int32_t id = b->v.size++;
    b->texts[id] = strdup(text);
    b->text_bytes[id] = strlen(text);
    b->types[id] = (int32_t)type;
    b->scores[id] = score;
    return id;
}

static void add_alphabet(struct vocab *b)
{
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        bool seen = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        unsigned code = seen ? byte : next++;
        char text[3] = {(char)code};
        if (code >= 0x80) {
            text[0] = (char)(0xC0 | code >> 6);
            text[1] = (char)(0x80 | (code & 63));
        }
        vocab_add(b, text, TOK_NORMAL, 0);
    }
}

void vocab_add_bytes(struct vocab *b)
{
    if (b->v.kind == TOK_BPE) {
        add_alphabet(b);
        return;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        vocab_add(b, text, TOK_BYTE, 0);
    }
}

int32_t vocab_merge(struct vocab *b, const char *left, const char *right)
{
    char text[256];
    int i = b->v.n_merges++;
    b->merge_bytes[i] = (size_t)snprintf(text, sizeof text, "%s %s", left, right);
    b->merges[i] = strdup(text);
    snprintf(text, sizeof text, "%s%s", left, right);
    return vocab_add(b, text, TOK_NORMAL, 0);
}

struct tokenizer *vocab_create(struct vocab *b)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    b->v.texts = (const char *const *)b->texts;
    b->v.text_bytes = b->text_bytes;
    b->v.scores = b->scores;
    b->v.types = b->types;
    b->v.merges = (const char *const *)b->merges;
    b->v.merge_bytes = b->merge_bytes;
    if (tok_create(&b->v, &t, &err) < 0) {
        printf("%s\n", err.text);
        return NULL;
    }
    return t;
}
