#include "repack.h"

#include "checksum.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       "ROPEPACK"
#define PIECE_BYTES ((size_t)1 << 20) /* that have one checksum */
#define PAGE_BYTES  ((size_t)1 << 16) /* where weights begin: whole pages of any machine */

/* Then a checksum for each piece, then zeros up to PAGE_BYTES. */
struct header {
    char magic[8];
    uint64_t version, key, bytes;
    uint64_t sums; /* checksum of all this and of the pieces' checksums */
};

static size_t pieces_of(size_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static size_t weights_offset(size_t bytes)
{
    return mem_round_up(sizeof(struct header) + pieces_of(bytes) * sizeof(uint64_t), PAGE_BYTES);
}

static uint64_t *sums_of(const struct repack_file *f)
{
    return (uint64_t *)(f->map + sizeof(struct header));
}

static uint64_t head_checksum(const struct header *h, const uint64_t *sums)
{
    uint64_t own = checksum(h->key, h, offsetof(struct header, sums));
    return checksum(own, sums, pieces_of(h->bytes) * sizeof *sums);
}

/* ---- checksums ---- */

struct summing {
    const struct repack_file *f;
    uint64_t *out;         /* NULL: compare */
    _Atomic int64_t wrong; /* a piece whose checksum differs; -1: none */
};

static void sum_pieces(void *arg, int worker, int64_t first, int64_t last)
{
    struct summing *s = arg;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        size_t at = (size_t)i * PIECE_BYTES, left = s->f->bytes - at;
        uint64_t sum = checksum((uint64_t)i, s->f->weights + at,
                                left < PIECE_BYTES ? left : PIECE_BYTES);
        if (s->out)
            s->out[i] = sum;
        else if (sums_of(s->f)[i] != sum)
            atomic_store(&s->wrong, i);
    }
}

/* ---- finding ---- */

static int make_path(struct repack_file *f, const char *dir, uint64_t key, size_t bytes,
                     struct err *err)
{
    char name[64];
    *f = (struct repack_file){.key = key, .bytes = bytes};
    snprintf(name, sizeof name, "%016llx.packed", (unsigned long long)key);
    f->path = malloc(strlen(dir) + strlen(name) + 2);
    if (!f->path)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    sprintf(f->path, "%s/%s", dir, name);
    f->map_bytes = weights_offset(bytes) + bytes;
    return 0;
}

static int map(struct repack_file *f, int fd, int protection, struct err *err)
{
    void *p = mmap(NULL, f->map_bytes, protection, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_set(err, ERR_IO, "cannot map %s: %s", f->path, strerror(errno));
    f->map = p;
    f->weights = f->map + weights_offset(f->bytes);
    return 0;
}

static int map_found(struct repack_file *f, struct err *err)
{
    struct stat st;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    if (fd < 0)
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open %s: %s", f->path,
                       strerror(errno));
    if (fstat(fd, &st))
        rc = err_set(err, ERR_IO, "cannot read the size of %s: %s", f->path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || (size_t)st.st_size != f->map_bytes)
        rc = err_set(err, ERR_FORMAT, "%s has %lld bytes; packed weights of %zu were expected",
                     f->path, (long long)st.st_size, f->map_bytes);
    else
        rc = map(f, fd, PROT_READ, err);
    close(fd);
    return rc;
}

static int check(const struct repack_file *f, struct pool *pool, struct err *err)
{
    const struct header *h = (const struct header *)f->map;
    if (memcmp(h->magic, MAGIC, sizeof h->magic) || h->version != REPACK_VERSION ||
        h->key != f->key || h->bytes != f->bytes)
        return err_set(err, ERR_FORMAT, "%s holds other weights, or of another version", f->path);
    if (h->sums != head_checksum(h, sums_of(f)))
        return err_set(err, ERR_FORMAT, "%s is damaged at its beginning", f->path);
    struct summing s = {.f = f, .wrong = -1};
    int64_t pieces = (int64_t)pieces_of(f->bytes);
    pool_run(pool, sum_pieces, &s, pieces, 4);
    int64_t wrong = atomic_load(&s.wrong);
    if (wrong >= 0)
        return err_set(err, ERR_FORMAT, "%s is damaged in piece %lld of %lld", f->path,
                       (long long)wrong + 1, (long long)pieces);
    return 0;
}

int repack_find(struct repack_file *f, const char *dir, uint64_t key, size_t bytes,
                struct pool *pool, struct err *err)
{
    int rc = make_path(f, dir, key, bytes, err);
    if (rc == 0)
        rc = map_found(f, err);
    if (rc == 0)
        rc = check(f, pool, err);
    if (rc)
        repack_close(f);
    return rc;
}

/* ---- making ---- */

/* All its blocks at once: a full disk shows here, and not as a signal while weights are packed. */
static int create(struct repack_file *f, struct err *err)
{
    static atomic_uint serial;
    char end[48];
    snprintf(end, sizeof end, ".%ld-%u", (long)getpid(), atomic_fetch_add(&serial, 1));
    f->temporary = malloc(strlen(f->path) + strlen(end) + 1);
    if (!f->temporary)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    sprintf(f->temporary, "%s%s", f->path, end);
    int fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        int why = errno;
        free(f->temporary);
        f->temporary = NULL;
        return err_set(err, ERR_IO, "cannot make %s%s: %s", f->path, end, strerror(why));
    }
    int why = posix_fallocate(fd, 0, (off_t)f->map_bytes);
    int rc = why ? err_set(err, ERR_IO, "cannot make %s, of %zu bytes: %s", f->path, f->map_bytes,
                           strerror(why))
                 : map(f, fd, PROT_READ | PROT_WRITE, err);
    close(fd);
    return rc;
}

int repack_begin(struct repack_file *f, const char *dir, uint64_t key, size_t bytes,
                 struct err *err)
{
    int rc = make_path(f, dir, key, bytes, err);
    if (rc == 0)
        rc = create(f, err);
    if (rc)
        repack_close(f);
    return rc;
}

int repack_commit(struct repack_file *f, struct pool *pool, struct err *err)
{
    struct header *h = (struct header *)f->map;
    struct summing s = {.f = f, .out = sums_of(f), .wrong = -1};
    pool_run(pool, sum_pieces, &s, (int64_t)pieces_of(f->bytes), 4);
    *h = (struct header){.version = REPACK_VERSION, .key = f->key, .bytes = f->bytes};
    memcpy(h->magic, MAGIC, sizeof h->magic);
    h->sums = head_checksum(h, sums_of(f));
    mprotect(f->map, f->map_bytes, PROT_READ); /* nobody writes to what others read */
    int rc = 0;
    if (rename(f->temporary, f->path)) {
        rc = err_set(err, ERR_IO, "cannot give %s its name %s: %s", f->temporary, f->path,
                     strerror(errno));
        unlink(f->temporary);
    }
    free(f->temporary);
    f->temporary = NULL;
    return rc;
}

void repack_close(struct repack_file *f)
{
    if (f->map)
        munmap(f->map, f->map_bytes);
    if (f->temporary)
        unlink(f->temporary);
    free(f->path);
    free(f->temporary);
    *f = (struct repack_file){0};
}
