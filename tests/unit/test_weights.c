#include "model/weights.h"

#include "gguf_builder.h"
#include "testlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a folder for the files of a test ---- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_weights_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"m.gguf", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf", "pipe"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_folder(names[i]));
    return rmdir(folder);
}

/* ---- helpers ---- */

static const uint32_t f32 = 0, q4_0 = 2;
static const float numbers[6] = {1, 2, 3, 4, 5, 6};
static const int64_t two_by_three[] = {2, 3, 1, 1};

/* A file with one of everything. */
static void build_small(struct gguf_builder *b)
{
    static const uint64_t big = UINT64_MAX;
    static const int64_t least = INT64_MIN;
    static const double wide = 0.1;
    static const uint8_t byte = 200;
    static const int8_t small = -3;
    static const int16_t middle = -300;
    static const int32_t ints[] = {7, -8, 9};
    static const char *const texts[] = {"one", "", "three"};
    gguf_init(b);
    gguf_text(b, "general.architecture", "llama");
    gguf_int(b, "a.int", 4000000000);
    gguf_float(b, "a.float", 0.5f);
    gguf_bool(b, "a.bool", true);
    gguf_raw(b, "a.u64", GB_U64, &big, sizeof big);
    gguf_raw(b, "a.i64", GB_I64, &least, sizeof least);
    gguf_raw(b, "a.f64", GB_F64, &wide, sizeof wide);
    gguf_raw(b, "a.u8", GB_U8, &byte, 1);
    gguf_raw(b, "a.i8", GB_I8, &small, 1);
    gguf_raw(b, "a.i16", GB_I16, &middle, 2);
    gguf_array(b, "a.ints", GB_I32, ints, 3, 4);
    gguf_texts(b, "a.texts", texts, 3);
    gguf_array(b, "a.empty", GB_F32, "", 0, 4);
    gguf_tensor(b, "second", f32, 2, two_by_three, numbers, sizeof numbers);
    gguf_tensor(b, "first", f32, 1, (const int64_t[]){3}, numbers + 3, 3 * sizeof(float));
}

static void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* The file at `path` is refused; the sentence names it and holds each of `words`. */
static void expect_refusal(const char *path, int code, const char *const *words)
{
    struct weights *w = (void *)folder;
    struct err err = {0};
    int rc = weights_open(path, &w, &err);
    if (rc == 0)
        fail_msg("a file that should hold \"%s\" was opened", words[0]);
    assert_null(w);
    assert_int_equal(err.code, rc);
    for (int i = 0; words[i]; i++)
        if (!strstr(err.text, words[i]))
            fail_msg("\"%s\" does not say \"%s\"", err.text, words[i]);
    if (!strstr(err.text, path))
        fail_msg("\"%s\" does not name %s", err.text, path);
    if (code)
        assert_int_equal(rc, code);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void expect_refused(struct gguf_builder *b, int code, const char *const *words)
{
    gguf_write(b, in_folder("m.gguf"));
    gguf_finish(b);
    expect_refusal(in_folder("m.gguf"), code, words);
}

static struct weights *open_built(struct gguf_builder *b)
{
    struct weights *w;
    struct err err;
    gguf_write(b, in_folder("m.gguf"));
    gguf_finish(b);
    if (weights_open(in_folder("m.gguf"), &w, &err))
        fail_msg("%s", err.text);
    return w;
}

/* ---- right files ---- */

static void check_tensors(const struct weights *w)
{
    const struct tensor *t = weights_tensor(w, "second");
    assert_int_equal(weights_tensors(w), 2);
    assert_string_equal(weights_tensor_at(w, 0)->name, "first");
    assert_non_null(t);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->dim[0], 2);
    assert_int_equal(t->dim[1], 3);
    assert_int_equal(t->dim[2], 1);
    assert_int_equal(t->dim[3], 1);
    assert_int_equal(t->bytes, 24);
    assert_memory_equal(t->data, numbers, 24);
    t = weights_tensor(w, "first");
    assert_int_equal(t->dims, 1);
    assert_memory_equal(t->data, numbers + 3, 12);
    assert_null(weights_tensor(w, "firs"));
    assert_null(weights_tensor(w, ""));
}

