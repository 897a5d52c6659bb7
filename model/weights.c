#include "weights.h"

#include "gguf_read.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_TENSORS  1000000u
#define MOST_KEYS     1000000u
#define MOST_SPLITS   1000
#define DEFAULT_ALIGN 32u

struct mapping {
    const uint8_t *data;
    size_t bytes;
};

struct key {
    struct weights_string name;
    struct gguf_value value;
};

struct weights {
    char *path;
    struct mapping *files;
    int n_files;
    struct key *keys; /* of the first file, sorted by name */
    size_t n_keys;
    struct tensor *tensors; /* of all files, sorted by name */
    size_t n_tensors;
    struct mem_arena names;
};

/* ---- names ---- */

static int compare_names(const char *a, size_t an, const char *b, size_t bn)
{
    int c = memcmp(a, b, an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    return compare_names(x->name.s, x->name.bytes, y->name.s, y->name.bytes);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static const struct key *find_key(const struct weights *w, const char *name)
{
    struct key wanted = {.name = {name, strlen(name)}};
    return w->n_keys ? bsearch(&wanted, w->keys, w->n_keys, sizeof *w->keys, compare_keys) : NULL;
}

const struct tensor *weights_tensor(const struct weights *w, const char *name)
{
    struct tensor wanted = {.name = name};
    return w->n_tensors
               ? bsearch(&wanted, w->tensors, w->n_tensors, sizeof *w->tensors, compare_tensors)
               : NULL;
}

size_t weights_tensors(const struct weights *w)
{
    return w->n_tensors;
}

const struct tensor *weights_tensor_at(const struct weights *w, size_t i)
{
    return &w->tensors[i];
}

const char *weights_path(const struct weights *w)
{
    return w->path;
}

size_t weights_file_bytes(const struct weights *w)
{
    size_t total = 0;
    for (int i = 0; i < w->n_files; i++)
        total += w->files[i].bytes;
    return total;
}

void weights_let_go(const void *data, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)data + bytes) / page * page;
    if (first < last)
        madvise((void *)first, last - first, MADV_DONTNEED);
}

/* ---- one file ---- */

static int map_file(const char *path, struct mapping *out, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "cannot open the model file %s: %s", path, strerror(errno));
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = err_set(err, ERR_IO, "cannot read the size of %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_FORMAT, "%s is not a regular file; a GGUF model file was expected",
                     path);
    else if (st.st_size < 24)
        rc = err_set(err, ERR_FORMAT, "%s has %lld bytes, too few for a GGUF header", path,
                     (long long)st.st_size);
    if (rc == 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            rc = err_set(err, ERR_IO, "cannot map %s: %s", path, strerror(errno));
        else
            *out = (struct mapping){p, (size_t)st.st_size};
    }
    close(fd);
    return rc;
}

struct header {
    uint64_t tensors, keys;
};

static int read_header(struct cursor *c, struct header *out, struct err *err)
{
    uint32_t magic, version;
    int rc = cursor_u32(c, &magic, err);
    if (rc == 0)
        rc = cursor_u32(c, &version, err);
    if (rc)
        return rc;
    if (magic != 0x46554747u)
        return err_set(err, ERR_FORMAT, "%s is not a GGUF file: it starts with %08x, not \"GGUF\"",
                       c->path, __builtin_bswap32(magic));
    if (version != 2 && version != 3)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: GGUF version %u%s; versions 2 and 3 are supported", c->path, version,
                       version > 0xffffu ? " (a big-endian file)" : "");
    rc = cursor_u64(c, &out->tensors, err);
    if (rc == 0)
        rc = cursor_u64(c, &out->keys, err);
    if (rc)
        return rc;
    if (out->tensors > MOST_TENSORS || out->keys > MOST_KEYS)
        return err_set(err, ERR_FORMAT,
                       "%s: the header claims %llu tensors and %llu keys, which cannot be true",
                       c->path, (unsigned long long)out->tensors, (unsigned long long)out->keys);
    return 0;
}

static int read_keys(struct cursor *c, uint64_t n, struct key **out, struct err *err)
{
    struct key *keys = calloc(n ? n : 1, sizeof *keys);
    if (!keys)
        return err_set(err, ERR_NOMEM, "no memory for the keys of %s", c->path);
    int rc = 0;
    for (uint64_t i = 0; i < n && rc == 0; i++) {
        rc = cursor_string(c, &keys[i].name, err);
        if (rc == 0)
            rc = cursor_value(c, &keys[i].value, err);
    }
    if (rc) {
        free(keys);
        return rc;
    }
    qsort(keys, n, sizeof *keys, compare_keys);
    *out = keys;
    return 0;
}

