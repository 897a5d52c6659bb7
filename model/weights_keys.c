#include "weights_inner.h"

#include <stdlib.h>
#include <string.h>

#define MOST_NAME_BYTES 65535 /* of a key, says the format */

/* ---- the list ---- */

bool name_is_plain(const struct weights_string *name, size_t most)
{
    for (size_t i = 0; i < name->bytes && i < most; i++)
        if ((unsigned char)name->s[i] < 0x20 || name->s[i] == 0x7f)
            return false;
    return name->bytes >= 1 && name->bytes <= most;
}

const char *weights_show(struct weights_string s, struct weights_shown *shown)
{
    size_t n = s.bytes < sizeof shown->text - 4 ? s.bytes : sizeof shown->text - 4;
    for (size_t i = 0; i < n; i++)
        shown->text[i] = s.s[i] >= 0x20 && s.s[i] < 0x7f ? s.s[i] : '?';
    strcpy(shown->text + n, n < s.bytes ? "..." : "");
    return shown->text;
}

static int compare_keys(const void *a, const void *b)
{
    const struct weights_string *x = &((const struct key *)a)->name;
    const struct weights_string *y = &((const struct key *)b)->name;
    int c = memcmp(x->s, y->s, x->bytes < y->bytes ? x->bytes : y->bytes);
    return c ? c : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static const struct key *find(const struct keys *k, const char *name)
{
    const struct key wanted = {.name = {name, strlen(name)}};
    return k->n ? bsearch(&wanted, k->list, k->n, sizeof *k->list, compare_keys) : NULL;
}

static int read_key(struct cursor *c, uint64_t i, struct key *out, struct err *err)
{
    struct weights_shown shown;
    cursor_reads(c, "the name of key %llu", (unsigned long long)i);
    int rc = cursor_string(c, &out->name, err);
    if (rc)
        return rc;
    if (!name_is_plain(&out->name, MOST_NAME_BYTES))
        return err_set(err, ERR_FORMAT,
                       "%s: key %llu has a name of %zu bytes, \"%s\"; 1 to %d characters were "
                       "expected",
                       c->path, (unsigned long long)i, out->name.bytes,
                       weights_show(out->name, &shown), MOST_NAME_BYTES);
    cursor_reads(c, "the key \"%s\"", weights_show(out->name, &shown));
    return cursor_value(c, &out->value, err);
}

static int check_twice(const struct keys *k, const char *path, struct err *err)
{
    struct weights_shown shown;
    for (size_t i = 1; i < k->n; i++)
        if (compare_keys(&k->list[i - 1], &k->list[i]) == 0)
            return err_set(err, ERR_FORMAT, "%s holds the key \"%s\" twice", path,
                           weights_show(k->list[i].name, &shown));
    return 0;
}

int keys_read(struct cursor *c, uint64_t n, struct keys *out, struct err *err)
{
    int rc = 0;
    *out = (struct keys){.list = calloc(n + 1, sizeof *out->list)};
    if (!out->list)
        return err_set(err, ERR_NOMEM, "no memory for the keys of %s", c->path);
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = read_key(c, i, &out->list[i], err);
    if (rc == 0) {
        out->n = n;
        qsort(out->list, n, sizeof *out->list, compare_keys);
        rc = check_twice(out, c->path, err);
    }
    if (rc)
        keys_finish(out);
    return rc;
}

void keys_finish(struct keys *k)
{
    free(k->list);
    *k = (struct keys){0};
}

/* ---- settings ---- */

static int wrong_type(const char *path, const struct key *k, const char *expected, struct err *err)
{
    struct weights_shown shown;
    return err_set(err, ERR_FORMAT, "%s: the key \"%s\" is %s%s; %s was expected", path,
                   weights_show(k->name, &shown), k->value.array ? "an array of " : "of type ",
                   gguf_type_names[k->value.type], expected);
}

int keys_int(const struct keys *keys, const char *path, const char *key, int64_t *out,
             struct err *err)
{
    const struct key *k = find(keys, key);
    if (!k)
        return 0;
    if (k->value.array || !gguf_element_int(k->value.type, k->value.data, out))
        return wrong_type(path, k, "a whole number below 2^63", err);
    return 1;
}

int weights_int(const struct weights *w, const char *key, int64_t *out, struct err *err)
{
    return keys_int(&w->keys, w->path, key, out, err);
}

int weights_float(const struct weights *w, const char *key, float *out, struct err *err)
{
    const struct key *k = find(&w->keys, key);
    double v;
    if (!k)
        return 0;
    if (k->value.array || !gguf_element_float(k->value.type, k->value.data, &v))
        return wrong_type(w->path, k, "a number", err);
    *out = (float)v;
    return 1;
}

int weights_bool(const struct weights *w, const char *key, bool *out, struct err *err)
{
    const struct key *k = find(&w->keys, key);
    if (!k)
        return 0;
    if (k->value.array || k->value.type != GGUF_BOOL)
        return wrong_type(w->path, k, "true or false", err);
    *out = *k->value.data != 0;
    return 1;
}

/* The value was read once with checks, so its strings are known to lie inside the file. */
static struct weights_string string_at(const uint8_t **at)
{
    uint64_t bytes;
    memcpy(&bytes, *at, sizeof bytes);
    struct weights_string s = {(const char *)*at + sizeof bytes, (size_t)bytes};
    *at += sizeof bytes + bytes;
    return s;
}

int weights_string(const struct weights *w, const char *key, struct weights_string *out,
                   struct err *err)
{
    const struct key *k = find(&w->keys, key);
    if (!k)
        return 0;
    if (k->value.array || k->value.type != GGUF_STRING)
        return wrong_type(w->path, k, "a string", err);
    const uint8_t *at = k->value.data;
    *out = string_at(&at);
    return 1;
}

int64_t weights_array_size(const struct weights *w, const char *key)
{
    const struct key *k = find(&w->keys, key);
    return k && k->value.array ? k->value.count : 0;
}

int weights_array_strings(const struct weights *w, const char *key, struct weights_string *out,
                          struct err *err)
{
    const struct key *k = find(&w->keys, key);
    if (!k)
        return 0;
    if (!k->value.array || k->value.type != GGUF_STRING)
        return wrong_type(w->path, k, "an array of strings", err);
    const uint8_t *at = k->value.data;
    for (int64_t i = 0; i < k->value.count; i++)
        out[i] = string_at(&at);
    return 1;
}

int weights_array_ints(const struct weights *w, const char *key, int32_t *out, struct err *err)
{
    const struct key *k = find(&w->keys, key);
    if (!k)
        return 0;
    for (int64_t i = 0; i < k->value.count; i++) {
        int64_t v;
        if (!k->value.array ||
            !gguf_element_int(k->value.type, k->value.data + i * gguf_type_bytes(k->value.type),
                              &v) ||
            v != (int32_t)v)
            return wrong_type(w->path, k, "an array of 32-bit whole numbers", err);
        out[i] = (int32_t)v;
    }
    return 1;
}

int weights_array_floats(const struct weights *w, const char *key, float *out, struct err *err)
{
    const struct key *k = find(&w->keys, key);
    if (!k)
        return 0;
    for (int64_t i = 0; i < k->value.count; i++) {
        double v;
        if (!k->value.array ||
            !gguf_element_float(k->value.type, k->value.data + i * gguf_type_bytes(k->value.type),
                                &v))
            return wrong_type(w->path, k, "an array of numbers", err);
        out[i] = (float)v;
    }
    return 1;
}