static void opens_versions_2_and_3(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_builder b;
        build_small(&b);
        b.version = version;
        struct weights *w = open_built(&b);
        assert_string_equal(weights_path(w), in_folder("m.gguf"));
        check_tensors(w);
        struct stat st;
        assert_int_equal(stat(weights_path(w), &st), 0);
        assert_int_equal(weights_file_bytes(w), st.st_size);
        weights_let_go(weights_tensor(w, "second")->data, 24);
        check_tensors(w);
        weights_close(w);
    }
    weights_close(NULL);
}

static void reads_settings_of_every_type(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct err err;
    int64_t i = 0;
    float f = 0;
    bool flag = false;
    struct weights_string s;
    build_small(&b);
    struct weights *w = open_built(&b);
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {
        {"a.int", 4000000000}, {"a.i64", INT64_MIN}, {"a.u8", 200}, {"a.i8", -3}, {"a.i16", -300}};
    for (size_t n = 0; n < sizeof ints / sizeof ints[0]; n++) {
        assert_int_equal(weights_int(w, ints[n].key, &i, &err), 1);
        assert_true(i == ints[n].value);
    }
    assert_int_equal(weights_float(w, "a.float", &f, &err), 1);
    assert_true(f == 0.5f);
    assert_int_equal(weights_float(w, "a.f64", &f, &err), 1);
    assert_true(f == 0.1f);
    assert_int_equal(weights_float(w, "a.i8", &f, &err), 1);
    assert_true(f == -3.0f);
    assert_int_equal(weights_bool(w, "a.bool", &flag, &err), 1);
    assert_true(flag);
    assert_int_equal(weights_string(w, "general.architecture", &s, &err), 1);
    assert_int_equal(s.bytes, 5);
    assert_memory_equal(s.s, "llama", 5);
    weights_close(w);
}

static void reads_arrays(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct err err;
    int32_t ints[3];
    float floats[3];
    struct weights_string texts[3];
    build_small(&b);
    struct weights *w = open_built(&b);
    assert_int_equal(weights_array_size(w, "a.ints"), 3);
    assert_int_equal(weights_array_size(w, "a.int"), 0);
    assert_int_equal(weights_array_size(w, "none"), 0);
    assert_int_equal(weights_array_size(w, "a.empty"), 0);
    assert_int_equal(weights_array_ints(w, "a.ints", ints, &err), 1);
    assert_int_equal(ints[1], -8);
    assert_int_equal(weights_array_floats(w, "a.ints", floats, &err), 1);
    assert_true(floats[2] == 9.0f);
    assert_int_equal(weights_array_strings(w, "a.texts", texts, &err), 1);
    assert_int_equal(texts[1].bytes, 0);
    assert_memory_equal(texts[2].s, "three", 5);
    assert_int_equal(weights_array_ints(w, "none", ints, &err), 0);
    weights_close(w);
}

static void leaves_out_alone_when_a_key_is_absent_or_of_another_type(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct err err;
    int64_t i = 42;
    float f = 42;
    bool flag = true;
    struct weights_string s = {"x", 1};
    build_small(&b);
    struct weights *w = open_built(&b);
    assert_int_equal(weights_int(w, "none", &i, &err), 0);
    assert_int_equal(weights_float(w, "none", &f, &err), 0);
    assert_int_equal(weights_bool(w, "none", &flag, &err), 0);
    assert_int_equal(weights_string(w, "none", &s, &err), 0);
    static const char *const not_ints[] = {"a.float", "a.bool", "a.u64", "a.ints",
                                           "general.architecture"};
    for (size_t n = 0; n < sizeof not_ints / sizeof not_ints[0]; n++) {
        assert_int_equal(weights_int(w, not_ints[n], &i, &err), ERR_FORMAT);
        assert_non_null(strstr(err.text, not_ints[n]));
        assert_non_null(strstr(err.text, weights_path(w)));
    }
    assert_int_equal(weights_float(w, "a.bool", &f, &err), ERR_FORMAT);
    assert_int_equal(weights_bool(w, "a.int", &flag, &err), ERR_FORMAT);
    assert_int_equal(weights_string(w, "a.texts", &s, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "array of string"));
    int32_t ints[3];
    struct weights_string texts[3];
    assert_int_equal(weights_array_ints(w, "a.texts", ints, &err), ERR_FORMAT);
    assert_int_equal(weights_array_ints(w, "a.int", ints, &err), ERR_FORMAT);
    assert_int_equal(weights_array_strings(w, "a.ints", texts, &err), ERR_FORMAT);
    assert_true(i == 42 && f == 42 && flag && s.bytes == 1);
    weights_close(w);
}

