#ifndef MODEL_JINJA_LEX_H
#define MODEL_JINJA_LEX_H

#include "err.h"
#include "mem.h"

#include <stdbool.h>
#include <stddef.h>

enum jj_token_kind {
    JJ_T_DATA,
    JJ_T_OUTPUT_BEGIN,
    JJ_T_OUTPUT_END,
    JJ_T_BLOCK_BEGIN,
    JJ_T_BLOCK_END,
    JJ_T_NAME,
    JJ_T_STRING,
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OP,
    JJ_T_END
};

struct jj_token {
    enum jj_token_kind kind;
    int line;
    const char *text; /* of a string: unescaped; of an operator: as written */
    size_t n;
};

struct jj_tokens {
    struct jj_token *items; /* ends with JJ_T_END; free(3) */
    size_t n, cap;
};

/* Splits a template as jinja2 does with trim_blocks and lstrip_blocks. Texts lie in the arena. */
int jj_lex(struct mem_arena *arena, const char *source, size_t bytes, struct jj_tokens *out,
           struct err *err);

#endif