static int read_dims(struct cursor *c, struct tensor *t, struct err *err)
{
    uint32_t dims;
    int rc = cursor_u32(c, &dims, err);
    if (rc)
        return rc;
    if (dims < 1 || dims > 4)
        return err_set(err, ERR_FORMAT, "%s: tensor \"%s\" has %u dimensions; 1 to 4 are possible",
                       c->path, t->name, dims);
    t->dims = (int)dims;
    for (int i = 0; i < 4; i++) {
        uint64_t d = 1;
        if (i < t->dims && (rc = cursor_u64(c, &d, err)) != 0)
            return rc;
        if (d == 0 || d > INT32_MAX)
            return err_set(err, ERR_FORMAT, "%s: dimension %d of tensor \"%s\" is %llu", c->path, i,
                           t->name, (unsigned long long)d);
        t->dim[i] = (int64_t)d;
    }
    return 0;
}

static int read_format(struct cursor *c, struct tensor *t, struct err *err)
{
    uint32_t type;
    int rc = cursor_u32(c, &type, err);
    if (rc)
        return rc;
    int format = format_from_gguf(type);
    if (format < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has number format %u, which is not known", c->path,
                       t->name, type);
    t->format = (enum format_id)format;
    const struct format_info *f = &format_infos[format];
    if (t->dim[0] % f->block_values)
        return err_set(err, ERR_FORMAT,
                       "%s: rows of tensor \"%s\" have %lld values; %s has blocks of %d", c->path,
                       t->name, (long long)t->dim[0], f->name, f->block_values);
    size_t bytes = (size_t)(t->dim[0] / f->block_values) * (size_t)f->block_bytes;
    for (int i = 1; i < 4; i++)
        if (!mem_mul(bytes, (size_t)t->dim[i], &bytes))
            return err_set(err, ERR_FORMAT, "%s: the size of tensor \"%s\" overflows", c->path,
                           t->name);
    t->bytes = bytes;
    return 0;
}

static int read_tensor(struct weights *w, struct cursor *c, struct tensor *t, uint64_t *offset,
                       struct err *err)
{
    struct weights_string name;
    int rc = cursor_string(c, &name, err);
    if (rc)
        return rc;
    if (name.bytes == 0 || name.bytes > 512 || memchr(name.s, 0, name.bytes))
        return err_set(err, ERR_FORMAT, "%s: a tensor has a name of %zu bytes", c->path,
                       name.bytes);
    t->name = mem_arena_strndup(&w->names, name.s, name.bytes);
    if (!t->name)
        return err_set(err, ERR_NOMEM, "no memory for the tensor names of %s", c->path);
    rc = read_dims(c, t, err);
    if (rc == 0)
        rc = read_format(c, t, err);
    if (rc == 0)
        rc = cursor_u64(c, offset, err);
    return rc;
}

/* Offsets count from the end of the header, rounded up to the file's alignment. */
static int place_tensor(struct tensor *t, uint64_t offset, const struct cursor *c, uint64_t align,
                        struct err *err)
{
    uint64_t start = ((uint64_t)(c->at - c->start) + align - 1) / align * align;
    uint64_t bytes = (uint64_t)(c->end - c->start);
    if (offset % align)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor \"%s\" starts at offset %llu, not a multiple of %llu", c->path,
                       t->name, (unsigned long long)offset, (unsigned long long)align);
    if (start > bytes || offset > bytes - start || t->bytes > bytes - start - offset)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor \"%s\" ends after the file: it needs %zu bytes from %llu on, "
                       "the file has %llu "
                       "(is the download complete?)",
                       c->path, t->name, t->bytes, (unsigned long long)(start + offset),
                       (unsigned long long)bytes);
    t->data = c->start + start + offset;
    return 0;
}

static int alignment_of(const struct weights *w, const char *path, uint64_t *out, struct err *err)
{
    int64_t align = DEFAULT_ALIGN;
    int rc = weights_int(w, "general.alignment", &align, err);
    if (rc < 0)
        return rc;
    if (align < 4 || align > 1 << 20 || (align & (align - 1)))
        return err_set(err, ERR_FORMAT,
                       "%s: general.alignment is %lld; a power of two from 4 on was expected", path,
                       (long long)align);
    *out = (uint64_t)align;
    return 0;
}

