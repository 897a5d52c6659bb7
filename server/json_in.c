#include "json_in.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>

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

void json_in_setup(void)
{
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
    return 16 * bytes + ((size_t)1 << 20);
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