static void refuses_array_elements_beyond_32_bits(void **state)
{
    (void)state;
    static const int64_t values[] = {1, INT64_C(1) << 40};
    struct gguf_builder b;
    struct err err;
    int32_t ints[2];
    gguf_init(&b);
    gguf_array(&b, "wide", GB_I64, values, 2, 8);
    struct weights *w = open_built(&b);
    assert_int_equal(weights_array_ints(w, "wide", ints, &err), ERR_FORMAT);
    weights_close(w);
}

static void follows_the_alignment_of_the_file(void **state)
{
    (void)state;
    for (uint64_t align = 4; align <= 1 << 20; align *= 8) {
        struct gguf_builder b;
        gguf_init(&b);
        b.align = align;
        gguf_int(&b, "general.alignment", (int64_t)align);
        gguf_tensor(&b, "second", f32, 2, two_by_three, numbers, sizeof numbers);
        gguf_tensor(&b, "first", f32, 1, (const int64_t[]){3}, numbers + 3, 12);
        struct weights *w = open_built(&b);
        check_tensors(w);
        assert_int_equal(
            (uintptr_t)weights_tensor(w, "first")->data % (align < 4096 ? align : 4096), 0);
        weights_close(w);
    }
}

static void opens_a_file_without_tensors_or_keys(void **state)
{
    (void)state;
    struct gguf_builder b;
    gguf_init(&b);
    struct weights *w = open_built(&b);
    assert_int_equal(weights_tensors(w), 0);
    assert_null(weights_tensor(w, "any"));
    assert_int_equal(weights_array_size(w, "any"), 0);
    weights_close(w);
}

/* ---- wrong files ---- */

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    expect_refusal(in_folder("none"), ERR_IO, WORDS("No such file"));
    expect_refusal(folder, ERR_FORMAT, WORDS("not a regular file"));
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    expect_refusal(in_folder("pipe"), ERR_FORMAT, WORDS("not a regular file"));
    write_bytes(in_folder("m.gguf"), "", 0);
    expect_refusal(in_folder("m.gguf"), ERR_FORMAT, WORDS("0 bytes"));
}

static void refuses_a_file_cut_at_any_byte(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct strbuf bytes = {0};
    const char *path = in_folder("m.gguf");
    build_small(&b);
    gguf_bytes(&b, &bytes);
    gguf_finish(&b);
    write_bytes(path, bytes.data, bytes.len);
    for (size_t n = bytes.len; n-- > 0;) {
        assert_int_equal(truncate(path, (off_t)n), 0);
        expect_refusal(path, ERR_FORMAT, WORDS(""));
    }
    strbuf_finish(&bytes);
}

static void survives_any_byte_being_another(void **state)
{
    (void)state;
    struct gguf_builder b;
    struct strbuf bytes = {0};
    uint64_t seed = test_seed();
    const char *path = in_folder("m.gguf");
    build_small(&b);
    gguf_bytes(&b, &bytes);
    gguf_finish(&b);
    for (size_t at = 0; at < bytes.len; at++) {
        char was = bytes.data[at];
        for (int i = 0; i < 3; i++) {
            struct weights *w;
            struct err err = {0};
            bytes.data[at] = (char)(i == 0 ? ~was : (int)test_random(&seed));
            write_bytes(path, bytes.data, bytes.len);
            if (weights_open(path, &w, &err))
                assert_non_null(strstr(err.text, path));
            else
                weights_close(w);
        }
        bytes.data[at] = was;
    }
    strbuf_finish(&bytes);
}

