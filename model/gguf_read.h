#ifndef MODEL_GGUF_READ_H
#define MODEL_GGUF_READ_H

#include "err.h"
#include "weights.h"

/* Reading of GGUF's header, with every length checked. */

struct cursor {
    const uint8_t *at, *end;
    const uint8_t *start;
    /* for sentences */
    const char *path;
    char what[96]; /* is being read: "the key \"general.name\"" */
};

/* What is being read from now on. */
void cursor_reads(struct cursor *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};
extern const char *const gguf_type_names[GGUF_TYPE_COUNT];

struct gguf_value {
    enum gguf_type type; /* of the value, or of an array's elements */
    bool array;
    int64_t count;       /* of an array; else 1 */
    const uint8_t *data; /* first element, in file order */
};

int cursor_u32(struct cursor *c, uint32_t *out, struct err *err);
int cursor_u64(struct cursor *c, uint64_t *out, struct err *err);
int cursor_string(struct cursor *c, struct weights_string *out, struct err *err);
/* Reads a value of a key (type word first) and moves behind it. */
int cursor_value(struct cursor *c, struct gguf_value *out, struct err *err);

/* One element that is a number, as the widest type of its kind. False, with *out untouched, when
 * the type is none of the kind or the number does not fit. */
bool gguf_element_int(enum gguf_type type, const uint8_t *data, int64_t *out);
bool gguf_element_float(enum gguf_type type, const uint8_t *data, double *out);
int gguf_type_bytes(enum gguf_type type); /* 0: of no fixed size */

#endif
