#include "tok.h"

#include <stdlib.h>
#include <string.h>

/* What both kinds of tokenizer share: creation, finding special tokens, decoding. */

static const struct tok_kind_row {
    int (*load)(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err);
    int (*encode)(struct tok_work *w, const char *text, size_t bytes);
} kinds[] = {
    [TOK_BPE] = {tok_bpe_load, tok_bpe_encode},
    [TOK_SPM] = {tok_spm_load, tok_spm_encode},
};

int tok_create(const struct tok_vocab *vocab, struct tokenizer **out, struct err *err)
{
    int code;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for a tokenizer");
    t->kind = vocab->kind;
    t->add_bos = vocab->add_bos && vocab->bos >= 0;
    t->add_eos = vocab->add_eos && vocab->eos >= 0;
    t->add_space_prefix = vocab->add_space_prefix;
    if (t->kind == TOK_BPE && (code = pretok_create(vocab->pre, &t->pre, err)) < 0)
        goto fail;
    if ((code = tok_vocab_load(t, vocab, err)) < 0 ||
        (code = tok_specials_load(t, vocab, err)) < 0 ||
        (code = kinds[t->kind].load(t, vocab, err)) < 0)
        goto fail;
    *out = t;
    return 0;
fail:
    tok_destroy(t);
    return code;
}

void tok_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    tok_vocab_finish(t);
    tok_specials_finish(t);
    tok_bpe_finish(t);
    free(t->priorities);
    free(t);
}

bool tok_default_bos(enum tok_kind kind, const char *pre)
{
    struct pretok_traits traits = {0};
    return kind == TOK_SPM || (pretok_find(pre, &traits) && traits.adds_bos);
}

/* ---- encoding ---- */

/* Encodes text[from, to), less what the special tokens beside it swallow. */
static int stretch_encode(struct tok_work *w, const char *text, size_t from, size_t to,
                          int32_t before, int32_t behind)
{
    const struct tokenizer *t = w->t;
    if (before >= 0 && t->flags[before] & TOK_FLAG_STRIP_RIGHT)
        while (from < to && tok_is_space(text[from]))
            from++;
    if (behind >= 0 && t->flags[behind] & TOK_FLAG_STRIP_LEFT)
        while (from < to && tok_is_space(text[to - 1]))
            to--;
    return from == to ? 0 : kinds[t->kind].encode(w, text + from, to - from);
}

static int text_encode(struct tok_work *w, const char *text, size_t bytes,
                       const struct tok_options *options)
{
    const struct tokenizer *t = w->t;
    const unsigned char *plain = options->plain;
    size_t from = 0, at = 0;
    int32_t before = -1;
    while (at < bytes) {
        int32_t id = tok_special_match(t, text + at, bytes - at, options->special,
                                       plain ? plain + at : NULL);
        if (id < 0) {
            at++;
            continue;
        }
        int code = stretch_encode(w, text, from, at, before, id);
        if (code < 0 || (code = tok_work_emit(w, id)) < 0)
            return code;
        before = id;
        from = at += t->offsets[id + 1] - t->offsets[id];
    }
    return stretch_encode(w, text, from, bytes, before, -1);
}

static int work_encode(struct tok_work *w, const char *text, size_t bytes,
                       const struct tok_options *options)
{
    const struct tokenizer *t = w->t;
    int code = 0;
    if (options->add_bos && t->add_bos)
        code = tok_work_emit(w, t->bos);
    if (code == 0)
        code = text_encode(w, text, bytes, options);
    if (code == 0 && options->add_bos && t->add_eos)
        code = tok_work_emit(w, t->eos);
    return code;
}

static void work_finish(struct tok_work *w)
{
    free(w->symbols);
    free(w->heap);
    pretok_work_destroy(w->pre);
    strbuf_finish(&w->buffer);
}

int tok_encode(const struct tokenizer *t, const char *text, size_t bytes,
               const struct tok_options *options, struct tok_ids *out, struct err *err)
{
    if (bytes > 1u << 30)
        return err_set(err, ERR_LIMIT, "a text of %zu bytes, but at most 1 GiB can be tokenized",
                       bytes);
    struct tok_work w = {.t = t, .out = out, .err = err};
    int n = out->n, code = 0;
    if (t->pre && !(w.pre = pretok_work_create()))
        code = err_set(err, ERR_NOMEM, "no memory to tokenize");
    if (code == 0)
        code = work_encode(&w, text, bytes, options);
    if (code < 0)
        out->n = n; /* nothing was appended */
    work_finish(&w);
    return code;
}

/* ---- decoding ---- */

const char *tok_piece(const struct tokenizer *t, int32_t id, bool special, size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || id >= t->size)
        return "";
    if (!special && (t->types[id] == TOK_CONTROL || t->types[id] == TOK_UNKNOWN))
        return "";
    return tok_bytes(t, id, bytes);
}

int tok_decode(const struct tokenizer *t, const int32_t *ids, int n, bool special,
               struct strbuf *out)
{
    bool strip = t->kind == TOK_SPM && t->add_space_prefix;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = tok_piece(t, ids[i], special, &bytes);
        if (strip && bytes > 0) {
            strip = false;
            bool space = piece[0] == ' ';
            piece += space;
            bytes -= space;
        }
        strbuf_add(out, piece, bytes);
    }
    return out->failed ? ERR_NOMEM : 0;
}

/* ---- facts ---- */

int tok_size(const struct tokenizer *t)
{
    return t->size;
}

enum tok_type tok_type_of(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size ? (enum tok_type)t->types[id] : TOK_UNUSED;
}

bool tok_is_end(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->flags[id] & TOK_FLAG_END;
}

const int32_t *tok_ends(const struct tokenizer *t, int *n)
{
    *n = t->n_ends;
    return t->ends;
}

int32_t tok_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tok_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

int32_t tok_find(const struct tokenizer *t, const char *text, size_t bytes)
{
    int32_t id = tok_special_find(t, text, bytes);
    if (id < 0)
        id = tok_word_find(t, text, bytes);
    return id < 0 && bytes == 1 ? t->byte_ids[(unsigned char)text[0]] : id;
}