static void refuses_wrong_heads_of_files(void **state)
{
    (void)state;
    struct gguf_builder b;
    build_small(&b);
    b.magic = 0x67676d6c;
    expect_refused(&b, ERR_FORMAT, WORDS("not a GGUF file", "6c6d6767"));
    static const uint32_t versions[] = {0, 1, 4, 65535};
    for (int i = 0; i < 4; i++) {
        char number[16];
        snprintf(number, sizeof number, "version %u", versions[i]);
        build_small(&b);
        b.version = versions[i];
        expect_refused(&b, ERR_UNSUPPORTED, WORDS(number, "2 and 3"));
    }
    build_small(&b);
    b.version = __builtin_bswap32(3);
    expect_refused(&b, ERR_UNSUPPORTED, WORDS("version 3", "big-endian"));
}

static void refuses_counts_that_the_file_cannot_hold(void **state)
{
    (void)state;
    static const uint64_t counts[] = {100, 1000000, UINT32_MAX, UINT64_MAX, UINT64_MAX / 33};
    for (int i = 0; i < 5; i++)
        for (int keys = 0; keys < 2; keys++) {
            struct gguf_builder b;
            build_small(&b);
            *(keys ? &b.n_keys : &b.n_tensors) = counts[i];
            expect_refused(&b, ERR_FORMAT, WORDS("claims", "cannot be true"));
        }
    struct gguf_builder b;
    build_small(&b);
    b.n_tensors++;
    expect_refused(&b, ERR_FORMAT, WORDS("tensor"));
}

static void refuses_lengths_beyond_the_file(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1000, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        struct gguf_builder b;
        gguf_init(&b);
        gguf_raw(&b, "a.text", GB_STRING, &lengths[i], 8);
        expect_refused(&b, ERR_FORMAT, WORDS("\"a.text\"", "ends early"));
        gguf_init(&b);
        gguf_array(&b, "a.list", GB_U8, "", 0, 1);
        memcpy(b.keys.data + b.keys.len - 8, &lengths[i], 8);
        expect_refused(&b, ERR_FORMAT, WORDS("\"a.list\"", "more than the file"));
        gguf_init(&b);
        gguf_array(&b, "a.list", GB_F64, "12345678", 1, 8);
        memcpy(b.keys.data + b.keys.len - 16, (const uint64_t[]){9}, 8);
        expect_refused(&b, ERR_FORMAT, WORDS("\"a.list\""));
    }
}

static void refuses_wrong_values(void **state)
{
    (void)state;
    struct gguf_builder b;
    gguf_init(&b);
    gguf_raw(&b, "a.key", 13, "", 0);
    expect_refused(&b, ERR_FORMAT, WORDS("\"a.key\"", "value type 13"));
    gguf_init(&b);
    gguf_array(&b, "a.lists", GB_ARRAY, "", 0, 1);
    expect_refused(&b, ERR_UNSUPPORTED, WORDS("\"a.lists\"", "array of arrays"));
    gguf_init(&b);
    gguf_array(&b, "a.list", 77, "", 0, 1);
    expect_refused(&b, ERR_FORMAT, WORDS("\"a.list\"", "value type 77"));
    static const int wrong[] = {0, 1, 2, 3, 24, 33, 1 << 21};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        build_small(&b);
        gguf_int(&b, "general.alignment", wrong[i]);
        expect_refused(&b, ERR_FORMAT, WORDS("general.alignment", "power of two"));
    }
    build_small(&b);
    gguf_text(&b, "general.alignment", "32");
    expect_refused(&b, ERR_FORMAT, WORDS("general.alignment", "whole number"));
}

static void refuses_wrong_names(void **state)
{
    (void)state;
    struct gguf_builder b;
    char name[700];
    build_small(&b);
    gguf_int(&b, "a.int", 1);
    expect_refused(&b, ERR_FORMAT, WORDS("\"a.int\" twice"));
    build_small(&b);
    gguf_zeros(&b, "first", f32, 3, 0);
    expect_refused(&b, ERR_FORMAT, WORDS("two tensors", "\"first\""));
    build_small(&b);
    gguf_int(&b, "", 1);
    expect_refused(&b, ERR_FORMAT, WORDS("name of 0 bytes"));
    build_small(&b);
    gguf_int(&b, "a\x1b[2J", 1);
    expect_refused(&b, ERR_FORMAT, WORDS("\"a?[2J\""));
    build_small(&b);
    gguf_zeros(&b, "", f32, 3, 0);
    expect_refused(&b, ERR_FORMAT, WORDS("name of 0 bytes"));
    build_small(&b);
    gguf_zeros(&b, "bell\a", f32, 3, 0);
    expect_refused(&b, ERR_FORMAT, WORDS("\"bell?\""));
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    build_small(&b);
    gguf_zeros(&b, name, f32, 3, 0);
    expect_refused(&b, ERR_FORMAT, WORDS("name of 699 bytes", "nnn..."));
}

