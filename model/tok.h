#ifndef MODEL_TOK_H
#define MODEL_TOK_H

#include "model.h"
#include "pretokenizer.h"

/* The inside of the tokenizer, shared by its files. Everything works on the bytes that a token
 * stands for ("pieces"), never on the alphabets in which files write them. */

/* A set of byte strings: the pieces of some tokens. Open addressing; a slot holds id + 1. */
struct tok_table {
    uint32_t *slots;
    uint32_t mask; /* slots - 1, a power of two less one */
};

/* What two neighbouring symbols become. Lower priority numbers merge first. */
struct tok_merge {
    uint32_t priority;
    int32_t id;
};

/* BPE's merge rules by pair of ids. */
struct tok_pairs {
    struct tok_pair {
        int32_t left, right; /* left < 0: empty slot */
        struct tok_merge merge;
    } * slots;
    uint32_t mask;
};

/* Tokens that are looked for in the text before anything else, sorted by their bytes. */
struct tok_specials {
    int32_t *ids;
    int n;
    int first[257]; /* first[b] .. first[b + 1]: those that begin with byte b */
};

enum tok_flags {
    TOK_FLAG_END = 1,         /* ends an answer */
    TOK_FLAG_STRIP_LEFT = 2,  /* swallows white space before it */
    TOK_FLAG_STRIP_RIGHT = 4, /* swallows white space behind it */
    TOK_FLAG_SPACE = 8        /* nothing but white space: cannot forge anything */
};

struct tokenizer {
    enum tok_kind kind;
    int size;
    char *text;           /* all pieces, one after the other */
    size_t *offsets;      /* [size + 1] into text */
    uint8_t *types;       /* [size] enum tok_type */
    uint8_t *flags;       /* [size] enum tok_flags */
    uint32_t *priorities; /* [size] SPM: order by score, best is 0 */
    size_t longest;       /* bytes of the longest piece of `words` */
    bool joins[256];      /* bytes behind which a word may go on with a space */
    struct tok_table words;
    struct tok_pairs pairs;
    struct tok_specials specials;
    int32_t *ends; /* [n_ends] those with TOK_FLAG_END */
    int n_ends;
    struct pretokenizer *pre; /* BPE */
    int32_t byte_ids[256];    /* -1: that byte has no token */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix, ignore_merges;
};

/* A stretch of text while it is being merged. Doubly linked by index; bytes 0: merged away. */
struct tok_symbol {
    uint32_t start, bytes;
    int32_t id; /* -1: no token of its own */
    int32_t prev, next;
};

struct tok_candidate {
    uint32_t priority, left, bytes;
    int32_t id;
};

/* Memory of one tok_encode call. */
struct tok_work {
    const struct tokenizer *t;
    struct tok_ids *out;
    struct err *err;
    struct tok_symbol *symbols;
    size_t n_symbols, cap_symbols;
    struct tok_candidate *heap;
    size_t n_heap, cap_heap;
    struct pretok_work *pre;
    struct strbuf buffer;
};

static inline const char *tok_bytes(const struct tokenizer *t, int32_t id, size_t *bytes)
{
    *bytes = t->offsets[id + 1] - t->offsets[id];
    return t->text + t->offsets[id];
}

static inline bool tok_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* tok_vocab.c */
int tok_vocab_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err);
void tok_vocab_finish(struct tokenizer *t);
int32_t tok_word_find(const struct tokenizer *t, const char *bytes, size_t n);
/* Bytes of text[0, n) of one token in a file's alphabet; the result is never longer. */
size_t tok_piece_decode(const struct tokenizer *t, const char *text, size_t n, char *out);

/* tok_special.c */
int tok_specials_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err);
void tok_specials_finish(struct tokenizer *t);
/* The special token of exactly this text, -1: none. */
int32_t tok_special_find(const struct tokenizer *t, const char *text, size_t bytes);
/* The longest special token at `text`; -1: none. Bytes of `plain` (or NULL) go with text. */
int32_t tok_special_match(const struct tokenizer *t, const char *text, size_t bytes, bool control,
                          const unsigned char *plain);

/* tok_merge.c: merges the symbols of `text` until no pair has a rule, best rule first, leftmost
 * first among equals, then appends their tokens. */
/* A word of more symbols is cut, so that no text takes more than some 20 MB to merge. */
enum { TOK_WORD_MOST = 1 << 18 };
typedef bool tok_rule(const struct tokenizer *t, const char *text, const struct tok_symbol *left,
                      const struct tok_symbol *right, struct tok_merge *out);
/* Adds a symbol; a word that has become too long is merged first. */
int tok_work_add(struct tok_work *w, const char *text, struct tok_symbol symbol, tok_rule *rule);
int tok_work_merge(struct tok_work *w, const char *text, tok_rule *rule);
int tok_work_emit(struct tok_work *w, int32_t id);
/* Tokens for bytes that no token covers together. */
int tok_work_emit_bytes(struct tok_work *w, const char *text, size_t bytes);

/* tok_bpe.c, tok_spm.c: the two kinds. `first`: the text begins the input or follows a special
 * token. */
int tok_bpe_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err);
void tok_bpe_finish(struct tokenizer *t);
int tok_bpe_encode(struct tok_work *w, const char *text, size_t bytes);
int tok_spm_load(struct tokenizer *t, const struct tok_vocab *vocab, struct err *err);
int tok_spm_encode(struct tok_work *w, const char *text, size_t bytes);
/* Merges a text whose symbols are characters, cut where no word can reach across. */
int tok_chars_encode(struct tok_work *w, const char *text, size_t bytes, tok_rule *rule);

#endif