static int read_tensors(struct weights *w, struct cursor *c, uint64_t n, struct err *err)
{
    uint64_t align = DEFAULT_ALIGN;
    int rc = alignment_of(w, c->path, &align, err);
    if (rc)
        return rc;
    uint64_t *offsets = calloc(n ? n : 1, sizeof *offsets);
    struct tensor *all = realloc(w->tensors, (w->n_tensors + n + 1) * sizeof *all);
    if (all)
        w->tensors = all;
    if (!all || !offsets) {
        free(offsets);
        return err_set(err, ERR_NOMEM, "no memory for the tensor list of %s", c->path);
    }
    struct tensor *mine = all + w->n_tensors;
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = read_tensor(w, c, &mine[i], &offsets[i], err);
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = place_tensor(&mine[i], offsets[i], c, align, err);
    free(offsets);
    if (rc == 0)
        w->n_tensors += n;
    return rc;
}

static int read_file(struct weights *w, const char *path, struct err *err)
{
    struct mapping *file = &w->files[w->n_files];
    int rc = map_file(path, file, err);
    if (rc)
        return rc;
    w->n_files++;
    struct cursor c = {file->data, file->data + file->bytes, file->data, path};
    struct header header;
    struct key *keys = NULL;
    rc = read_header(&c, &header, err);
    if (rc == 0)
        rc = read_keys(&c, header.keys, &keys, err);
    if (rc)
        return rc;
    if (w->n_files == 1) {
        w->keys = keys;
        w->n_keys = header.keys;
    } else {
        free(keys); /* later files of a split set repeat or lack the settings */
    }
    return read_tensors(w, &c, header.tensors, err);
}

/* ---- split sets: NAME-00001-of-00003.gguf ---- */

static int split_path(const char *first, int64_t i, int64_t n, char *out, size_t bytes,
                      struct err *err)
{
    char end[32];
    snprintf(end, sizeof end, "-%05d-of-%05d.gguf", 1, (int)n);
    size_t len = strlen(first), tail = strlen(end);
    if (len < tail || strcmp(first + len - tail, end) || len + 1 > bytes)
        return err_set(
            err, ERR_ARG,
            "%s is part of a set of %lld files: give the first one, whose name ends in %s", first,
            (long long)n, end);
    snprintf(out, bytes, "%.*s-%05d-of-%05d.gguf", (int)(len - tail), first, (int)i + 1, (int)n);
    return 0;
}

static int read_splits(struct weights *w, const char *path, struct err *err)
{
    int64_t n = 1, number = 0, expected = 0;
    int rc = weights_int(w, "split.count", &n, err);
    if (rc >= 0)
        rc = weights_int(w, "split.no", &number, err);
    if (rc >= 0)
        rc = weights_int(w, "split.tensors.count", &expected, err);
    if (rc < 0)
        return rc;
    if (n <= 1)
        return 0;
    if (n > MOST_SPLITS || number != 0)
        return err_set(err, ERR_ARG, "%s is file %lld of a set of %lld: give the first one", path,
                       (long long)number + 1, (long long)n);
    struct mapping *files = realloc(w->files, (size_t)n * sizeof *files);
    if (!files)
        return err_set(err, ERR_NOMEM, "no memory for %lld files", (long long)n);
    w->files = files;
    rc = 0;
    for (int64_t i = 1; i < n && rc == 0; i++) {
        char next[4096];
        rc = split_path(path, i, n, next, sizeof next, err);
        if (rc == 0)
            rc = read_file(w, next, err);
    }
    if (rc == 0 && expected && (size_t)expected != w->n_tensors)
        rc = err_set(err, ERR_FORMAT,
                     "the set of %s holds %zu tensors; its first file expects %lld", path,
                     w->n_tensors, (long long)expected);
    return rc;
}

static int check_names(const struct weights *w, struct err *err)
{
    for (size_t i = 1; i < w->n_tensors; i++)
        if (!strcmp(w->tensors[i - 1].name, w->tensors[i].name))
            return err_set(err, ERR_FORMAT, "%s holds two tensors of the name \"%s\"", w->path,
                           w->tensors[i].name);
    for (size_t i = 1; i < w->n_keys; i++)
        if (compare_keys(&w->keys[i - 1], &w->keys[i]) == 0)
            return err_set(err, ERR_FORMAT, "%s holds the key \"%.*s\" twice", w->path,
                           (int)w->keys[i].name.bytes, w->keys[i].name.s);
    return 0;
}

