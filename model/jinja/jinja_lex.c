#include "jinja_lex.h"
#include "jinja_str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_BRACKETS 256

struct lexer {
    struct mem_arena *arena;
    const char *src;
    size_t n, at;
    int line;
    size_t line_at; /* the place that `line` belongs to */
    struct jj_tokens *out;
    struct err *err;
    int code;
    char brackets[MAX_BRACKETS];
    int n_brackets;
};

static void lex_fail(struct lexer *l, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int lex_line(struct lexer *l, size_t at)
{
    for (; l->line_at < at; l->line_at++)
        l->line += l->src[l->line_at] == '\n';
    return l->line;
}

static void lex_fail(struct lexer *l, int code, const char *format, ...)
{
    char text[200];
    va_list args;
    if (l->code)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    l->code = err_set(l->err, code, "chat template, line %d: %s", lex_line(l, l->at), text);
}

static void add_token(struct lexer *l, enum jj_token_kind kind, const char *text, size_t n)
{
    struct jj_tokens *out = l->out;
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 256;
        struct jj_token *items = realloc(out->items, cap * sizeof *items);
        if (!items) {
            lex_fail(l, ERR_NOMEM, "out of memory");
            return;
        }
        out->items = items;
        out->cap = cap;
    }
    out->items[out->n++] = (struct jj_token){
        .kind = kind, .line = lex_line(l, l->at), .text = text, .n = n};
}

static bool has(const struct lexer *l, size_t at, const char *s)
{
    size_t n = strlen(s);
    return l->n - at >= n && memcmp(l->src + at, s, n) == 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    int32_t code;
    while (at < l->n) {
        size_t len = jj_char_at(l->src, l->n, at, &code);
        if (!jj_char_is_space(code))
            break;
        at += len;
    }
    return at;
}

/* ---- text between tags ---- */

static size_t trim_end(const char *s, size_t from, size_t to)
{
    size_t end = from;
    int32_t code;
    for (size_t at = from; at < to;) {
        at += jj_char_at(s, to, at, &code);
        if (!jj_char_is_space(code))
            end = at;
    }
    return end;
}

/* lstrip_blocks: drops white space between the line's begin and a tag. */
static size_t strip_indent(const struct lexer *l, size_t from, size_t to)
{
    size_t at = to;
    while (at > from && l->src[at - 1] != '\n')
        at--;
    bool line_begin = at > from || from == 0 || l->src[from - 1] == '\n';
    return line_begin && skip_space(l, at) >= to ? at : to;
}

/* The text [from, to) in front of a tag whose sign is '-', '+' or anything else. */
static void add_data(struct lexer *l, size_t from, size_t to, char sign, bool strips)
{
    if (sign == '-')
        to = trim_end(l->src, from, to);
    else if (sign != '+' && strips)
        to = strip_indent(l, from, to);
    if (to > from)
        add_token(l, JJ_T_DATA, l->src + from, to - from);
}

/* Behind the closing two characters of a tag: drops what its sign (or trim_blocks) says. */
static size_t tag_tail(const struct lexer *l, size_t at, char sign, bool trims)
{
    if (sign == '-')
        return skip_space(l, at);
    return sign != '+' && trims && at < l->n && l->src[at] == '\n' ? at + 1 : at;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->src[at] == '-' || l->src[at] == '+') ? l->src[at] : 0;
}

/* Matches `%} with a sign before it`; false or the place behind, sign included. */
static bool tag_end(const struct lexer *l, size_t at, const char *close, char *sign, size_t *behind)
{
    *sign = sign_at(l, at);
    at += *sign != 0;
    if (!has(l, at, close))
        return false;
    *behind = at + 2;
    return true;
}

static bool is_word(const struct lexer *l, size_t *at, const char *word)
{
    size_t from = skip_space(l, *at);
    if (!has(l, from, word))
        return false;
    *at = skip_space(l, from + strlen(word));
    return true;
}

/* `{% raw %}` at `at`: the place behind it, or 0. */
static size_t raw_begin(const struct lexer *l, size_t at)
{
    char sign;
    size_t behind;
    at += 2;
    at += sign_at(l, at) != 0;
    if (!is_word(l, &at, "raw") || !tag_end(l, at, "%}", &sign, &behind) || sign == '+')
        return 0;
    return tag_tail(l, behind, sign, false);
}

static void lex_raw(struct lexer *l, size_t from)
{
    for (size_t at = from; at + 2 <= l->n; at++) {
        if (!has(l, at, "{%"))
            continue;
        char sign, end_sign = sign_at(l, at + 2);
        size_t end = at + 2 + (end_sign != 0), behind;
        if (!is_word(l, &end, "endraw") || !tag_end(l, end, "%}", &sign, &behind))
            continue;
        add_data(l, from, at, end_sign, true);
        l->at = tag_tail(l, behind, sign, true);
        return;
    }
    lex_fail(l, ERR_FORMAT, "{%% raw %%} without {%% endraw %%}");
}

