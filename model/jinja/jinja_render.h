#ifndef MODEL_JINJA_RENDER_H
#define MODEL_JINJA_RENDER_H

#include "jinja_ast.h"
#include "jinja_json.h"
#include "jinja_str.h"

/* Values of the variables of one render; a trusted one hides a plain one of the same name. */
struct jj_input {
    const json_t *plain;   /* strings are marked */
    const json_t *trusted; /* strings are not; or NULL */
    int64_t now;
};

/* Runs the template. Writes into *out, which lives in rt->arena: finish that in any case. */
int jj_render(struct jj_rt *rt, const struct jj_input *input, struct jj_buf *out);

#endif
