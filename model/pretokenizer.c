#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretok_table.h"
#include "strbuf.h"
#include "utf8.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct pretokenizer {
    const struct pretok_row *row;
    pcre2_code *codes[PRETOK_STEPS];
    int n_steps;
};

struct pretok_cuts {
    uint32_t *ends;
    size_t n, cap;
};

struct pretok_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct pretok_cuts words, next; /* before and after the current step */
};

static const struct pretok_row *row_find(const char *name)
{
    for (int i = 0; i < pretok_n_rows; i++)
        for (int j = 0; j < PRETOK_NAMES && pretok_rows[i].names[j]; j++)
            if (strcmp(pretok_rows[i].names[j], name) == 0)
                return &pretok_rows[i];
    return NULL;
}

bool pretok_find(const char *name, struct pretok_traits *out)
{
    const struct pretok_row *row = row_find(name ? name : "default");
    if (row)
        *out = row->traits;
    return row != NULL;
}

/* White space as Unicode has it. PCRE2's own \s also takes U+180E, which was white space once. */
#define WHITE_SPACE                                                                                \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* The pattern with \s and \S spelt out; free it with strbuf_finish. */
static void pattern_expand(const char *pattern, struct strbuf *out)
{
    bool set = false; /* within [ ] */
    for (const char *p = pattern; *p; p++) {
        bool escape = p[0] == '\\' && p[1];
        if (escape && p[1] == 's') {
            strbuf_adds(out, set ? WHITE_SPACE : "[" WHITE_SPACE "]");
        } else if (escape && p[1] == 'S' && !set) {
            strbuf_adds(out, "[^" WHITE_SPACE "]");
        } else {
            set = *p == '[' || (set && *p != ']');
            strbuf_add(out, p, escape ? 2 : 1);
        }
        p += escape;
    }
}

static int step_compile(const char *pattern, pcre2_code **out, struct err *err)
{
    int code;
    PCRE2_SIZE offset;
    struct strbuf expanded = {0};
    pattern_expand(pattern, &expanded);
    if (expanded.failed)
        return err_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
    *out = pcre2_compile((PCRE2_SPTR)expanded.data, expanded.len,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_DOLLAR_ENDONLY, &code,
                         &offset, NULL);
    strbuf_finish(&expanded);
    if (!*out) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(err, ERR_UNSUPPORTED, "cannot compile the pre-tokenizer's pattern '%s': %s",
                       pattern, (const char *)text);
    }
    /* Where there is no JIT, matching falls back to PCRE2's interpreter by itself. */
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return 0;
}

int pretok_create(const char *name, struct pretokenizer **out, struct err *err)
{
    const struct pretok_row *row = row_find(name ? name : "default");
    if (!row)
        return err_set(err, ERR_UNSUPPORTED,
                       "the vocabulary was made with the pre-tokenizer '%s', which is not known",
                       name);
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for the pre-tokenizer");
    p->row = row;
    for (; p->n_steps < PRETOK_STEPS && row->steps[p->n_steps]; p->n_steps++) {
        int code = step_compile(row->steps[p->n_steps], &p->codes[p->n_steps], err);
        if (code < 0) {
            pretok_destroy(p);
            return code;
        }
    }
    *out = p;
    return 0;
}

void pretok_destroy(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < PRETOK_STEPS; i++)
        pcre2_code_free(p->codes[i]);
    free(p);
}

struct pretok_traits pretok_traits(const struct pretokenizer *p)
{
    return p->row->traits;
}

/* JIT code keeps what it may have to take back on this stack; a long word of nested repeats needs
 * more than the 32 KiB that PCRE2 uses by itself. */
#define STACK_START (32 << 10)
#define STACK_MOST  (8 << 20)

