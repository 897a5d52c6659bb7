#ifndef MODEL_JINJA_JSON_H
#define MODEL_JINJA_JSON_H

#include "jinja_rt.h"

#include <jansson.h>

/* The value of a JSON value; its strings are shared and get the mark. */
struct jj_value jj_from_json(struct jj_rt *rt, const json_t *json, unsigned char mark);
/* Reads JSON text. */
struct jj_value jj_json_parse(struct jj_rt *rt, const struct jj_str *text);

#endif
