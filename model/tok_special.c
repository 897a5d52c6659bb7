#define _GNU_SOURCE /* strcasestr */
#include "tok.h"

#include <stdlib.h>
#include <string.h>

/* Tokens that mean more than their text: how to find them, which of them end an answer, and what
 * published files leave unsaid about them. */

static const char *const end_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

/* A text that does not end an answer where others are in the vocabulary: in the "harmony" format
 * <|end|> closes one message of several. */
static const struct {
    const char *text, *with[2];
} end_exceptions[] = {
    {"<|end|>", {"<|return|>", "<|call|>"}},
    {"<|end|>", {"<|flush|>", "<|call|>"}},
    {"<|end|>", {"<|flush|>", "<|calls|>"}},
    {"</s>", {"<|tool_response>", "<|tool_response>"}},
};

/* Which special tokens swallow the white space beside them: tokenizer.json says so, GGUF does not.
 * Rows apply in order. */
static const struct {
    const char *model, *pre; /* parts of the names; NULL: any */
    const char *token;       /* NULL: all special tokens */
    uint8_t strip;
} strip_rows[] = {
    {"phi-3", NULL, NULL, TOK_FLAG_STRIP_RIGHT},
    {"phi-3", NULL, "<unk>", 0},
    {"phi-3", NULL, "<s>", 0},
    {"phi-3", NULL, "<|endoftext|>", 0},
    {"phi3", NULL, NULL, TOK_FLAG_STRIP_RIGHT},
    {"phi3", NULL, "<unk>", 0},
    {"phi3", NULL, "<s>", 0},
    {"phi3", NULL, "<|endoftext|>", 0},
    {NULL, "jina-v2-", "<mask>", TOK_FLAG_STRIP_LEFT},
    {"modern-bert", NULL, "[MASK]", TOK_FLAG_STRIP_LEFT},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static bool is_special(const struct tokenizer *t, int32_t id)
{
    uint8_t type = t->types[id];
    return (type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN) &&
           t->offsets[id] != t->offsets[id + 1];
}

static int bytes_compare(const char *a, size_t n, const char *b, size_t m)
{
    int order = memcmp(a, b, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static int id_compare(const void *a, const void *b, void *arg)
{
    const struct tokenizer *t = arg;
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    size_t n, m;
    const char *s = tok_bytes(t, left, &n), *u = tok_bytes(t, right, &m);
    int order = bytes_compare(s, n, u, m);
    return order ? order : (left > right) - (left < right);
}

/* First of the tokens [low, high) whose byte number `depth` is at least `byte`; shorter ones come
 * first. */
static int range_find(const struct tokenizer *t, int low, int high, size_t depth, unsigned byte)
{
    while (low < high) {
        int middle = low + (high - low) / 2;
        size_t n;
        const char *piece = tok_bytes(t, t->specials.ids[middle], &n);
        if (n <= depth || (unsigned char)piece[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int32_t tok_special_find(const struct tokenizer *t, const char *text, size_t bytes)
{
    const struct tok_specials *s = &t->specials;
    int low = 0, high = s->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        size_t n;
        const char *piece = tok_bytes(t, s->ids[middle], &n);
        if (bytes_compare(piece, n, text, bytes) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    size_t n;
    const char *piece = low < s->n ? tok_bytes(t, s->ids[low], &n) : NULL;
    return piece && n == bytes && memcmp(piece, text, n) == 0 ? s->ids[low] : -1;
}

static void ends_mark(struct tokenizer *t, const struct tok_vocab *vocab)
{
    for (size_t i = 0; i < COUNT(end_texts); i++) {
        int32_t id = tok_special_find(t, end_texts[i], strlen(end_texts[i]));
        if (id >= 0 && t->types[id] != TOK_UNKNOWN)
            t->flags[id] |= TOK_FLAG_END;
    }
    if (vocab->eos >= 0)
        t->flags[vocab->eos] |= TOK_FLAG_END;
    if (vocab->eot >= 0)
        t->flags[vocab->eot] |= TOK_FLAG_END;
    for (size_t i = 0; i < COUNT(end_exceptions); i++) {
        int32_t id = tok_special_find(t, end_exceptions[i].text, strlen(end_exceptions[i].text));
        const char *const *with = end_exceptions[i].with;
        if (id >= 0 && id != vocab->eos && tok_special_find(t, with[0], strlen(with[0])) >= 0 &&
            tok_special_find(t, with[1], strlen(with[1])) >= 0)
            t->flags[id] &= (uint8_t)~TOK_FLAG_END;
    }
}

static int ends_list(struct tokenizer *t)
{
    for (int32_t id = 0; id < t->size; id++)
        t->n_ends += t->flags[id] & TOK_FLAG_END;
    t->ends = malloc(((size_t)t->n_ends + 1) * sizeof *t->ends);
    if (!t->ends)
        return ERR_NOMEM;
    for (int32_t id = 0, n = 0; id < t->size; id++)
        if (t->flags[id] & TOK_FLAG_END)
            t->ends[n++] = id;
    return 0;
}

static void strips_mark(struct tokenizer *t, const struct tok_vocab *vocab)
{
    for (size_t i = 0; i < COUNT(strip_rows); i++) {
        const char *model = strip_rows[i].model, *pre = strip_rows[i].pre;
        if ((model && (!vocab->name || !strcasestr(vocab->name, model))) ||
            (pre && (!vocab->pre || !strstr(vocab->pre, pre))))
            continue;
        for (int j = 0; j < t->specials.n; j++) {
            int32_t id = t->specials.ids[j];
            size_t n;
            const char *piece = tok_bytes(t, id, &n), *token = strip_rows[i].token;
            if (token && (strlen(token) != n || memcmp(piece, token, n) != 0))
                continue;
            t->flags[id] &= (uint8_t) ~(TOK_FLAG_STRIP_LEFT | TOK_FLAG_STRIP_RIGHT);
            t->flags[id] |= strip_rows[i].strip;
        }
    }
}

int tok_specials_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    struct tok_specials *s = &t->specials;
    for (int32_t id = 0; id < t->size; id++)
        s->n += is_special(t, id);
    s->ids = calloc((size_t)s->n + 1, sizeof *s->ids);
    if (!s->ids)
        return err_set(err, ERR_NOMEM, "no memory for %d special tokens", s->n);
    s->n = 0;
    for (int32_t id = 0; id < t->size; id++)
        if (is_special(t, id))
            s->ids[s->n++] = id;
    qsort_r(s->ids, (size_t)s->n, sizeof *s->ids, id_compare, t);
    for (unsigned b = 0; b < 256; b++)
        s->first[b] = range_find(t, 0, s->n, 0, b);
    s->first[256] = s->n;
    ends_mark(t, vocab);
    strips_mark(t, vocab);
    if (ends_list(t) < 0)
        return err_set(err, ERR_NOMEM, "no memory for %d special tokens", s->n);
    return 0;
}

void tok_specials_finish(struct tokenizer *t)
{
    free(t->specials.ids);
    free(t->ends);
}

static bool may_match(const struct tokenizer *t, int32_t id, bool control, bool plain)
{
    if (t->types[id] != TOK_USER && !control)
        return false;
    return !plain || (t->types[id] == TOK_USER && t->flags[id] & TOK_FLAG_SPACE);
}

int32_t tok_special_match(const struct tokenizer *t, const char *text, size_t bytes, bool control,
                          const unsigned char *plain)
{
    unsigned byte = (unsigned char)text[0];
    int low = t->specials.first[byte], high = t->specials.first[byte + 1];
    int32_t best = -1;
    bool marked = false;
    for (size_t depth = 0; depth < bytes && low < high; depth++) {
        byte = (unsigned char)text[depth];
        low = range_find(t, low, high, depth, byte);
        high = range_find(t, low, high, depth, byte + 1);
        marked = marked || (plain && plain[depth]);
        if (low == high)
            break;
        int32_t id = t->specials.ids[low];
        if (t->offsets[id + 1] - t->offsets[id] == depth + 1 && may_match(t, id, control, marked))
            best = id;
    }
    return best;
}
