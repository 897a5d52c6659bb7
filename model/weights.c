#include "weights_inner.h"

#include "checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_SPLITS        1000
#define MOST_ENTRIES       1000000u /* tensors, or keys, of a file */
#define MOST_NAME_BYTES    512
#define DEFAULT_ALIGN      32u
#define LEAST_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8) /* name, dimension, format, offset */
#define BEGINNING_BYTES    65536                   /* of a file, that tell it from others */
#define LEAST_KEY_BYTES    (8 + 1 + 4 + 1)

/* ---- names ---- */

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
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

uint64_t weights_identity(const struct weights *w)
{
    uint64_t h = w->n_tensors;
    for (int i = 0; i < w->n_files; i++) {
        const struct mapping *f = &w->files[i];
        const int64_t facts[] = {(int64_t)f->bytes, f->changed};
        h = checksum(h, facts, sizeof facts);
        h = checksum(h, f->data, f->bytes < BEGINNING_BYTES ? f->bytes : BEGINNING_BYTES);
    }
    for (size_t i = 0; i < w->n_tensors; i++)
        h = checksum(h, w->tensors[i].name, strlen(w->tensors[i].name));
    return h;
}

/* The whole pages within, or (wider) all that are touched. */
static void advise(const void *data, size_t bytes, bool wider, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)data, last = first + bytes;
    first = (wider ? first : first + page - 1) / page * page;
    last = (wider ? last + page - 1 : last) / page * page;
    if (first < last)
        madvise((void *)first, last - first, advice);
}

void weights_let_go(const void *data, size_t bytes)
{
    advise(data, bytes, false, MADV_DONTNEED);
}

void weights_read_in(const void *data, size_t bytes)
{
#ifdef MADV_POPULATE_READ
    advise(data, bytes, true, MADV_POPULATE_READ);
#else
    advise(data, bytes, true, MADV_WILLNEED);
#endif
}

/* ---- one file ---- */

