#ifndef MODEL_JINJA_AST_H
#define MODEL_JINJA_AST_H

#include "jinja_rt.h"

/* A parsed template: immutable, everything in one arena. */

enum jj_kind {
    /* expressions */
    JJ_CONST,
    JJ_NAME,
    JJ_LIST_OF, /* list */
    JJ_TUPLE_OF,
    JJ_DICT_OF, /* list: key, value, key, value ... */
    JJ_NOT,     /* kids[0] */
    JJ_NEGATE,
    JJ_PLUS,
    JJ_AND, /* kids[0], kids[1] */
    JJ_OR,
    JJ_ARITHMETIC, /* kids[0] op kids[1] */
    JJ_CONCAT,     /* list */
    JJ_COMPARE,    /* kids[0], then list of JJ_OPERAND */
    JJ_OPERAND,    /* op kids[0] */
    JJ_CHOICE,     /* kids[0] if kids[1] else kids[2] or NULL */
    JJ_ATTRIBUTE,  /* kids[0].text */
    JJ_ITEM,       /* kids[0][kids[1]] */
    JJ_SLICE,      /* kids[0][kids[1]:kids[2]:kids[3]], any of them NULL */
    JJ_CALL,       /* kids[0](args) */
    JJ_FILTER,     /* kids[0] | apply(args); kids[0] NULL: of a block */
    JJ_TEST,       /* kids[0] is apply(args) */
    /* statements */
    JJ_BODY,         /* list */
    JJ_DATA,         /* text */
    JJ_OUTPUT,       /* kids[0] */
    JJ_IF,           /* if kids[0] then kids[1] else kids[2] or NULL */
    JJ_FOR,          /* kids[0] target, [1] iterable, [2] condition or NULL, [3] body, [4] else */
    JJ_SET,          /* kids[0] target = kids[1] */
    JJ_SET_BLOCK,    /* kids[0] target, [1] filter or NULL, [2] body */
    JJ_MACRO,        /* name; params; kids[0] body */
    JJ_CALL_BLOCK,   /* kids[0] call; kids[1] a macro without name */
    JJ_FILTER_BLOCK, /* kids[0] filter, kids[1] body */
    JJ_WITH,         /* list of JJ_SET; kids[0] body */
    JJ_SCOPE,        /* kids[0] body */
    JJ_DO,           /* kids[0] */
    JJ_BREAK,
    JJ_CONTINUE,
    JJ_N_KINDS
};

enum jj_op {
    JJ_ADD,
    JJ_SUBTRACT,
    JJ_MULTIPLY,
    JJ_DIVIDE,
    JJ_FLOOR_DIVIDE,
    JJ_MODULO,
    JJ_POWER,
    JJ_EQ,
    JJ_NE,
    JJ_LT,
    JJ_LE,
    JJ_GT,
    JJ_GE,
    JJ_IN,
    JJ_NOT_IN
};

struct jj_node_list {
    struct jj_node **items;
    int n;
};

/* Arguments of a call: items, then *star and **star2, or NULL. */
struct jj_arg_nodes {
    struct jj_node_list items;
    struct jj_keyword {
        const struct jj_str *name;
        struct jj_node *value;
    } * named;
    int n_named;
    struct jj_node *star, *star2;
};

struct jj_params {
    struct jj_param {
        int name;
        const struct jj_str *text;
        struct jj_node *otherwise; /* or NULL */
    } * items;
    int n;
    bool varargs, kwargs; /* the body uses them */
};

struct jj_node {
    uint8_t kind;   /* enum jj_kind */
    uint8_t op;     /* enum jj_op */
    bool recursive; /* of a for statement */
    bool flag;      /* of JJ_TEST: negated */
    int line;
    int name; /* number in the template's names */
    struct jj_node *kids[5];
    struct jj_node_list list;
    union {
        struct jj_value constant;
        const struct jj_str *text;
        struct {
            const struct jj_builtin *row; /* NULL: unknown, fails when it runs */
            const struct jj_str *text;
            struct jj_arg_nodes *args;
        } apply; /* also args of a call */
        struct jj_params *params;
    };
};

/* Names that the interpreter itself gives values to. */
enum { JJ_NAME_LOOP, JJ_NAME_CALLER, JJ_NAME_VARARGS, JJ_NAME_KWARGS, JJ_N_OWN_NAMES };

struct jj_template {
    struct mem_arena arena;
    struct jj_node *body;
    const struct jj_str **names;
    int n_names;
};

/* Fills *t (which starts zeroed); the caller finishes the arena, also after a failure. */
int jj_parse(struct jj_template *t, const char *source, size_t bytes, struct err *err);

#endif
