#include "gguf_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const gguf_type_names[GGUF_TYPE_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};

static const int type_bytes[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

int gguf_type_bytes(enum gguf_type type)
{
    return type_bytes[type];
}

void cursor_reads(struct cursor *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->what, sizeof c->what, format, args);
    va_end(args);
}

static int take(struct cursor *c, uint64_t bytes, const uint8_t **out, struct err *err)
{
    uint64_t left = (uint64_t)(c->end - c->at);
    if (bytes > left)
        return err_set(
            err, ERR_FORMAT,
            "%s ends early, in %s: %llu bytes from byte %lld on were expected, the file has %llu",
            c->path, c->what, (unsigned long long)bytes, (long long)(c->at - c->start),
            (unsigned long long)left);
    *out = c->at;
    c->at += bytes;
    return 0;
}

int cursor_u32(struct cursor *c, uint32_t *out, struct err *err)
{
    const uint8_t *p = NULL;
    int rc = take(c, sizeof *out, &p, err);
    if (rc == 0)
        memcpy(out, p, sizeof *out);
    return rc;
}

int cursor_u64(struct cursor *c, uint64_t *out, struct err *err)
{
    const uint8_t *p = NULL;
    int rc = take(c, sizeof *out, &p, err);
    if (rc == 0)
        memcpy(out, p, sizeof *out);
    return rc;
}

int cursor_string(struct cursor *c, struct weights_string *out, struct err *err)
{
    uint64_t bytes;
    const uint8_t *p = NULL;
    int rc = cursor_u64(c, &bytes, err);
    if (rc == 0)
        rc = take(c, bytes, &p, err);
    if (rc == 0)
        *out = (struct weights_string){(const char *)p, (size_t)bytes};
    return rc;
}

static int skip_strings(struct cursor *c, int64_t count, struct err *err)
{
    struct weights_string ignored;
    int rc = 0;
    for (int64_t i = 0; i < count && rc == 0; i++)
        rc = cursor_string(c, &ignored, err);
    return rc;
}

static int read_type(struct cursor *c, enum gguf_type *out, struct err *err)
{
    uint32_t type;
    int rc = cursor_u32(c, &type, err);
    if (rc)
        return rc;
    if (type >= GGUF_TYPE_COUNT)
        return err_set(err, ERR_FORMAT, "%s: %s has value type %u; GGUF has types 0 to %d", c->path,
                       c->what, type, GGUF_TYPE_COUNT - 1);
    *out = (enum gguf_type)type;
    return 0;
}

static int read_array_head(struct cursor *c, struct gguf_value *v, struct err *err)
{
    uint64_t count;
    int rc = read_type(c, &v->type, err);
    if (rc == 0)
        rc = cursor_u64(c, &count, err);
    if (rc)
        return rc;
    if (v->type == GGUF_ARRAY)
        return err_set(err, ERR_UNSUPPORTED, "%s: %s is an array of arrays, which is not supported",
                       c->path, c->what);
    if (count > (uint64_t)(c->end - c->at))
        return err_set(err, ERR_FORMAT,
                       "%s: %s is an array of %llu elements, more than the file has bytes", c->path,
                       c->what, (unsigned long long)count);
    v->array = true;
    v->count = (int64_t)count;
    return 0;
}

int cursor_value(struct cursor *c, struct gguf_value *out, struct err *err)
{
    *out = (struct gguf_value){.count = 1};
    int rc = read_type(c, &out->type, err);
    if (rc == 0 && out->type == GGUF_ARRAY)
        rc = read_array_head(c, out, err);
    if (rc)
        return rc;
    out->data = c->at;
    if (out->type == GGUF_STRING)
        return skip_strings(c, out->count, err);
    const uint8_t *ignored;
    return take(c, (uint64_t)out->count * (uint64_t)type_bytes[out->type], &ignored, err);
}

#define LOAD(type, data)                                                                           \
    ({                                                                                             \
        type v_;                                                                                   \
        memcpy(&v_, data, sizeof v_);                                                              \
        v_;                                                                                        \
    })

bool gguf_element_int(enum gguf_type type, const uint8_t *data, int64_t *out)
{
    switch (type) {
    case GGUF_U8:
        *out = *data;
        return true;
    case GGUF_I8:
        *out = (int8_t)*data;
        return true;
    case GGUF_U16:
        *out = LOAD(uint16_t, data);
        return true;
    case GGUF_I16:
        *out = LOAD(int16_t, data);
        return true;
    case GGUF_U32:
        *out = LOAD(uint32_t, data);
        return true;
    case GGUF_I32:
        *out = LOAD(int32_t, data);
        return true;
    case GGUF_I64:
        *out = LOAD(int64_t, data);
        return true;
    case GGUF_U64: {
        uint64_t v = LOAD(uint64_t, data);
        if (v > INT64_MAX)
            return false;
        *out = (int64_t)v;
        return true;
    }
    default:
        return false;
    }
}

bool gguf_element_float(enum gguf_type type, const uint8_t *data, double *out)
{
    int64_t i;
    if (type == GGUF_F32)
        *out = LOAD(float, data);
    else if (type == GGUF_F64)
        *out = LOAD(double, data);
    else if (gguf_element_int(type, data, &i))
        *out = (double)i;
    else
        return false;
    return true;
}