struct entry {
    uint32_t format, dims;
    int64_t dim[5];
    uint64_t offset;
    int code;
    const char *says;
};

static void refuses_wrong_tensors(void **state)
{
    (void)state;
    static const struct entry entries[] = {
        {0, 0, {0}, 0, ERR_FORMAT, "0 dimensions"},
        {0, 5, {1, 1, 1, 1, 1}, 0, ERR_FORMAT, "5 dimensions"},
        {0, UINT32_MAX, {0}, 0, ERR_FORMAT, "4294967295 dimensions"},
        {0, 2, {0, 1}, 0, ERR_FORMAT, "dimension 0"},
        {0, 2, {1, 0}, 0, ERR_FORMAT, "dimension 1"},
        {0, 2, {1, INT64_C(1) << 31}, 0, ERR_FORMAT, "dimension 1"},
        {0, 2, {-1, 1}, 0, ERR_FORMAT, "dimension 0"},
        {0, 4, {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}, 0, ERR_FORMAT, "overflows"},
        {0, 4, {INT32_MAX, INT32_MAX, 1, 1}, 0, ERR_FORMAT, "after the file"},
        {0, 1, {3}, 32, ERR_FORMAT, "after the file"},
        {0, 1, {7}, 0, ERR_FORMAT, "after the file"},
        {0, 1, {1}, 4, ERR_FORMAT, "multiple of 32"},
        {0, 1, {1}, UINT64_MAX - 31, ERR_FORMAT, "after the file"},
        {0, 1, {1}, UINT64_C(1) << 63, ERR_FORMAT, "after the file"},
        {4, 1, {32}, 0, ERR_UNSUPPORTED, "number format 4"},
        {1000, 1, {32}, 0, ERR_UNSUPPORTED, "number format 1000"},
        {q4_0, 2, {31, 1}, 0, ERR_FORMAT, "blocks of 32"},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const struct entry *e = &entries[i];
        struct gguf_builder b;
        gguf_init(&b);
        gguf_entry(&b, "wrong", e->format, e->dims > 5 ? 0 : e->dims, e->dim, e->offset);
        if (e->dims > 5)
            memcpy(b.tensors.data + 8 + 5, &e->dims, 4);
        b.data_bytes = 24;
        expect_refused(&b, e->code, WORDS("\"wrong\"", e->says));
    }
}

/* ---- split sets ---- */

static const char *const parts[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                    "m-00003-of-00003.gguf"};

struct split {
    int number, count, expected; /* as the file says it; expected < 0: it does not */
    uint64_t align;
    const char *tensor;
};

static void write_split(int i, const struct split *s)
{
    struct gguf_builder b;
    uint16_t number = (uint16_t)s->number, count = (uint16_t)s->count;
    gguf_init(&b);
    b.align = s->align;
    if (i == 0)
        gguf_text(&b, "general.architecture", "llama");
    if (s->align != 32)
        gguf_int(&b, "general.alignment", (int64_t)s->align);
    gguf_raw(&b, "split.no", GB_U16, &number, 2);
    gguf_raw(&b, "split.count", GB_U16, &count, 2);
    if (s->expected >= 0)
        gguf_int(&b, "split.tensors.count", s->expected);
    gguf_tensor(&b, "pad", f32, 1, (const int64_t[]){1}, numbers, 4);
    b.tensors.len = 0;
    b.n_tensors = 0;
    gguf_tensor(&b, s->tensor, f32, 1, (const int64_t[]){3}, numbers + i, 12);
    gguf_write(&b, in_folder(parts[i]));
    gguf_finish(&b);
}

