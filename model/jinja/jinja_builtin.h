#ifndef MODEL_JINJA_BUILTIN_H
#define MODEL_JINJA_BUILTIN_H

#include "jinja_rt.h"

/* Tables of everything that has a name; each ends with a row without one. */

extern const struct jj_builtin jj_filters_text[], jj_filters_value[], jj_filters_seq[];
extern const struct jj_builtin jj_tests_table[], jj_functions_table[];
extern const struct jj_builtin jj_str_methods[], jj_str_predicates[], jj_list_methods[];
extern const struct jj_builtin jj_dict_methods[], jj_loop_methods[];

/* Lists of tables, ended by NULL. */
extern const struct jj_builtin *const jj_filters[], *const jj_tests[], *const jj_functions[];

const struct jj_builtin *jj_builtin_find(const struct jj_builtin *const *tables,
                                         const struct jj_str *name);
/* The method of a value's type, or NULL. */
const struct jj_builtin *jj_method_find(struct jj_value v, const struct jj_str *name);

/* Binds the arguments to the row's parameters and calls it. */
struct jj_value jj_builtin_call(struct jj_rt *rt, const struct jj_builtin *row,
                                struct jj_value self, const struct jj_args *args);

/* ---- for rows ---- */

struct jj_value jj_bound(struct jj_rt *rt, const struct jj_builtin *row, struct jj_value self);
/* The string of an argument; fails (and gives an empty one) on other types. */
const struct jj_str *jj_arg_str(struct jj_rt *rt, struct jj_value v);
/* NULL when absent or none. */
const struct jj_str *jj_arg_str_or_null(struct jj_rt *rt, struct jj_value v);
bool jj_arg_true(struct jj_value v, bool otherwise);
int64_t jj_length(struct jj_rt *rt, struct jj_value v);
/* v.a.b of "a.b", as map(attribute=) has it. */
struct jj_value jj_path(struct jj_rt *rt, struct jj_value v, struct jj_value path);
/* Stable sort by key; keys: [n] beside the items, or NULL: the items themselves. */
void jj_sort(struct jj_rt *rt, struct jj_seq *s, const struct jj_value *keys, bool reverse);
/* lower() of strings unless case counts. */
struct jj_value jj_fold(struct jj_rt *rt, struct jj_value v, bool case_sensitive);

struct jj_dict *jj_dict_from_args(struct jj_rt *rt, const struct jj_args *args);

/* ---- json (jinja_json.c) and formats (jinja_format.c) ---- */

struct jj_json_style {
    bool ensure_ascii, sort_keys;
    const struct jj_str *indent; /* of one level; NULL: one line */
    const struct jj_str *item, *key;
};
void jj_buf_add_json(struct jj_rt *rt, struct jj_buf *b, struct jj_value v,
                     const struct jj_json_style *style);
struct jj_value jj_format_percent(struct jj_rt *rt, const struct jj_str *format,
                                  struct jj_value args);
struct jj_value jj_format_braces(struct jj_rt *rt, const struct jj_str *format,
                                 const struct jj_args *args);

#endif