static void lex_comment(struct lexer *l)
{
    char sign;
    size_t behind;
    for (size_t at = l->at + 2 + (sign_at(l, l->at + 2) != 0); at < l->n; at++) {
        if (!tag_end(l, at, "#}", &sign, &behind))
            continue;
        l->at = tag_tail(l, behind, sign, true);
        return;
    }
    lex_fail(l, ERR_FORMAT, "a comment {# has no end #}");
}

/* ---- inside of tags ---- */

static bool is_name_char(unsigned char c, bool first)
{
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
    return letter || (!first && c >= '0' && c <= '9');
}

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->n && l->src[at] >= '0' && l->src[at] <= '9';
}

static size_t skip_digits(const struct lexer *l, size_t at)
{
    while (is_digit(l, at) || (at < l->n && l->src[at] == '_' && is_digit(l, at + 1)))
        at++;
    return at;
}

static void lex_number(struct lexer *l)
{
    size_t at = skip_digits(l, l->at), start = l->at;
    enum jj_token_kind kind = JJ_T_INT;
    bool after_dot = start > 0 && l->src[start - 1] == '.';
    if (!after_dot && at < l->n && l->src[at] == '.' && is_digit(l, at + 1)) {
        at = skip_digits(l, at + 1);
        kind = JJ_T_FLOAT;
    }
    if (!after_dot && at < l->n && (l->src[at] == 'e' || l->src[at] == 'E')) {
        size_t digits = at + 1 + (sign_at(l, at + 1) != 0);
        if (is_digit(l, digits)) {
            at = skip_digits(l, digits);
            kind = JJ_T_FLOAT;
        }
    }
    if (at == start + 1 && l->src[start] == '0' && at < l->n && strchr("xXoObB", l->src[at]))
        while (at < l->n && is_name_char((unsigned char)l->src[at], false))
            at++;
    add_token(l, kind, l->src + start, at - start);
    l->at = at;
}

static const char *const simple_escapes = "n\nr\rt\tb\bf\fv\va\a\\\\''\"\"";

/* Reads up to `most` digits of the base; how many there were. */
static int read_digits(const char *s, size_t n, int most, int base, int32_t *code)
{
    int i = 0;
    *code = 0;
    for (; i < most && (size_t)i < n; i++) {
        int c = s[i] | 0x20;
        int digit = c >= 'a' && c <= 'f'         ? c - 'a' + 10
                    : s[i] >= '0' && s[i] <= '9' ? s[i] - '0'
                                                 : 99;
        if (digit >= base)
            break;
        *code = *code * base + digit;
    }
    return i;
}

/* A numeric escape whose letter is s[0]; length in the source or 0 when it is none. */
static size_t number_escape(struct lexer *l, const char *s, size_t n, char *out, size_t *written)
{
    int32_t code;
    int most = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    int got = most ? read_digits(s + 1, n - 1, most, 16, &code) : read_digits(s, n, 3, 8, &code);
    if (!most && !got)
        return 0;
    if (got < (most ? most : 1) || code < 0 || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000)) {
        lex_fail(l, ERR_FORMAT, "an escape \\%c in a string is no character", s[0]);
        return 0;
    }
    *written = jj_char_put(code, out);
    return (size_t)got + (most ? 1 : 0);
}

/* Unescapes behind a backslash into out; the number of source bytes used, 0: keep the backslash. */
static size_t unescape(struct lexer *l, const char *s, size_t n, char *out, size_t *written)
{
    *written = 0;
    if (s[0] == '\n')
        return 1;
    for (const char *e = simple_escapes; *e; e += 2) {
        if (s[0] == e[0]) {
            out[0] = e[1];
            *written = 1;
            return 1;
        }
    }
    return number_escape(l, s, n, out, written);
}

