#ifndef MODEL_JINJA_STR_H
#define MODEL_JINJA_STR_H

#include "jinja_rt.h"

#include <string.h>

/* Strings: valid UTF-8 with a mark per byte: 1 where the byte came from a user's string. Immutable;
 * slices share bytes. Strings of the template itself are shared by threads. */

struct jj_str {
    const char *bytes;
    const unsigned char *marks; /* [n], or NULL: all are `mark` */
    size_t n;
    size_t chars;
    struct jj_buf *buf; /* bytes lie in this buffer, which may have room behind them; or NULL */
    unsigned char mark;
    bool markup; /* safe for HTML: + escapes the other operand */
};

extern const struct jj_str jj_empty;

/* A growing marked string in the render's arena. Initialise with {0}. */
struct jj_buf {
    char *bytes;
    unsigned char *marks;
    size_t n, cap;
};

void jj_buf_add(struct jj_rt *rt, struct jj_buf *b, const char *bytes, size_t n,
                unsigned char mark);
void jj_buf_adds(struct jj_rt *rt, struct jj_buf *b, const char *s); /* mark 0 */
void jj_buf_fill(struct jj_rt *rt, struct jj_buf *b, char c, size_t n, unsigned char mark);
void jj_buf_add_str(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s);
void jj_buf_add_slice(struct jj_rt *rt, struct jj_buf *b, const struct jj_str *s, size_t from,
                      size_t n);
void jj_buf_add_char(struct jj_rt *rt, struct jj_buf *b, int32_t code, unsigned char mark);
/* The string of a buffer that is not added to afterwards. */
const struct jj_str *jj_buf_str(struct jj_rt *rt, const struct jj_buf *b);

/* ---- never NULL ---- */
const struct jj_str *jj_str_new(struct jj_rt *rt, const char *bytes, size_t n, unsigned char mark);
/* Shares the bytes, which must live as long as the render. */
const struct jj_str *jj_str_share(struct jj_rt *rt, const char *bytes, size_t n,
                                  unsigned char mark);
const struct jj_str *jj_str_slice(struct jj_rt *rt, const struct jj_str *s, size_t from, size_t n);
const struct jj_str *jj_str_concat(struct jj_rt *rt, const struct jj_str *a,
                                   const struct jj_str *b);
const struct jj_str *jj_str_repeat(struct jj_rt *rt, const struct jj_str *s, int64_t times);
const struct jj_str *jj_str_escape(struct jj_rt *rt, const struct jj_str *s);
const struct jj_str *jj_str_replace(struct jj_rt *rt, const struct jj_str *s,
                                    const struct jj_str *from, const struct jj_str *to,
                                    int64_t count);
/* mode: what to do with each character. */
enum jj_case { JJ_LOWER, JJ_UPPER, JJ_CAPITALIZE, JJ_TITLE, JJ_SWAP };
const struct jj_str *jj_str_case(struct jj_rt *rt, const struct jj_str *s, enum jj_case mode);

enum { JJ_LEFT = 1, JJ_RIGHT = 2 };
/* Without the characters of `chars` (NULL: white space) at the sides given. */
const struct jj_str *jj_str_strip(struct jj_rt *rt, const struct jj_str *s,
                                  const struct jj_str *chars, int sides);
/* sep NULL: runs of white space. */
struct jj_seq *jj_str_split(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *sep,
                            int64_t max);
struct jj_seq *jj_str_rsplit(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *sep,
                             int64_t max);
struct jj_seq *jj_str_lines(struct jj_rt *rt, const struct jj_str *s, bool keep_ends);
struct jj_seq *jj_str_chars(struct jj_rt *rt, const struct jj_str *s);

bool jj_str_equal(const struct jj_str *a, const struct jj_str *b);
bool jj_str_is(const struct jj_str *a, const char *b);
int jj_str_compare(const struct jj_str *a, const struct jj_str *b);
/* Byte offset of the first or last place of `what` in [from, to), or -1. */
int64_t jj_str_find(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *what,
                    size_t from, size_t to);
int64_t jj_str_rfind(struct jj_rt *rt, const struct jj_str *s, const struct jj_str *what,
                     size_t from, size_t to);
bool jj_str_has_prefix(const struct jj_str *s, const struct jj_str *prefix);
bool jj_str_has_suffix(const struct jj_str *s, const struct jj_str *suffix);
size_t jj_str_offset(const struct jj_str *s, size_t chars); /* in bytes */
size_t jj_str_count_chars(const char *bytes, size_t n);
unsigned char jj_str_mark(const struct jj_str *s, size_t at);
unsigned char jj_str_any_mark(const struct jj_str *s);

/* ---- characters ---- */
/* Decodes the character at s[at]; returns its length in bytes (1 for a stray byte). */
size_t jj_char_at(const char *s, size_t n, size_t at, int32_t *code);
size_t jj_char_put(int32_t code, char out[4]);
bool jj_char_is_space(int32_t code);
bool jj_char_is_printable(int32_t code);
bool jj_utf8_valid(const char *s, size_t n);

/* ---- text of any value (jinja_repr.c) ---- */
void jj_buf_add_value(struct jj_rt *rt, struct jj_buf *b, struct jj_value v); /* Python's str() */
void jj_buf_add_repr(struct jj_rt *rt, struct jj_buf *b, struct jj_value v);
const struct jj_str *jj_to_str(struct jj_rt *rt, struct jj_value v);
void jj_real_text(double d, char out[40]);

#endif
