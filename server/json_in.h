#ifndef SERVER_JSON_IN_H
#define SERVER_JSON_IN_H

#include "err.h"

#include <jansson.h>
#include <stddef.h>

/* Installs the allocator that json_in_parse limits, and seeds the hash tables: once, before any
 * thread is started. */
void json_in_setup(void);

/* Parses a request body (an object) within `budget` bytes of memory: small bodies can ask for
 * eighty times their size. Duplicate keys are an error. NULL with ERR_FORMAT or ERR_LIMIT. */
json_t *json_in_parse(const char *text, size_t bytes, size_t budget, struct err *err);

#endif