static void add_string(struct lexer *l, const char *s, size_t n)
{
    char *text = mem_arena_alloc(l->arena, n + 4);
    size_t to = 0;
    if (!text) {
        lex_fail(l, ERR_NOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < n && !l->code;) {
        size_t written, used = 0;
        if (s[i] == '\\' && i + 1 < n)
            used = unescape(l, s + i + 1, n - i - 1, text + to, &written);
        if (used) {
            to += written;
            i += used + 1;
        } else {
            text[to++] = s[i++];
        }
    }
    add_token(l, JJ_T_STRING, text, to);
}

static void lex_string(struct lexer *l)
{
    char quote = l->src[l->at];
    size_t from = l->at + 1, at = from;
    while (at < l->n && l->src[at] != quote)
        at += l->src[at] == '\\' ? 2 : 1;
    if (at >= l->n) {
        lex_fail(l, ERR_FORMAT, "a string has no closing %c", quote);
        return;
    }
    add_string(l, l->src + from, at - from);
    l->at = at + 1;
}

static bool bracket(struct lexer *l, char c)
{
    if (strchr("([{", c)) {
        if (l->n_brackets == MAX_BRACKETS)
            lex_fail(l, ERR_LIMIT, "more than %d brackets are open", MAX_BRACKETS);
        else
            l->brackets[l->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!l->n_brackets || l->brackets[l->n_brackets - 1] != c)
            lex_fail(l, ERR_FORMAT, "unexpected '%c'", c);
        else
            l->n_brackets--;
    }
    return !l->code;
}

static void lex_operator(struct lexer *l)
{
    static const char *const operators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                            "*",  "%",  "~",  "(",  ")",  "[",  "]", "{", "}",
                                            "<",  ">",  "=",  ".",  ":",  "|",  ",", NULL};
    for (int i = 0; operators[i]; i++) {
        if (!has(l, l->at, operators[i]))
            continue;
        size_t n = strlen(operators[i]);
        if (n == 1 && !bracket(l, operators[i][0]))
            return;
        add_token(l, JJ_T_OP, operators[i], n);
        l->at += n;
        return;
    }
    lex_fail(l, ERR_FORMAT, "unexpected character '%c'", l->src[l->at]);
}

static void lex_token(struct lexer *l)
{
    unsigned char c = (unsigned char)l->src[l->at];
    if (c == '"' || c == '\'') {
        lex_string(l);
    } else if (c >= '0' && c <= '9') {
        lex_number(l);
    } else if (is_name_char(c, true)) {
        size_t at = l->at;
        while (at < l->n && is_name_char((unsigned char)l->src[at], false))
            at++;
        add_token(l, JJ_T_NAME, l->src + l->at, at - l->at);
        l->at = at;
    } else {
        lex_operator(l);
    }
}

static void lex_tag(struct lexer *l, bool block)
{
    const char *close = block ? "%}" : "}}";
    char sign;
    size_t behind;
    l->n_brackets = 0;
    add_token(l, block ? JJ_T_BLOCK_BEGIN : JJ_T_OUTPUT_BEGIN, "", 0);
    l->at += 2;
    l->at += sign_at(l, l->at) != 0;
    while (!l->code) {
        l->at = skip_space(l, l->at);
        if (l->at == l->n) {
            lex_fail(l, ERR_FORMAT, "the template ends within a tag; expected %s", close);
        } else if (!l->n_brackets && tag_end(l, l->at, close, &sign, &behind) &&
                   (block || sign != '+')) {
            add_token(l, block ? JJ_T_BLOCK_END : JJ_T_OUTPUT_END, close, 2);
            l->at = tag_tail(l, behind, sign, block);
            return;
        } else {
            lex_token(l);
        }
    }
}

/* Text up to the next tag, and the tag. */
static void lex_next(struct lexer *l)
{
    size_t from = l->at, at = from;
    while (at < l->n && !(l->src[at] == '{' && at + 1 < l->n && strchr("{%#", l->src[at + 1])))
        at++;
    if (at == l->n) {
        add_data(l, from, at, '+', false);
        l->at = at;
        return;
    }
    char kind = l->src[at + 1];
    add_data(l, from, at, sign_at(l, at + 2), kind != '{');
    l->at = at;
    size_t raw = kind == '%' ? raw_begin(l, at) : 0;
    if (raw)
        lex_raw(l, raw);
    else if (kind == '#')
        lex_comment(l);
    else
        lex_tag(l, kind == '%');
}

/* A copy with one kind of line end, and without the last one. */
static char *normalise(struct mem_arena *arena, const char *source, size_t *bytes)
{
    char *copy = mem_arena_alloc(arena, *bytes + 1);
    size_t n = 0;
    for (size_t i = 0; copy && i < *bytes; i++) {
        if (source[i] == '\r' && i + 1 < *bytes && source[i + 1] == '\n')
            continue;
        copy[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    *bytes = n && copy[n - 1] == '\n' ? n - 1 : n;
    return copy;
}

int jj_lex(struct mem_arena *arena, const char *source, size_t bytes, struct jj_tokens *out,
           struct err *err)
{
    char *copy = normalise(arena, source, &bytes);
    if (!copy)
        return err_set(err, ERR_NOMEM, "chat template: out of memory for %zu bytes", bytes);
    struct lexer l = {.arena = arena, .src = copy, .n = bytes, .line = 1, .out = out, .err = err};
    while (l.at < l.n && !l.code)
        lex_next(&l);
    if (!l.code)
        add_token(&l, JJ_T_END, "end of template", 15);
    return l.code;
}
