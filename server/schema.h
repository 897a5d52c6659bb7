#ifndef SERVER_SCHEMA_H
#define SERVER_SCHEMA_H

#include "api_error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* From JSON to a C struct by a table: one row per field a dialect knows, with its type, its range
 * and what is done with it. `null` means "not given": the struct keeps its default. */

enum schema_type {
    SCHEMA_BOOL,      /* bool */
    SCHEMA_INT,       /* int64_t; 3.0 counts as 3 */
    SCHEMA_NUMBER,    /* double */
    SCHEMA_TEXT,      /* const char *, borrowed from the JSON; least..most is its length in bytes */
    SCHEMA_LIST,      /* json_t *, borrowed */
    SCHEMA_OBJECT,    /* likewise */
    SCHEMA_ANY,       /* likewise */
    SCHEMA_GIVEN_INT, /* an integer, stored as json_t *, so that "not given" shows */
    SCHEMA_GIVEN_BOOL, /* likewise */
};

enum schema_rule {
    SCHEMA_HONOUR, /* stored */
    SCHEMA_IGNORE, /* checked and forgotten: it changes nothing */
    SCHEMA_REFUSE, /* "not supported yet", unless it asks for what happens anyway (`harmless`) */
};

/* A value that asks for what happens without the field. */
typedef bool schema_harmless(const json_t *value);

struct schema_field {
    const char *name;
    enum schema_type type;
    enum schema_rule rule;
    size_t offset;             /* in the struct */
    double least, most;        /* SCHEMA_INT, SCHEMA_NUMBER; both 0: any */
    schema_harmless *harmless; /* SCHEMA_REFUSE; NULL: nothing is */
    const char *words;         /* SCHEMA_TEXT: what it may be, as "left|right"; NULL: anything */
};

/* Unknown fields are accepted; their names go here (borrowed from the JSON). */
struct schema_unknown {
    const char *names[8];
    int n;
};

/* Reads `object` by the rows of tables (each ends with a NULL name; the list ends with NULL) into
 * `out`. 0, or -1 with the error naming the field. */
int schema_read(const struct schema_field *const *tables, const json_t *object, void *out,
                struct schema_unknown *unknown, struct api_error *e);

/* Parses a request body within a memory budget and reads it. NULL with the error, else the JSON,
 * which `out` points into: json_decref it later. body may be NULL when it is empty. */
json_t *schema_read_body(const char *body, size_t bytes, const struct schema_field *const *tables,
                         void *out, struct schema_unknown *unknown, struct api_error *e);

int64_t schema_int(const json_t *value); /* of SCHEMA_INT */

/* For harmless: */
bool schema_is_false(const json_t *value);         /* false */
bool schema_is_empty(const json_t *value);         /* "", [] or {} */
bool schema_is_one(const json_t *value);           /* 1 */
const char *schema_type_name(const json_t *value); /* "a string" ... of what was found */

#endif
