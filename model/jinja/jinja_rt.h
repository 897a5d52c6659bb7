#ifndef MODEL_JINJA_RT_H
#define MODEL_JINJA_RT_H

#include "err.h"
#include "mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The state of one render, and the values that it works on.
 *
 * Errors are sticky: the first failure sets rt->failed and its sentence; whatever runs after that
 * returns at once or works on empty values. Nothing crashes when a check is missing, loops stop
 * because jj_step says false. All memory of a render comes from one arena. */

#define JJ_MAX_STEPS        20000000u /* a published template needs 6 million for 1000 messages */
#define JJ_MAX_DEPTH        800 /* nested expressions, statements, macro calls and values together */
#define JJ_MAX_PARSE_DEPTH  200
#define JJ_MAX_BYTES        ((size_t)64 << 20)  /* of one string or of the output */
#define JJ_MAX_MEMORY       ((size_t)256 << 20) /* of one render */
#define JJ_MAX_RANGE        100000
#define JJ_MAX_SOURCE_BYTES ((size_t)4 << 20)
#define JJ_MAX_PARAMS       6 /* of a built-in */

enum jj_type {
    JJ_ABSENT, /* no value at all: an argument that was not given, the result of a failure */
    JJ_UNDEFINED,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STR,
    JJ_SEQ,
    JJ_DICT,
    JJ_NAMESPACE,
    JJ_CALLABLE,
    JJ_LOOP,
    JJ_N_TYPES
};

struct jj_value {
    uint8_t type;  /* enum jj_type */
    uint8_t owner; /* undefined: type of the object that lacks the attribute, or 0 */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *hint; /* undefined: the name that was looked up, or NULL */
        const struct jj_str *str;
        struct jj_seq *seq;
        struct jj_dict *dict; /* also of a namespace */
        const struct jj_callable *callable;
        struct jj_loop *loop;
    };
};

enum jj_seq_kind {
    JJ_LIST,
    JJ_TUPLE,
    JJ_LAZY, /* what a generator is in Python: always true, no length, can be read once */
    JJ_RANGE,
    JJ_KEYS, /* the views of a dict */
    JJ_VALUES,
    JJ_ITEMS
};

struct jj_seq {
    enum jj_seq_kind kind;
    struct jj_value *items;
    size_t n, cap;
    size_t next; /* lazy: the first item that nobody has read */
};

struct jj_entry {
    struct jj_value key, value;
    uint64_t hash;
};

/* In order of insertion; index is an open-addressing table of entry numbers + 1. */
struct jj_dict {
    struct jj_entry *entries;
    size_t n, cap;
    uint32_t *index;
    size_t slots; /* power of two, or 0 */
};

struct jj_named {
    const struct jj_str *name;
    struct jj_value value;
};

struct jj_args {
    struct jj_value *items;
    int n;
    struct jj_named *named;
    int n_named;
};

struct jj_rt;
struct jj_node;

/* One call of a built-in: its parameters in the order of the row (JJ_ABSENT where not given), and
 * the arguments as they were written. */
struct jj_call {
    struct jj_value a[JJ_MAX_PARAMS];
    const struct jj_args *args;
};

/* A filter, test, method or function. */
struct jj_builtin {
    const char *name;
    const char *params; /* "a,b": names in order; NULL: takes any arguments */
    int required;
    struct jj_value (*fn)(struct jj_rt *rt, struct jj_value self, const struct jj_call *c);
};

struct jj_callable {
    const struct jj_builtin *builtin; /* or NULL: a macro */
    struct jj_value self;
    const struct jj_node *macro;
    struct jj_scope *closure;
};

struct jj_scope {
    struct jj_scope *parent;
    struct jj_binding {
        int name;
        struct jj_value value;
    } * vars;
    int n, cap;
    bool captured; /* a macro made here may still read it */
};

struct jj_loop {
    const struct jj_node *node; /* the for statement, for recursion */
    const struct jj_seq *items;
    size_t index;
    int depth;
    struct jj_scope *outer; /* of the for statement */
    struct jj_seq *changed; /* last arguments of loop.changed */
};

enum jj_flow { JJ_FLOW_ON, JJ_FLOW_BREAK, JJ_FLOW_CONTINUE };

struct jj_rt {
    const struct jj_template *t;
    struct mem_arena arena;
    struct err *err;
    bool failed;
    int code;
    int line; /* of the statement that runs */
    int depth;
    uint64_t steps;
    int64_t now;
    struct jj_value *globals; /* [names of the template] */
    struct jj_scope *scope;
    struct jj_buf *out;
    enum jj_flow flow;
};

