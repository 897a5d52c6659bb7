#include "json_in.h"

#include <setjmp.h>
#include <stdbool.h>
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

size_t json_in_weight(const char *text, size_t bytes)
{
    size_t weight = bytes;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted && c == '\\')
            i++;
        else if (c == '"')
            quoted = !quoted;
        if (!quoted || c == '"')
            weight += cost_of(c);
    }
    return weight;
}

/* Lists of token ids weigh ten times their size. */
static size_t most_weight(size_t bytes)
{
    return 16 * bytes + spare;
}

static json_t *load(const char *text, size_t bytes, struct err *err)
{
    json_error_t error;
    guard.on = true;
    if (setjmp(guard.out)) {
        guard.on = false;
        err_set(err, ERR_NOMEM, "the server is out of memory");
        return NULL;
    }
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    guard.on = false;
    if (!root)
        err_set(err, ERR_FORMAT, "the body is not valid JSON: %s (line %d, column %d)", error.text,
                error.line, error.column);
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
    json_t *root = load(text, bytes, err);
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

const char *json_in_member(const char *text, size_t bytes, const char *key)
{
    const char *end = text + bytes;
    size_t n = strlen(key);
    int depth = 0;
    for (const char *at = text; at < end;) {
        if (*at != '"') {
            depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
            at++;
            continue;
        }
        const char *begin = at + 1;
        at = string_end(at, end);
        const char *colon = skip_spaces(at, end);
        if (depth == 1 && (size_t)(at - begin) == n + 1 && memcmp(begin, key, n) == 0 &&
            colon < end && *colon == ':')
            return skip_spaces(colon + 1, end);
    }
    return NULL;
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
