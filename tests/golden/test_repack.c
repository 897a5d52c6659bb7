/* Packed weights in a file: the second start maps what the first one wrote, byte for byte, and
 * nothing that is not right is believed. */
#include "config/log.h"
#include "model/load.h"
#include "testlib.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL GOLDEN_DIR "/llama-gqa/model.gguf"
#define OTHER GOLDEN_DIR "/qwen3/model.gguf"

static char dir[64];

struct opened {
    struct weights *weights;
    struct plan plan;
    struct pool *pool;
    struct packed_weights packed;
};

static void open_model(struct opened *o, const char *path, const char *repack_dir)
{
    struct err err;
    const struct model_options options = {.path = path, .window = -1, .kernels = "auto"};
    *o = (struct opened){0};
    if (weights_open(path, &o->weights, &err) || plan_init(&o->plan, o->weights, &options, &err) ||
        pool_create(2, 0, &o->pool, &err))
        fail_msg("%s", err.text);
    const struct loading how = {.pool = o->pool, .repack_dir = repack_dir};
    if (packed_load(&o->packed, &o->plan, o->weights, &how, &err))
        fail_msg("%s", err.text);
}

static void close_model(struct opened *o)
{
    packed_finish(&o->packed);
    plan_finish(&o->plan);
    weights_close(o->weights);
    pool_destroy(o->pool);
}

/* What the folder holds; the path of the last. */
static int list_dir(char *path, size_t bytes)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (*e->d_name != '.') {
            snprintf(path, bytes, "%s/%s", dir, e->d_name);
            n++;
        }
    closedir(d);
    return n;
}

static void empty_dir(void)
{
    char path[512];
    while (list_dir(path, sizeof path))
        unlink(path);
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_ino;
}

static int set_up(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    strcpy(dir, "/tmp/test_repack-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    empty_dir();
    return rmdir(dir);
}

/* The model in memory of its own, and through the folder: the same bytes. */
static void must_load_right(bool in_file)
{
    struct opened own, kept;
    open_model(&own, MODEL, NULL);
    open_model(&kept, MODEL, dir);
    assert_int_equal(own.packed.bytes, kept.packed.bytes);
    assert_memory_equal(own.packed.base, kept.packed.base, own.packed.bytes);
    assert_true(in_file == (kept.packed.file.map != NULL) && in_file == !kept.packed.own);
    assert_null(kept.packed.file.temporary);
    close_model(&own);
    close_model(&kept);
}

static void the_second_start_maps_it(void **state)
{
    (void)state;
    char path[512], again[512];
    empty_dir();
    must_load_right(true);
    assert_int_equal(list_dir(path, sizeof path), 1);
    ino_t first = inode_of(path);
    must_load_right(true);
    assert_int_equal(list_dir(again, sizeof again), 1);
    assert_string_equal(path, again);
    assert_int_equal(inode_of(again), first);
}

static void another_model_has_another_file(void **state)
{
    (void)state;
    char path[512];
    struct opened other;
    empty_dir();
    must_load_right(true);
    open_model(&other, OTHER, dir);
    close_model(&other);
    assert_int_equal(list_dir(path, sizeof path), 2);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 1, f);
    fclose(f);
}

static void must_be_made_again(const char *path, ino_t before)
{
    char now[512];
    must_load_right(true);
    assert_int_equal(list_dir(now, sizeof now), 1);
    assert_string_equal(now, path);
    assert_int_not_equal(inode_of(now), before);
}

static void damage_is_found(void **state)
{
    (void)state;
    static const long places[] = {0, 8, 16, 24, 32, 40, 65536, 65536 + 12345, -1};
    char path[512];
    empty_dir();
    must_load_right(true);
    list_dir(path, sizeof path);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ino_t before = inode_of(path);
        flip(path, places[i]);
        must_be_made_again(path, before);
    }
    ino_t before = inode_of(path);
    assert_int_equal(truncate(path, 70000), 0);
    must_be_made_again(path, before);
    before = inode_of(path);
    assert_int_equal(truncate(path, 0), 0);
    must_be_made_again(path, before);
}

/* Its checksums are right, but its weights are not those of the model. */
static void other_weights_are_found(void **state)
{
    (void)state;
    char path[512];
    struct err err;
    struct opened o;
    struct repack_file f;
    empty_dir();
    open_model(&o, MODEL, dir);
    list_dir(path, sizeof path);
    uint64_t key = strtoull(strrchr(path, '/') + 1, NULL, 16);
    assert_int_equal(repack_begin(&f, dir, key, o.packed.bytes, &err), 0);
    memcpy(f.weights, o.packed.base, o.packed.bytes);
    f.weights[3] ^= 4;
    assert_int_equal(repack_commit(&f, o.pool, &err), 0);
    repack_close(&f);
    close_model(&o);
    must_be_made_again(path, inode_of(path));
}

static void a_folder_that_cannot_be_used_is_no_failure(void **state)
{
    (void)state;
    empty_dir();
    char good[sizeof dir];
    strcpy(good, dir);
    strcpy(dir, "/nonexistent/folder");
    must_load_right(false);
    strcpy(dir, good);
}

/* Nobody believes what a start that was killed has left. */
static void an_unfinished_file_has_another_name(void **state)
{
    (void)state;
    char path[512];
    struct err err;
    struct repack_file f, found;
    struct pool *pool;
    empty_dir();
    assert_int_equal(pool_create(1, 0, &pool, &err), 0);
    assert_int_equal(repack_begin(&f, dir, 7, 100, &err), 0);
    assert_int_equal(list_dir(path, sizeof path), 1);
    assert_int_equal(repack_find(&found, dir, 7, 100, pool, &err), ERR_NOT_FOUND);
    repack_close(&f);
    assert_int_equal(list_dir(path, sizeof path), 0);
    pool_destroy(pool);
}

int main(void)
{
    struct opened o;
    if (access(MODEL, R_OK) || access(OTHER, R_OK))
        return TEST_SKIPPED;
    open_model(&o, MODEL, NULL);
    size_t bytes = o.packed.bytes;
    close_model(&o);
    if (!bytes) {
        puts("plain C packs nothing");
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_start_maps_it),
        cmocka_unit_test(another_model_has_another_file),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(other_weights_are_found),
        cmocka_unit_test(a_folder_that_cannot_be_used_is_no_failure),
        cmocka_unit_test(an_unfinished_file_has_another_name),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
