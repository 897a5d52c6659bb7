#include "json_in.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>

/* The budget of the parse that this thread is in the middle of. */
static _Thread_local struct {
    bool on, spent;
    size_t left;
} budget;

static void *budget_alloc(size_t bytes)
{
    if (budget.on && bytes > budget.left) {
        budget.spent = true;
        return NULL;
    }
    void *p = malloc(bytes);
    if (p && budget.on) {
        size_t real = malloc_usable_size(p);
        budget.left -= real < budget.left ? real : budget.left;
    }
    return p;
}

static void budget_free(void *p)
{
    if (p && budget.on)
        budget.left += malloc_usable_size(p);
    free(p);
}

void json_in_setup(void)
{
    json_set_alloc_funcs(budget_alloc, budget_free);
    json_object_seed(0);
}

json_t *json_in_parse(const char *text, size_t bytes, size_t limit, struct err *err)
{
    if (bytes == 0) {
        err_set(err, ERR_FORMAT, "the body is empty; a JSON object was expected");
        return NULL;
    }
    json_error_t error;
    budget.on = true;
    budget.spent = false;
    budget.left = limit;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    budget.on = false;
    if (!root && budget.spent) {
        err_set(err, ERR_LIMIT, "the body's JSON needs too much memory (more than %zu bytes)",
                limit);
    } else if (!root) {
        err_set(err, ERR_FORMAT, "the body is not valid JSON: %s (line %d, column %d)", error.text,
                error.line, error.column);
    } else if (!json_is_object(root)) {
        err_set(err, ERR_FORMAT, "the body must be a JSON object");
        json_decref(root);
        root = NULL;
    }
    return root;
}
