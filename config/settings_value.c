#include "settings_table.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the words of a row's value column ---- */

/* The next alternative of "N|auto" and its length; NULL at the end. */
static const char *next_word(const char **rest, size_t *n)
{
    const char *word = *rest;
    if (!word || !*word)
        return NULL;
    *n = strcspn(word, "|");
    *rest = word[*n] ? word + *n + 1 : NULL;
    return word;
}

static bool is_placeholder(const char *word)
{
    return *word >= 'A' && *word <= 'Z';
}

static bool is_open(const struct setting *row)
{
    const char *rest = row->value;
    size_t n;
    for (const char *word; (word = next_word(&rest, &n));)
        if (is_placeholder(word))
            return true;
    return !*row->value;
}

static bool has_word(const struct setting *row, const char *text)
{
    const char *rest = row->value;
    size_t n;
    for (const char *word; (word = next_word(&rest, &n));)
        if (!is_placeholder(word) && strlen(text) == n && !memcmp(word, text, n))
            return true;
    return false;
}

/* ---- what was expected ---- */

static void add_limits(struct strbuf *b, const struct setting *row)
{
    const char *format = row->kind == KIND_REAL ? "%g" : "%.0f";
    if (row->low == 0 && row->high == 0)
        return;
    strbuf_adds(b, " from ");
    strbuf_addf(b, format, row->low);
    strbuf_adds(b, " to ");
    strbuf_addf(b, format, row->high);
}

static void add_words(struct strbuf *b, const struct setting *row)
{
    const char *rest = row->value, *between = is_open(row) ? " or " : " ";
    size_t n;
    for (const char *word; (word = next_word(&rest, &n));) {
        if (is_placeholder(word))
            continue;
        strbuf_adds(b, between);
        strbuf_add(b, word, n);
        between = ", ";
    }
}

static int refuse(const struct setting *row, const char *found, struct err *err)
{
    static const char *const what[] = {
        [KIND_TEXT] = "a text",
        [KIND_INT] = "a whole number",
        [KIND_INT64] = "a whole number",
        [KIND_SIZE] = "bytes (as in 4096, 512m, 1.5g)",
        [KIND_REAL] = "a number",
        [KIND_BOOL] = "yes or no",
        [KIND_TEXTS] = "texts with commas between them",
        [KIND_INTS] = "whole numbers with commas between them, each",
    };
    struct strbuf b = {0};
    strbuf_adds(&b, is_open(row) ? what[row->kind] : "one of");
    add_limits(&b, row);
    add_words(&b, row);
    err_set(err, ERR_ARG, "expected %s, found \"%s\"", b.failed ? row->value : b.data, found);
    strbuf_finish(&b);
    return ERR_ARG;
}

/* ---- texts to values ---- */

/* Powers of 1024: k, m, g, t, also with the rest of KiB or MB. */
static int unit_shift(const char **end)
{
    static const char units[] = "kmgt";
    const char *unit = **end ? strchr(units, **end | 0x20) : NULL;
    if (!unit)
        return 0;
    ++*end;
    if (**end == 'i')
        ++*end;
    if (**end == 'b' || **end == 'B')
        ++*end;
    return 10 * (int)(unit - units + 1);
}

static bool read_whole(const char *text, int64_t *out)
{
    char *stop;
    errno = 0;
    long long v = strtoll(text, &stop, 10);
    if (stop == text || errno)
        return false;
    const char *end = stop;
    int shift = unit_shift(&end);
    return !*end && !__builtin_mul_overflow(v, 1ll << shift, out);
}

/* As above, and tenths of a unit. */
static bool read_size(const char *text, int64_t *out)
{
    if (!strchr(text, '.'))
        return read_whole(text, out);
    char *stop;
    size_t digits = strspn(text, "0123456789.");
    double v = strtod(text, &stop);
    const char *end = stop;
    double bytes = ldexp(v, unit_shift(&end));
    if (stop != text + digits || *end || !(bytes < 0x1p62))
        return false;
    *out = (int64_t)bytes;
    return true;
}

static bool read_bool(const char *text, bool *out)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(text, words[i])) {
            *out = i % 2;
            return true;
        }
    return false;
}

