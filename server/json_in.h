#ifndef SERVER_JSON_IN_H
#define SERVER_JSON_IN_H

#include "err.h"

#include <jansson.h>
#include <stddef.h>

/* Installs an allocator that guards json_in_parse, and seeds the hash tables: once, before any
 * other thread is started. A list of `numbers` numbers is never too much for a body. */
void json_in_setup(int numbers);

/* Parses a request body, which must be an object. Duplicate keys are an error, and so is a body
 * whose values would take many times its size in memory (small bodies can ask for eighty times).
 * NULL with ERR_FORMAT, ERR_LIMIT or ERR_NOMEM. Any thread. */
json_t *json_in_parse(const char *text, size_t bytes, struct err *err);

/* At least the bytes that the values of this text take once parsed. */
size_t json_in_weight(const char *text, size_t bytes);
/* At least what the JSON takes that its strings hold (a tool call's arguments), if it is parsed. */
size_t json_in_weight_inside(const char *text, size_t bytes);

/* For a text that json_in_parse calls ERR_FORMAT: the member in whose value it goes wrong, "" when
 * it is in none. */
void json_in_wrong_member(const char *text, size_t bytes, char *out, size_t out_bytes);

/* Where the value of this member of a body begins, by a glance at the text: a body that is no JSON
 * may have one, too, and a key that is spelled with escapes is not found. NULL: nowhere. */
const char *json_in_member(const char *text, size_t bytes, const char *key);

/* How many numbers the longest list holds, of the one that begins at text[0] or those in it; 0 when
 * there is anything but numbers in them. */
size_t json_in_longest_list(const char *text, size_t bytes);

#endif
