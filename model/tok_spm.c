#include "tok.h"
#include "utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* SentencePiece's BPE: no merge rules; two neighbours merge when their text is a token, the pair of
 * the best score first. */

struct scored {
    float score;
    int32_t id;
};

static int score_compare(const void *a, const void *b)
{
    const struct scored *left = a, *right = b;
    return (left->score < right->score) - (left->score > right->score);
}

int tok_spm_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    if (!vocab->scores)
        return err_set(err, ERR_FORMAT, "the vocabulary has no scores, which its kind needs");
    struct scored *order = calloc((size_t)t->size, sizeof *order);
    t->priorities = calloc((size_t)t->size, sizeof *t->priorities);
    if (!order || !t->priorities) {
        free(order);
        return err_set(err, ERR_NOMEM, "no memory for the scores of %d tokens", t->size);
    }
    for (int32_t id = 0; id < t->size; id++)
        order[id] = (struct scored){isnan(vocab->scores[id]) ? -INFINITY : vocab->scores[id], id};
    qsort(order, (size_t)t->size, sizeof *order, score_compare);
    uint32_t rank = 0;
    for (int32_t i = 0; i < t->size; i++) {
        rank += i > 0 && order[i].score < order[i - 1].score;
        t->priorities[order[i].id] = rank;
    }
    free(order);
    return 0;
}

static bool spm_rule(const struct tokenizer *t, const char *text, const struct tok_symbol *left,
                     const struct tok_symbol *right, struct tok_merge *out)
{
    out->id = tok_word_find(t, text + left->start, left->bytes + right->bytes);
    if (out->id < 0)
        return false;
    out->priority = t->priorities[out->id];
    return true;
}

/* Between a character and a space, unless some word has just that inside. */
static bool may_cut(const struct tokenizer *t, const char *text, size_t at)
{
    return at > 0 && text[at] == ' ' && text[at - 1] != ' ' &&
           !t->joins[(unsigned char)text[at - 1]];
}

int tok_chars_encode(struct tok_work *w, const char *text, size_t bytes, tok_rule *rule)
{
    strbuf_clear(&w->buffer);
    bool prefix = w->t->kind == TOK_SPM && w->t->add_space_prefix;
    char *buffer = strbuf_reserve(&w->buffer, bytes + 1);
    if (!buffer)
        return err_set(w->err, ERR_NOMEM, "no memory to tokenize");
    buffer[0] = ' ';
    size_t n = prefix + tok_piece_decode(w->t, text, bytes, buffer + prefix);
    for (size_t at = 0, step; at < n; at += step) {
        step = utf8_length(buffer + at, n - at);
        step += step == 0;
        struct tok_symbol s = {.start = (uint32_t)at,
                               .bytes = (uint32_t)step,
                               .id = tok_word_find(w->t, buffer + at, step)};
        int code = may_cut(w->t, buffer, at) ? tok_work_merge(w, buffer, rule) : 0;
        if (code == 0)
            code = tok_work_add(w, buffer, s, rule);
        if (code < 0)
            return code;
    }
    return tok_work_merge(w, buffer, rule);
}

int tok_spm_encode(struct tok_work *w, const char *text, size_t bytes)
{
    return tok_chars_encode(w, text, bytes, spm_rule);
}
