#include "log.h"
#include "tok.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Byte-pair encoding by explicit merge rules, within the words that the pre-tokenizer cuts. */

static struct tok_pair *pair_slot(const struct tok_pairs *p, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> 32);; i++) {
        struct tok_pair *slot = &p->slots[i & p->mask];
        if (slot->left < 0 || (slot->left == left && slot->right == right))
            return slot;
    }
}

static bool bpe_rule(const struct tokenizer *t, const char *text, const struct tok_symbol *left,
                     const struct tok_symbol *right, struct tok_merge *out)
{
    (void)text;
    if (left->id < 0 || right->id < 0)
        return false;
    const struct tok_pair *slot = pair_slot(&t->pairs, left->id, right->id);
    *out = slot->merge;
    return slot->left >= 0;
}

/* "left right" -> the ids of both and of what they make. False: a token of it is not in the
 * vocabulary, so that the rule can never apply. */
static bool rule_read(const struct tokenizer *t, const char *text, size_t n, char *buffer,
                      int32_t ids[3])
{
    const char *space = n > 1 ? memchr(text + 1, ' ', n - 1) : NULL;
    if (!space)
        return false;
    size_t left_bytes = (size_t)(space - text);
    size_t left = tok_piece_decode(t, text, left_bytes, buffer);
    size_t right = tok_piece_decode(t, space + 1, n - left_bytes - 1, buffer + left);
    ids[0] = tok_word_find(t, buffer, left);
    ids[1] = tok_word_find(t, buffer + left, right);
    ids[2] = tok_word_find(t, buffer, left + right);
    return ids[0] >= 0 && ids[1] >= 0 && ids[2] >= 0;
}

static void rules_read(struct tokenizer *t, const struct tok_vocab *vocab, char *buffer)
{
    int skipped = 0;
    for (int i = 0; i < vocab->n_merges; i++) {
        int32_t ids[3];
        if (!rule_read(t, vocab->merges[i], vocab->merge_bytes[i], buffer, ids)) {
            skipped++;
            continue;
        }
        struct tok_pair *slot = pair_slot(&t->pairs, ids[0], ids[1]);
        if (slot->left < 0)
            *slot = (struct tok_pair){ids[0], ids[1], {(uint32_t)i, ids[2]}};
    }
    if (skipped)
        log_debug("%d of %d merge rules name tokens that the vocabulary does not have", skipped,
                  vocab->n_merges);
}

static int pairs_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    size_t slots = 16, longest = 0;
    while (slots < (size_t)vocab->n_merges * 2)
        slots *= 2;
    for (int i = 0; i < vocab->n_merges; i++)
        longest = vocab->merge_bytes[i] > longest ? vocab->merge_bytes[i] : longest;
    char *buffer = malloc(longest + 1);
    t->pairs.slots = malloc(slots * sizeof *t->pairs.slots);
    if (!buffer || !t->pairs.slots) {
        free(buffer);
        return err_set(err, ERR_NOMEM, "no memory for %d merge rules", vocab->n_merges);
    }
    t->pairs.mask = (uint32_t)(slots - 1);
    for (size_t i = 0; i < slots; i++)
        t->pairs.slots[i].left = -1;
    rules_read(t, vocab, buffer);
    free(buffer);
    return 0;
}

int tok_bpe_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    if (vocab->n_merges < 0 || vocab->n_merges > 1 << 28)
        return err_set(err, ERR_FORMAT, "a vocabulary with %d merge rules", vocab->n_merges);
    t->ignore_merges = vocab->ignore_merges || pretok_traits(t->pre).ignore_merges;
    return pairs_load(t, vocab, err);
}

void tok_bpe_finish(struct tokenizer *t)
{
    pretok_destroy(t->pre);
    free(t->pairs.slots);
}

static int word_encode(struct tok_work *w, const char *word, size_t bytes)
{
    const struct tokenizer *t = w->t;
    int32_t whole = t->ignore_merges || bytes == 1 ? tok_word_find(t, word, bytes) : -1;
    if (whole >= 0)
        return tok_work_emit(w, whole);
    for (size_t i = 0; i < bytes; i++) {
        struct tok_symbol s = {
            .start = (uint32_t)i, .bytes = 1, .id = t->byte_ids[(unsigned char)word[i]]};
        int code = tok_work_add(w, word, s, bpe_rule);
        if (code < 0)
            return code;
    }
    return tok_work_merge(w, word, bpe_rule);
}

static int words_encode(struct tok_work *w, const char *text, size_t bytes)
{
    const uint32_t *ends;
    size_t n, start = 0;
    int code = pretok_split(w->t->pre, w->pre, text, bytes, &ends, &n, w->err);
    for (size_t i = 0; i < n && code == 0; i++) {
        code = word_encode(w, text + start, ends[i] - start);
        start = ends[i];
    }
    return code;
}

/* Everything below U+0300 is composed already. */
static bool may_need_nfc(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] >= 0xCC)
            return true;
    return false;
}

/* text is well-formed UTF-8. */
static int valid_encode(struct tok_work *w, const char *text, size_t bytes)
{
    if (!pretok_traits(w->t->pre).nfc || !may_need_nfc(text, bytes))
        return words_encode(w, text, bytes);
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                      &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return err_set(w->err, n == UTF8PROC_ERROR_NOMEM ? ERR_NOMEM : ERR_LIMIT,
                       "cannot compose the text's characters: %s", utf8proc_errmsg(n));
    int code = words_encode(w, (const char *)composed, (size_t)n);
    free(composed);
    return code;
}

int tok_bpe_encode(struct tok_work *w, const char *text, size_t bytes)
{
    if (pretok_traits(w->t->pre).characters)
        return tok_chars_encode(w, text, bytes, bpe_rule);
    for (size_t at = 0; at < bytes;) {
        size_t valid = utf8_valid(text + at, bytes - at);
        int code = valid ? valid_encode(w, text + at, valid) : tok_work_emit_bytes(w, text + at, 1);
        if (code < 0)
            return code;
        at += valid ? valid : 1;
    }
    return 0;
}