static int map_file(const char *path, struct mapping *out, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not keep us waiting */
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
            *out = (struct mapping){p, (size_t)st.st_size,
                                    (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
    }
    close(fd);
    return rc;
}

struct header {
    uint64_t tensors, keys;
};

static int check_version(const struct cursor *c, uint32_t version, struct err *err)
{
    if (version == 2 || version == 3)
        return 0;
    bool big = __builtin_bswap32(version) <= 0xffff && version > 0xffff;
    return err_set(err, ERR_UNSUPPORTED, "%s: GGUF version %u%s; versions 2 and 3%s are supported",
                   c->path, big ? __builtin_bswap32(version) : version, big ? ", big-endian" : "",
                   big ? ", little-endian," : "");
}

/* No more than the file has bytes for: a list is allocated from these counts. */
static int check_counts(const struct cursor *c, const struct header *h, struct err *err)
{
    uint64_t bytes = (uint64_t)(c->end - c->start);
    if (h->tensors <= bytes / LEAST_TENSOR_BYTES && h->keys <= bytes / LEAST_KEY_BYTES &&
        h->tensors <= MOST_ENTRIES && h->keys <= MOST_ENTRIES)
        return 0;
    return err_set(
        err, ERR_FORMAT,
        "%s: the header claims %llu tensors and %llu keys, which cannot be true of a file "
        "of %llu bytes",
        c->path, (unsigned long long)h->tensors, (unsigned long long)h->keys,
        (unsigned long long)bytes);
}

static int read_header(struct cursor *c, struct header *out, struct err *err)
{
    uint32_t magic, version;
    cursor_reads(c, "the first 24 bytes");
    int rc = cursor_u32(c, &magic, err);
    if (rc == 0)
        rc = cursor_u32(c, &version, err);
    if (rc)
        return rc;
    if (magic != 0x46554747u)
        return err_set(err, ERR_FORMAT, "%s is not a GGUF file: it starts with %08x, not \"GGUF\"",
                       c->path, __builtin_bswap32(magic));
    rc = check_version(c, version, err);
    if (rc == 0)
        rc = cursor_u64(c, &out->tensors, err);
    if (rc == 0)
        rc = cursor_u64(c, &out->keys, err);
    return rc ? rc : check_counts(c, out, err);
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
            return err_set(err, ERR_FORMAT,
                           "%s: dimension %d of tensor \"%s\" is %llu; 1 to %d are possible",
                           c->path, i, t->name, (unsigned long long)d, INT32_MAX);
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

static int read_tensor_name(struct weights *w, struct cursor *c, uint64_t i, struct tensor *t,
                            struct err *err)
{
    struct weights_string name;
    struct weights_shown shown;
    cursor_reads(c, "the name of tensor %llu", (unsigned long long)i);
    int rc = cursor_string(c, &name, err);
    if (rc)
        return rc;
    if (!name_is_plain(&name, MOST_NAME_BYTES))
        return err_set(err, ERR_FORMAT,
                       "%s: tensor %llu has a name of %zu bytes, \"%s\"; 1 to %d characters were "
                       "expected",
                       c->path, (unsigned long long)i, name.bytes, weights_show(name, &shown),
                       MOST_NAME_BYTES);
    t->name = mem_arena_strndup(&w->names, name.s, name.bytes);
    if (!t->name)
        return err_set(err, ERR_NOMEM, "no memory for the tensor names of %s", c->path);
    cursor_reads(c, "tensor \"%s\"", weights_show(name, &shown));
    return 0;
}

static int read_tensor(struct weights *w, struct cursor *c, uint64_t i, struct tensor *t,
                       uint64_t *offset, struct err *err)
{
    int rc = read_tensor_name(w, c, i, t, err);
    if (rc == 0)
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

static int alignment_of(const struct keys *keys, const char *path, uint64_t *out, struct err *err)
{
    int64_t align = DEFAULT_ALIGN;
    int rc = keys_int(keys, path, "general.alignment", &align, err);
    if (rc < 0)
        return rc;
    if (align < 4 || align > 1 << 20 || (align & (align - 1)))
        return err_set(err, ERR_FORMAT,
                       "%s: general.alignment is %lld; a power of two from 4 to %d was expected",
                       path, (long long)align, 1 << 20);
    *out = (uint64_t)align;
    return 0;
}

static int read_tensors(struct weights *w, struct cursor *c, const struct keys *keys, uint64_t n,
                        struct err *err)
{
    uint64_t align = DEFAULT_ALIGN;
    int rc = alignment_of(keys, c->path, &align, err);
    if (rc)
        return rc;
    uint64_t *offsets = calloc(n + 1, sizeof *offsets);
    struct tensor *all = realloc(w->tensors, (w->n_tensors + n + 1) * sizeof *all);
    if (all)
        w->tensors = all;
    if (!all || !offsets) {
        free(offsets);
        return err_set(err, ERR_NOMEM, "no memory for the tensor list of %s", c->path);
    }
    struct tensor *mine = all + w->n_tensors;
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = read_tensor(w, c, i, &mine[i], &offsets[i], err);
    for (uint64_t i = 0; i < n && rc == 0; i++)
        rc = place_tensor(&mine[i], offsets[i], c, align, err);
    free(offsets);
    if (rc == 0)
        w->n_tensors += n;
    return rc;
}

/* Maps the file and adds its tensors. *keys are the caller's to finish. */
static int read_file(struct weights *w, const char *path, struct keys *keys, struct err *err)
{
    struct mapping *file = &w->files[w->n_files];
    *keys = (struct keys){0};
    int rc = map_file(path, file, err);
    if (rc)
        return rc;
    w->n_files++;
    struct cursor c = {.at = file->data, .end = file->data + file->bytes, .path = path};
    struct header header;
    c.start = file->data;
    rc = read_header(&c, &header, err);
    if (rc == 0)
        rc = keys_read(&c, header.keys, keys, err);
    return rc ? rc : read_tensors(w, &c, keys, header.tensors, err);
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

/* A later file of a set has settings of its own: which one it is, sometimes its alignment. */
static int read_split(struct weights *w, const char *first, int64_t i, int64_t n, struct err *err)
{
    char path[4096];
    struct keys keys = {0};
    int64_t number = i, count = n;
    int rc = split_path(first, i, n, path, sizeof path, err);
    if (rc == 0)
        rc = read_file(w, path, &keys, err);
    if (rc == 0)
        rc = keys_int(&keys, path, "split.no", &number, err);
    if (rc >= 0)
        rc = keys_int(&keys, path, "split.count", &count, err);
    keys_finish(&keys);
    if (rc >= 0 && (number != i || count != n))
        return err_set(err, ERR_FORMAT,
                       "%s says that it is file %lld of %lld; file %lld of %lld was expected", path,
                       (long long)number + 1, (long long)count, (long long)i + 1, (long long)n);
    return rc < 0 ? rc : 0;
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
    for (int64_t i = 1; i < n && rc == 0; i++)
        rc = read_split(w, path, i, n, err);
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
    rc = read_file(w, path, &w->keys, err);
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
    keys_finish(&w->keys);
    free(w->files);
    free(w->path);
    free(w);
}