struct pretok_work *pretok_work_create(void)
{
    struct pretok_work *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    w->stack = pcre2_jit_stack_create(STACK_START, STACK_MOST, NULL);
    if (!w->match || !w->context) {
        pretok_work_destroy(w);
        return NULL;
    }
    if (w->stack)
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void pretok_work_destroy(struct pretok_work *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    free(w->words.ends);
    free(w->next.ends);
    free(w);
}

/* Ends a word at `end`, unless one ends there already. */
static int cuts_add(struct pretok_cuts *c, size_t end)
{
    if (end == (c->n ? c->ends[c->n - 1] : 0))
        return 0;
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        uint32_t *ends = realloc(c->ends, cap * sizeof *ends);
        if (!ends)
            return ERR_NOMEM;
        c->ends = ends;
        c->cap = cap;
    }
    c->ends[c->n++] = (uint32_t)end;
    return 0;
}

/* Cuts text[start, end) into groups of three characters, a shorter one first. */
static int cuts_add_threes(struct pretok_cuts *c, const char *text, size_t start, size_t end)
{
    size_t n = 0;
    for (size_t i = start; i < end; i++)
        n += (text[i] & 0xC0) != 0x80;
    for (size_t i = start, left = n; i < end; i++) {
        if ((text[i] & 0xC0) == 0x80)
            continue;
        if (left != n && left % 3 == 0 && cuts_add(c, i) < 0)
            return ERR_NOMEM;
        left--;
    }
    return cuts_add(c, end);
}

/* The next match at or behind `at`, tried by JIT first and, if its stack was too small, by the
 * interpreter, which keeps its state on the heap. */
static int step_match(const pcre2_code *code, struct pretok_work *w, const char *text, size_t bytes,
                      size_t at)
{
    int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, w->match,
                         w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         w->match, w->context);
    return rc;
}

static int match_error(int rc, struct err *err)
{
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(rc, text, sizeof text);
    return err_set(err, rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT,
                   "cannot cut the text into words: %s", (const char *)text);
}

struct step {
    const pcre2_code *code;
    bool threes;
};

/* Cuts one word of the previous step, text[start, end), which is all that the pattern sees. */
static int step_word(const struct step *step, struct pretok_work *w, const char *text, size_t start,
                     size_t end, struct err *err)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
    size_t bytes = end - start, at = 0;
    while (at < bytes) {
        int rc = step_match(step->code, w, text + start, bytes, at);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return match_error(rc, err);
        size_t from = start + found[0], to = start + found[1];
        if (cuts_add(&w->next, from) < 0 ||
            (step->threes ? cuts_add_threes(&w->next, text, from, to) : cuts_add(&w->next, to)) < 0)
            return err_set(err, ERR_NOMEM, "no memory for the words of a text");
        at = found[1];
        if (from == to) /* no pattern of the table matches nothing; should one, go on */
            at += utf8_length(text + start + at, bytes - at);
    }
    if (cuts_add(&w->next, end) < 0)
        return err_set(err, ERR_NOMEM, "no memory for the words of a text");
    return 0;
}

static int step_run(const struct pretokenizer *p, int i, struct pretok_work *w, const char *text,
                    struct err *err)
{
    struct step step = {p->codes[i], p->row->threes >> i & 1};
    size_t start = 0;
    w->next.n = 0;
    for (size_t word = 0; word < w->words.n; word++) {
        size_t end = w->words.ends[word];
        int code = step_word(&step, w, text, start, end, err);
        if (code < 0)
            return code;
        start = end;
    }
    struct pretok_cuts done = w->words;
    w->words = w->next;
    w->next = done;
    return 0;
}

int pretok_split(const struct pretokenizer *p, struct pretok_work *w, const char *text,
                 size_t bytes, const uint32_t **ends, size_t *n, struct err *err)
{
    w->words.n = 0;
    if (cuts_add(&w->words, bytes) < 0)
        return err_set(err, ERR_NOMEM, "no memory for the words of a text");
    for (int i = 0; i < p->n_steps; i++) {
        int code = step_run(p, i, w, text, err);
        if (code < 0)
            return code;
    }
    *ends = w->words.ends;
    *n = w->words.n;
    return 0;
}