/* Sets the sentence, with the template's line in front, if nothing failed before. Returns
 * JJ_ABSENT. */
struct jj_value jj_fail(struct jj_rt *rt, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Zeroed memory of the render; NULL after failing. */
void *jj_alloc(struct jj_rt *rt, size_t count, size_t bytes);
/* Counts work; false when the render has failed or must stop. */
bool jj_step(struct jj_rt *rt, size_t n);
/* Work on that many bytes that makes no new ones. */
bool jj_step_bytes(struct jj_rt *rt, size_t bytes);
/* Around everything that recurses; after false do not call leave. */
bool jj_enter(struct jj_rt *rt);
void jj_leave(struct jj_rt *rt);

/* ---- values ---- */

static inline struct jj_value jj_none(void)
{
    return (struct jj_value){.type = JJ_NONE};
}
static inline struct jj_value jj_bool(bool b)
{
    return (struct jj_value){.type = JJ_BOOL, .boolean = b};
}
static inline struct jj_value jj_int(int64_t i)
{
    return (struct jj_value){.type = JJ_INT, .integer = i};
}
static inline struct jj_value jj_float(double d)
{
    return (struct jj_value){.type = JJ_FLOAT, .real = d};
}
static inline struct jj_value jj_string(const struct jj_str *s)
{
    return (struct jj_value){.type = JJ_STR, .str = s};
}
static inline struct jj_value jj_sequence(struct jj_seq *s)
{
    return (struct jj_value){.type = JJ_SEQ, .seq = s};
}
static inline struct jj_value jj_mapping(struct jj_dict *d)
{
    return (struct jj_value){.type = JJ_DICT, .dict = d};
}
static inline struct jj_value jj_undefined(const char *hint)
{
    return (struct jj_value){.type = JJ_UNDEFINED, .hint = hint};
}
static inline bool jj_given(struct jj_value v)
{
    return v.type != JJ_ABSENT;
}
static inline bool jj_is_seq(struct jj_value v, enum jj_seq_kind kind)
{
    return v.type == JJ_SEQ && v.seq->kind == kind;
}
static inline bool jj_is_number(struct jj_value v)
{
    return v.type == JJ_BOOL || v.type == JJ_INT || v.type == JJ_FLOAT;
}

/* The name of a value's type as Python's messages have it. */
const char *jj_type_name(struct jj_value v);
bool jj_truth(struct jj_value v);
bool jj_equal(struct jj_rt *rt, struct jj_value a, struct jj_value b);
/* -1, 0, 1; fails on values that have no order. */
int jj_compare(struct jj_rt *rt, struct jj_value a, struct jj_value b);
/* False for values that cannot be keys. */
bool jj_hash(struct jj_value v, uint64_t *hash);
/* A bool or int as an integer; false otherwise. */
bool jj_as_int(struct jj_value v, int64_t *out);
double jj_as_real(struct jj_value v); /* of a number */
/* The argument as an integer, or `otherwise` when absent or none; fails on other types. */
int64_t jj_int_or(struct jj_rt *rt, struct jj_value v, int64_t otherwise);
/* Fails with the error that Python gives for the use of an undefined value; else nothing. */
bool jj_check_defined(struct jj_rt *rt, struct jj_value v);

/* ---- sequences; never NULL, on failure an empty one that may be read ---- */

struct jj_seq *jj_seq_new(struct jj_rt *rt, enum jj_seq_kind kind);
void jj_seq_add(struct jj_rt *rt, struct jj_seq *s, struct jj_value v);
/* The items of anything that can be iterated; a lazy one is used up. Fails otherwise. */
struct jj_seq *jj_iterate(struct jj_rt *rt, struct jj_value v);
struct jj_value jj_pair(struct jj_rt *rt, struct jj_value a, struct jj_value b);

/* ---- dicts ---- */

struct jj_dict *jj_dict_new(struct jj_rt *rt);
/* NULL when it is not there. */
struct jj_value *jj_dict_find(struct jj_rt *rt, const struct jj_dict *d, struct jj_value key);
struct jj_value *jj_dict_find_name(struct jj_rt *rt, const struct jj_dict *d, const char *name);
void jj_dict_set(struct jj_rt *rt, struct jj_dict *d, struct jj_value key, struct jj_value value);
bool jj_dict_remove(struct jj_rt *rt, struct jj_dict *d, struct jj_value key,
                    struct jj_value *value);
struct jj_dict *jj_dict_copy(struct jj_rt *rt, const struct jj_dict *d);
struct jj_seq *jj_dict_view(struct jj_rt *rt, const struct jj_dict *d, enum jj_seq_kind kind);

#endif
