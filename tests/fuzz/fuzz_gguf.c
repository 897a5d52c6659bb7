#define _GNU_SOURCE /* memfd_create */

#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The bytes are a model file: it is opened and planned, and its vocabulary is used. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *write_file(const uint8_t *data, size_t bytes)
{
    static int file = -1;
    static char path[32];
    if (file < 0) {
        file = memfd_create("model", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (file < 0 || ftruncate(file, 0) || pwrite(file, data, bytes, 0) != (ssize_t)bytes)
        abort();
    return path;
}

static void use_vocabulary(const struct tokenizer *t)
{
    static const char text[] = "Some text,\n<s> caf\xc3\xa9 \xff 123";
    const struct tok_options options = {.special = true, .add_bos = true};
    struct tok_ids ids = {0};
    struct strbuf out = {0};
    struct err err;
    if (tok_encode(t, text, sizeof text - 1, &options, &ids, &err) == 0)
        tok_decode(t, ids.ids, ids.n, true, &out);
    strbuf_finish(&out);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct model *m;
    struct err err;
    const struct model_options options = {
        .path = write_file(data, bytes), .window = -1, .threads = 2};
    if (model_open(&options, &m, &err) == 0) {
        if (model_kv_bytes(model_plan(m), model_plan(m)->context) == 0)
            abort();
        use_vocabulary(model_tokenizer(m));
        model_destroy(m);
    } else if (m || !err.code || !err.text[0]) {
        abort(); /* a refusal has a sentence */
    }
    return 0;
}