static bool read_real(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

static bool within(const struct setting *row, double v)
{
    return (row->low == 0 && row->high == 0) || (v >= row->low && v <= row->high);
}

/* A number of any whole kind, by the row's words and limits. */
static bool read_number(const struct setting *row, const char *text, int64_t *out)
{
    if ((!strcmp(text, "auto") || !strcmp(text, "off")) && has_word(row, text)) {
        *out = 0;
        return true;
    }
    bool read = row->kind == KIND_SIZE ? read_size(text, out) : read_whole(text, out);
    if (!read || !within(row, (double)*out) || (!is_open(row) && !has_word(row, text)))
        return false;
    if (row->kind == KIND_SIZE)
        return *out >= 0;
    return row->kind == KIND_INT64 || (*out >= INT_MIN && *out <= INT_MAX);
}

/* ---- values to fields ---- */

static void *grow_list(struct settings *s, void *old, int n, int more, size_t item)
{
    char *items = mem_arena_alloc(&s->arena, (size_t)(n + more) * item);
    if (items && n)
        memcpy(items, old, (size_t)n * item);
    return items;
}

static int store_texts(struct settings *s, struct settings_texts *list, const char *const *values,
                       int n)
{
    list->items = grow_list(s, list->items, list->n, n, sizeof *list->items);
    if (!list->items)
        return ERR_NOMEM;
    for (int i = 0; i < n; i++) {
        const char *copy = mem_arena_strndup(&s->arena, values[i], strlen(values[i]));
        if (!copy)
            return ERR_NOMEM;
        list->items[list->n++] = copy;
    }
    return 0;
}

static int store_ints(struct settings *s, const struct setting *row, const char *const *values,
                      int n, struct err *err)
{
    struct settings_ints *list = (void *)((char *)s + row->offset);
    list->items = grow_list(s, list->items, list->n, n, sizeof *list->items);
    if (!list->items)
        return ERR_NOMEM;
    for (int i = 0; i < n; i++) {
        int64_t v;
        if (!read_number(row, values[i], &v))
            return refuse(row, values[i], err);
        list->items[list->n++] = (int)v;
    }
    return 0;
}

static int store_text(struct settings *s, const struct setting *row, const char *text,
                      struct err *err)
{
    if (!is_open(row) && !has_word(row, text))
        return refuse(row, text, err);
    const char **field = (void *)((char *)s + row->offset);
    *field = mem_arena_strndup(&s->arena, text, strlen(text));
    return *field ? 0 : ERR_NOMEM;
}

static int store_whole(struct settings *s, const struct setting *row, const char *text,
                       struct err *err)
{
    int64_t v;
    void *field = (char *)s + row->offset;
    if (!read_number(row, text, &v))
        return refuse(row, text, err);
    if (row->kind == KIND_SIZE)
        *(size_t *)field = (size_t)v;
    else if (row->kind == KIND_INT64)
        *(int64_t *)field = v;
    else
        *(int *)field = (int)v;
    return 0;
}

static int store_real(struct settings *s, const struct setting *row, const char *text,
                      struct err *err)
{
    double v;
    if (!read_real(text, &v) || !within(row, v))
        return refuse(row, text, err);
    *(double *)((char *)s + row->offset) = v;
    return 0;
}

static int store_bool(struct settings *s, const struct setting *row, const char *text,
                      struct err *err)
{
    if (!read_bool(text, (bool *)((char *)s + row->offset)))
        return refuse(row, text, err);
    return 0;
}

int setting_store(struct settings *s, const struct setting *row, const char *const *values, int n,
                  bool append, struct err *err)
{
    void *field = (char *)s + row->offset;
    if (row->kind == KIND_TEXTS || row->kind == KIND_INTS) {
        if (!append && row->kind == KIND_TEXTS)
            *(struct settings_texts *)field = (struct settings_texts){0};
        if (!append && row->kind == KIND_INTS)
            *(struct settings_ints *)field = (struct settings_ints){0};
        return row->kind == KIND_TEXTS ? store_texts(s, field, values, n)
                                       : store_ints(s, row, values, n, err);
    }
    static int (*const stores[])(struct settings *, const struct setting *, const char *,
                                 struct err *) = {
        [KIND_TEXT] = store_text,  [KIND_INT] = store_whole, [KIND_INT64] = store_whole,
        [KIND_SIZE] = store_whole, [KIND_REAL] = store_real, [KIND_BOOL] = store_bool,
    };
    return stores[row->kind](s, row, values[0], err);
}

/* Parts a list at its commas, in place; returns how many. */
static int split(char *text, const char **items)
{
    int n = 0;
    for (char *next = text; next;) {
        char *item = next;
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        item += strspn(item, " ");
        for (size_t len = strlen(item); len && item[len - 1] == ' '; len--)
            item[len - 1] = '\0';
        if (*item)
            items[n++] = item;
    }
    return n;
}

int setting_store_text(struct settings *s, const struct setting *row, const char *text, bool append,
                       struct err *err)
{
    if (!setting_is_list(row))
        return setting_store(s, row, &text, 1, append, err);
    size_t len = strlen(text);
    char *copy = mem_strndup(text, len);
    const char **items = calloc(len / 2 + 1, sizeof *items);
    int rc = ERR_NOMEM;
    if (copy && items)
        rc = setting_store(s, row, items, split(copy, items), append, err);
    free(items);
    free(copy);
    return rc;
}
