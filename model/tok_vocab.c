#include "mem.h"
#include "tok.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

/* ---- pieces: from a file's alphabet to the bytes that a token stands for ---- */

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, for a space */

/* GPT-2 writes each byte as a character that can be seen: itself where it is printable, else the
 * next free one from U+0100 on. */
static bool byte_printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static int byte_of(uint32_t code)
{
    if (code < 256)
        return byte_printable(code) ? (int)code : -1;
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++)
        if (!byte_printable(b) && next++ == code)
            return (int)b;
    return -1;
}

/* The whole alphabet lies below U+0144: one or two bytes of UTF-8. A character outside of it stays
 * as it is. */
static size_t alphabet_decode(const char *text, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0, step; i < n; i += step) {
        const unsigned char *u = (const unsigned char *)text + i;
        step = utf8_length(text + i, n - i);
        uint32_t code = step == 1   ? u[0]
                        : step == 2 ? (u[0] & 31u) << 6 | (u[1] & 63u)
                                    : UINT32_MAX;
        int byte = code < 0x180 ? byte_of(code) : -1;
        step += step == 0;
        if (byte >= 0) {
            out[used++] = (char)byte;
        } else {
            memcpy(out + used, text + i, step);
            used += step;
        }
    }
    return used;
}

static size_t spaces_decode(const char *text, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        bool mark = n - i >= 3 && memcmp(text + i, SPACE_MARK, 3) == 0;
        out[used++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return used;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" -> 10, else -1. */
static int byte_token(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static bool has_alphabet(const struct tokenizer *t)
{
    return t->kind == TOK_BPE && !pretok_traits(t->pre).characters;
}

size_t tok_piece_decode(const struct tokenizer *t, const char *text, size_t n, char *out)
{
    return has_alphabet(t) ? alphabet_decode(text, n, out) : spaces_decode(text, n, out);
}

static size_t piece_write(const struct tokenizer *t, enum tok_type type, const char *text, size_t n,
                          char *out)
{
    int byte = type == TOK_BYTE ? byte_token(text, n) : -1;
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    bool raw = type == TOK_CONTROL || type == TOK_UNKNOWN || (type == TOK_USER && has_alphabet(t));
    if (!raw)
        return tok_piece_decode(t, text, n, out);
    memcpy(out, text, n);
    return n;
}

static enum tok_type type_read(const struct tok_vocab *vocab, int32_t id)
{
    int32_t type = vocab->types ? vocab->types[id] : TOK_NORMAL;
    return type >= TOK_NORMAL && type <= TOK_BYTE ? (enum tok_type)type : TOK_NORMAL;
}

static int pieces_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    size_t total = 1, size = (size_t)t->size;
    for (size_t id = 0; id < size; id++)
        if (!mem_add(total, vocab->text_bytes[id], &total))
            return err_set(err, ERR_FORMAT, "the vocabulary's texts are impossibly long");
    t->text = malloc(total);
    t->offsets = calloc(size + 1, sizeof *t->offsets);
    t->types = calloc(size, 1);
    t->flags = calloc(size, 1);
    if (!t->text || !t->offsets || !t->types || !t->flags)
        return err_set(err, ERR_NOMEM, "no memory for a vocabulary of %d tokens", vocab->size);
    for (int32_t id = 0; id < vocab->size; id++) {
        t->types[id] = (uint8_t)type_read(vocab, id);
        t->offsets[id + 1] = t->offsets[id] + piece_write(t, t->types[id], vocab->texts[id],
                                                          vocab->text_bytes[id],
                                                          t->text + t->offsets[id]);
    }
    return 0;
}

/* ---- words: the tokens that merging may produce ---- */

static uint32_t bytes_hash(const char *bytes, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u, v;
    for (; n >= 8; n -= 8, bytes += 8) {
        memcpy(&v, bytes, 8);
        h = (h ^ v) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    v = 0;
    memcpy(&v, bytes, n);
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

/* The slot of these bytes, or the empty one where they belong. */
static uint32_t *word_slot(const struct tokenizer *t, const char *bytes, size_t n)
{
    for (uint32_t i = bytes_hash(bytes, n);; i++) {
        uint32_t *slot = &t->words.slots[i & t->words.mask];
        if (*slot == 0)
            return slot;
        size_t length;
        const char *piece = tok_bytes(t, (int32_t)*slot - 1, &length);
        if (length == n && memcmp(piece, bytes, n) == 0)
            return slot;
    }
}

int32_t tok_word_find(const struct tokenizer *t, const char *bytes, size_t n)
{
    return n == 0 || n > t->longest ? -1 : (int32_t)*word_slot(t, bytes, n) - 1;
}

static bool all_space(const char *text, size_t n)
{
    while (n && tok_is_space(text[n - 1]))
        n--;
    return n == 0;
}

/* A token that is no more than its text may come out of merging; one that means something else may
 * not, or else a user's message could spell it. BPE's user tokens are harmless: only an explicit
 * merge rule makes them. */
static bool is_word(const struct tokenizer *t, int32_t id, enum tok_type type)
{
    if (t->types[id] != type || t->offsets[id] == t->offsets[id + 1])
        return false;
    return type == TOK_NORMAL || t->kind == TOK_BPE || t->flags[id] & TOK_FLAG_SPACE;
}

static void words_add(struct tokenizer *t, enum tok_type type)
{
    for (int32_t id = 0; id < t->size; id++) {
        if (!is_word(t, id, type))
            continue;
        size_t n;
        const char *piece = tok_bytes(t, id, &n);
        uint32_t *slot = word_slot(t, piece, n);
        if (*slot)
            continue;
        *slot = (uint32_t)id + 1;
        t->longest = n > t->longest ? n : t->longest;
        for (size_t i = 1; i < n; i++)
            if (piece[i] == ' ' && piece[i - 1] != ' ')
                t->joins[(unsigned char)piece[i - 1]] = true;
    }
}

static int words_load(struct tokenizer *t, struct err *err)
{
    size_t slots = 16;
    while (slots < (size_t)t->size * 2)
        slots *= 2;
    t->words.slots = calloc(slots, sizeof *t->words.slots);
    if (!t->words.slots)
        return err_set(err, ERR_NOMEM, "no memory for a vocabulary of %d tokens", t->size);
    t->words.mask = (uint32_t)(slots - 1);
    for (int32_t id = 0; id < t->size; id++)
        if (all_space(t->text + t->offsets[id], t->offsets[id + 1] - t->offsets[id]))
            t->flags[id] |= TOK_FLAG_SPACE;
    words_add(t, TOK_NORMAL);
    words_add(t, TOK_USER);
    return 0;
}

static void bytes_load(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_ids[b] = has_alphabet(t) ? tok_word_find(t, &byte, 1) : -1;
    }
    for (int32_t id = 0; id < t->size; id++)
        if (t->types[id] == TOK_BYTE && t->offsets[id + 1] - t->offsets[id] == 1)
            t->byte_ids[(unsigned char)t->text[t->offsets[id]]] = id;
}

static int id_check(const char *name, int32_t id, int size, struct err *err)
{
    if (id >= -1 && id < size)
        return 0;
    return err_set(err, ERR_FORMAT, "the %s token is number %d, but the vocabulary has %d tokens",
                   name, id, size);
}

int tok_vocab_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err)
{
    if (vocab->size <= 0 || vocab->size > 1 << 28)
        return err_set(err, ERR_FORMAT, "a vocabulary of %d tokens", vocab->size);
    int code;
    if ((code = id_check("BOS", vocab->bos, vocab->size, err)) < 0 ||
        (code = id_check("EOS", vocab->eos, vocab->size, err)) < 0 ||
        (code = id_check("EOT", vocab->eot, vocab->size, err)) < 0 ||
        (code = id_check("unknown", vocab->unk, vocab->size, err)) < 0)
        return code;
    t->size = vocab->size;
    t->bos = vocab->bos;
    t->eos = vocab->eos;
    t->unk = vocab->unk;
    if ((code = pieces_load(t, vocab, err)) < 0 || (code = words_load(t, err)) < 0)
        return code;
    bytes_load(t);
    return 0;
}

void tok_vocab_finish(struct tokenizer *t)
{
    free(t->text);
    free(t->offsets);
    free(t->types);
    free(t->flags);
    free(t->words.slots);
}