int weights_open(const char *path, struct weights **out, struct err *err)
{
    *out = NULL;
    struct weights *w = calloc(1, sizeof *w);
    int rc = ERR_NOMEM;
    if (w) {
        w->path = strdup(path);
        w->files = calloc(1, sizeof *w->files);
    }
    if (!w || !w->path || !w->files) {
        err_set(err, ERR_NOMEM, "no memory to open %s", path);
        goto fail;
    }
    rc = read_file(w, path, err);
    if (rc == 0)
        rc = read_splits(w, path, err);
    if (rc)
        goto fail;
    qsort(w->tensors, w->n_tensors, sizeof *w->tensors, compare_tensors);
    rc = check_names(w, err);
    if (rc)
        goto fail;
    *out = w;
    return 0;
fail:
    weights_close(w);
    return rc;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_files; i++)
        munmap((void *)w->files[i].data, w->files[i].bytes);
    mem_arena_finish(&w->names);
    free(w->tensors);
    free(w->keys);
    free(w->files);
    free(w->path);
    free(w);
}

/* ---- settings ---- */

static int wrong_type(const struct weights *w, const struct key *k, const char *expected,
                      struct err *err)
{
    return err_set(err, ERR_FORMAT, "%s: the key \"%.*s\" is %s%s; %s was expected", w->path,
                   (int)k->name.bytes, k->name.s, k->value.array ? "an array of " : "of type ",
                   gguf_type_names[k->value.type], expected);
}

int weights_int(const struct weights *w, const char *key, int64_t *out, struct err *err)
{
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    if (k->value.array || !gguf_element_int(k->value.type, k->value.data, out))
        return wrong_type(w, k, "a whole number", err);
    return 1;
}

int weights_float(const struct weights *w, const char *key, float *out, struct err *err)
{
    const struct key *k = find_key(w, key);
    double v;
    if (!k)
        return 0;
    if (k->value.array || !gguf_element_float(k->value.type, k->value.data, &v))
        return wrong_type(w, k, "a number", err);
    *out = (float)v;
    return 1;
}

int weights_bool(const struct weights *w, const char *key, bool *out, struct err *err)
{
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    if (k->value.array || k->value.type != GGUF_BOOL)
        return wrong_type(w, k, "true or false", err);
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
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    if (k->value.array || k->value.type != GGUF_STRING)
        return wrong_type(w, k, "a string", err);
    const uint8_t *at = k->value.data;
    *out = string_at(&at);
    return 1;
}

int64_t weights_array_size(const struct weights *w, const char *key)
{
    const struct key *k = find_key(w, key);
    return k && k->value.array ? k->value.count : 0;
}

int weights_array_strings(const struct weights *w, const char *key, struct weights_string *out,
                          struct err *err)
{
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    if (!k->value.array || k->value.type != GGUF_STRING)
        return wrong_type(w, k, "an array of strings", err);
    const uint8_t *at = k->value.data;
    for (int64_t i = 0; i < k->value.count; i++)
        out[i] = string_at(&at);
    return 1;
}

int weights_array_ints(const struct weights *w, const char *key, int32_t *out, struct err *err)
{
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    for (int64_t i = 0; i < k->value.count; i++) {
        int64_t v;
        if (!k->value.array ||
            !gguf_element_int(k->value.type, k->value.data + i * gguf_type_bytes(k->value.type),
                              &v) ||
            v != (int32_t)v)
            return wrong_type(w, k, "an array of 32-bit whole numbers", err);
        out[i] = (int32_t)v;
    }
    return 1;
}

int weights_array_floats(const struct weights *w, const char *key, float *out, struct err *err)
{
    const struct key *k = find_key(w, key);
    if (!k)
        return 0;
    for (int64_t i = 0; i < k->value.count; i++) {
        double v;
        if (!k->value.array ||
            !gguf_element_float(k->value.type, k->value.data + i * gguf_type_bytes(k->value.type),
                                &v))
            return wrong_type(w, k, "an array of numbers", err);
        out[i] = (float)v;
    }
    return 1;
}
