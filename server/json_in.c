#include "json_in.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_WEIGHT 64 /* of a number in a list, with its comma; rounded up */

/* jansson's reader ignores that its buffer could not grow, and then writes beyond what it has. So
 * its allocations must not fail: what a body needs is weighed beforehand, and if the system has
 * nothing after all, the parse is left by a jump (and what it had is lost). */
static _Thread_local struct {
    bool on;
    jmp_buf out;
} guard;

static void *guarded_alloc(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p && guard.on)
        longjmp(guard.out, 1);
    return p;
}

static size_t spare;

void json_in_setup(int numbers)
{
    spare = ((size_t)1 << 20) + (size_t)numbers * NUMBER_WEIGHT;
    json_set_alloc_funcs(guarded_alloc, free);
    json_object_seed(0);
}

/* What a value costs, by the character that announces it: measured, rounded up. */
static size_t cost_of(char c)
{
    switch (c) {
    case '{':
        return 256;
    case '[':
        return 128;
    case '"': /* both quotes of a string or a key */
        return 24;
    case ',':
    case ':':
        return 48;
    default:
        return 0;
    }
}

static size_t weigh(const char *text, size_t bytes, bool inside)
{
    size_t weight = bytes;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            c = ++i < bytes && inside ? text[i] : ' ';
        else if (c == '"')
            quoted = !quoted;
        if (c == '"' || quoted == inside)
            weight += cost_of(c);
    }
    return weight;
}

size_t json_in_weight(const char *text, size_t bytes)
{
    return weigh(text, bytes, false);
}

size_t json_in_weight_inside(const char *text, size_t bytes)
{
    return weigh(text, bytes, true);
}

/* Lists of token ids weigh ten times their size. */
static size_t most_weight(size_t bytes)
{
    return 16 * bytes + spare;
}

static json_t *load(const char *text, size_t bytes, json_error_t *error, struct err *err)
{
    guard.on = true;
    if (setjmp(guard.out)) {
        guard.on = false;
        err_set(err, ERR_NOMEM, "the server is out of memory");
        return NULL;
    }
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, error);
    guard.on = false;
    if (!root)
        err_set(err, ERR_FORMAT, "the body is not valid JSON: %s (line %d, column %d)", error->text,
                error->line, error->column);
    return root;
}

json_t *json_in_parse(const char *text, size_t bytes, struct err *err)
{
    if (bytes == 0) {
        err_set(err, ERR_FORMAT, "the body is empty; a JSON object was expected");
        return NULL;
    }
    if (json_in_weight(text, bytes) > most_weight(bytes)) {
        err_set(err, ERR_LIMIT, "the body's %zu bytes of JSON hold too many small values", bytes);
        return NULL;
    }
    json_error_t error;
    json_t *root = load(text, bytes, &error, err);
    if (root && !json_is_object(root)) {
        err_set(err, ERR_FORMAT, "the body must be a JSON object");
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* ---- a glance at a text ---- */

/* Behind the string whose quote is at `at`. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

static const char *skip_spaces(const char *at, const char *end)
{
    while (at < end && memchr(" \t\r\n", *at, 4))
        at++;
    return at;
}

/* The next string at *at, or NULL; *at is then behind it. Follows the depth of brackets. */
static const char *next_string(const char **at, const char *end, int *depth)
{
    for (; *at < end && **at != '"'; ++*at)
        *depth += (**at == '{' || **at == '[') - (**at == '}' || **at == ']');
    if (*at == end)
        return NULL;
    const char *begin = *at;
    *at = string_end(*at, end);
    return begin;
}

const char *json_in_member(const char *text, size_t bytes, const char *key)
{
    const char *at = text, *end = text + bytes, *begin;
    size_t n = strlen(key);
    int depth = 0;
    while ((begin = next_string(&at, end, &depth))) {
        const char *colon = skip_spaces(at, end);
        if (depth == 1 && (size_t)(at - begin) == n + 2 && memcmp(begin + 1, key, n) == 0 &&
            colon < end && *colon == ':')
            return skip_spaces(colon + 1, end);
    }
    return NULL;
}

void json_in_wrong_member(const char *text, size_t bytes, char *out, size_t out_bytes)
{
    json_error_t error = {0};
    struct err err;
    const char *at = text, *begin;
    int depth = 0;
    snprintf(out, out_bytes, "%s", "");
    json_decref(load(text, bytes, &error, &err));
    const char *end = text + ((size_t)error.position < bytes ? (size_t)error.position : bytes);
    while ((begin = next_string(&at, end, &depth))) {
        const char *colon = skip_spaces(at, end);
        if (depth == 1 && colon < end && *colon == ':')
            snprintf(out, out_bytes, "%.*s", (int)(at - begin - 2), begin + 1);
    }
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

size_t json_in_longest_list(const char *text, size_t bytes)
{
    const char *end = text + bytes;
    size_t most = 0, n = 0;
    int depth = 0;
    for (const char *at = text; at < end; at++) {
        if (*at == '[') {
            depth++;
            n = 0;
        } else if (*at == ']') {
            depth--;
        } else if (in_number(*at)) {
            while (at + 1 < end && in_number(at[1]))
                at++;
            most = ++n > most ? n : most;
        } else if (*at != ',' && skip_spaces(at, end) == at) {
            return 0;
        }
        if (depth <= 0)
            return most;
    }
    return 0;
}