/* Each with an alignment of its own: a later file does not inherit the first one's. */
static void write_set(void)
{
    static const struct split files[] = {
        {0, 3, 3, 64, "c"}, {1, 3, -1, 32, "b"}, {2, 3, -1, 128, "a"}};
    for (int i = 0; i < 3; i++)
        write_split(i, &files[i]);
}

static void opens_a_split_set(void **state)
{
    (void)state;
    static const char *const names[] = {"c", "b", "a"};
    struct weights *w;
    struct err err;
    write_set();
    if (weights_open(in_folder(parts[0]), &w, &err))
        fail_msg("%s", err.text);
    assert_int_equal(weights_tensors(w), 3);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(weights_tensor(w, names[i])->data, numbers + i, 12);
    struct stat st;
    size_t total = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stat(in_folder(parts[i]), &st), 0);
        total += (size_t)st.st_size;
    }
    assert_int_equal(weights_file_bytes(w), total);
    weights_close(w);
}

static void refuses_wrong_sets(void **state)
{
    (void)state;
    char first[256];
    strcpy(first, in_folder(parts[0]));
    write_set();
    expect_refusal(in_folder(parts[1]), ERR_ARG, WORDS("file 2 of a set of 3", "first"));
    assert_int_equal(rename(first, in_folder("m.gguf")), 0);
    expect_refusal(in_folder("m.gguf"), ERR_ARG, WORDS("-00001-of-00003.gguf"));
    write_set();
    unlink(in_folder(parts[2]));
    struct weights *w;
    struct err err;
    assert_int_equal(weights_open(first, &w, &err), ERR_IO);
    assert_non_null(strstr(err.text, parts[2]));
    write_set();
    write_split(2, &(struct split){2, 3, -1, 32, "b"});
    expect_refusal(first, ERR_FORMAT, WORDS("two tensors", "\"b\""));
    write_set();
    write_split(0, &(struct split){0, 3, 4, 32, "c"});
    expect_refusal(first, ERR_FORMAT, WORDS("3 tensors", "expects 4"));
    write_set();
    write_split(2, &(struct split){1, 3, -1, 32, "a"});
    assert_int_equal(weights_open(first, &w, &err), ERR_FORMAT);
    assert_non_null(strstr(err.text, "file 2 of 3"));
    write_split(0, &(struct split){0, 65535, -1, 32, "c"});
    expect_refusal(first, ERR_ARG, WORDS("65535"));
}

/* ---- showing ---- */

static void shows_strings_cut_and_plain(void **state)
{
    (void)state;
    struct weights_shown shown;
    char text[200];
    assert_string_equal(weights_show((struct weights_string){NULL, 0}, &shown), "");
    assert_string_equal(weights_show((struct weights_string){"a\0\x7f\xc3\xa9\n", 6}, &shown),
                        "a?????");
    memset(text, 'x', sizeof text);
    weights_show((struct weights_string){text, sizeof text}, &shown);
    assert_int_equal(strlen(shown.text), sizeof shown.text - 1);
    assert_string_equal(shown.text + 60, "...");
    weights_show((struct weights_string){text, 60}, &shown);
    assert_int_equal(strlen(shown.text), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_versions_2_and_3),
        cmocka_unit_test(reads_settings_of_every_type),
        cmocka_unit_test(reads_arrays),
        cmocka_unit_test(leaves_out_alone_when_a_key_is_absent_or_of_another_type),
        cmocka_unit_test(refuses_array_elements_beyond_32_bits),
        cmocka_unit_test(follows_the_alignment_of_the_file),
        cmocka_unit_test(opens_a_file_without_tensors_or_keys),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_a_file_cut_at_any_byte),
        cmocka_unit_test(survives_any_byte_being_another),
        cmocka_unit_test(refuses_wrong_heads_of_files),
        cmocka_unit_test(refuses_counts_that_the_file_cannot_hold),
        cmocka_unit_test(refuses_lengths_beyond_the_file),
        cmocka_unit_test(refuses_wrong_values),
        cmocka_unit_test(refuses_wrong_names),
        cmocka_unit_test(refuses_wrong_tensors),
        cmocka_unit_test(opens_a_split_set),
        cmocka_unit_test(refuses_wrong_sets),
        cmocka_unit_test(shows_strings_cut_and_plain),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
