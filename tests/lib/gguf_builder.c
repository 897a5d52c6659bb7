#include "gguf_builder.h"

#include "testlib.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void gguf_init(struct gguf_builder *b)
{
    *b = (struct gguf_builder){.magic = 0x46554747u, .version = 3, .align = 32};
}

void gguf_finish(struct gguf_builder *b)
{
    strbuf_finish(&b->keys);
    strbuf_finish(&b->tensors);
    free(b->pieces);
    *b = (struct gguf_builder){0};
}

static void put(struct strbuf *to, const void *data, size_t bytes)
{
    strbuf_add(to, data, bytes);
    assert_false(to->failed);
}

static void put_u32(struct strbuf *to, uint32_t v)
{
    put(to, &v, sizeof v);
}

static void put_u64(struct strbuf *to, uint64_t v)
{
    put(to, &v, sizeof v);
}

static void put_text(struct strbuf *to, const char *text)
{
    put_u64(to, strlen(text));
    put(to, text, strlen(text));
}

/* ---- keys ---- */

void gguf_raw(struct gguf_builder *b, const char *key, uint32_t type, const void *raw, size_t bytes)
{
    put_text(&b->keys, key);
    put_u32(&b->keys, type);
    put(&b->keys, raw, bytes);
    b->n_keys++;
}

void gguf_int(struct gguf_builder *b, const char *key, int64_t value)
{
    uint32_t v = (uint32_t)value;
    gguf_raw(b, key, GB_U32, &v, sizeof v);
}

void gguf_float(struct gguf_builder *b, const char *key, float value)
{
    gguf_raw(b, key, GB_F32, &value, sizeof value);
}

void gguf_bool(struct gguf_builder *b, const char *key, bool value)
{
    uint8_t v = value;
    gguf_raw(b, key, GB_BOOL, &v, sizeof v);
}

void gguf_text(struct gguf_builder *b, const char *key, const char *value)
{
    put_text(&b->keys, key);
    put_u32(&b->keys, GB_STRING);
    put_text(&b->keys, value);
    b->n_keys++;
}

static void array_head(struct gguf_builder *b, const char *key, uint32_t type, uint64_t n)
{
    put_text(&b->keys, key);
    put_u32(&b->keys, GB_ARRAY);
    put_u32(&b->keys, type);
    put_u64(&b->keys, n);
    b->n_keys++;
}

void gguf_array(struct gguf_builder *b, const char *key, uint32_t type, const void *values,
                uint64_t n, size_t element_bytes)
{
    array_head(b, key, type, n);
    put(&b->keys, values, n * element_bytes);
}

void gguf_texts(struct gguf_builder *b, const char *key, const char *const *values, uint64_t n)
{
    array_head(b, key, GB_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&b->keys, values[i]);
}

/* ---- tensors ---- */

static uint64_t aligned(const struct gguf_builder *b, uint64_t at)
{
    return (at + b->align - 1) / b->align * b->align;
}

void gguf_entry(struct gguf_builder *b, const char *name, uint32_t format, uint32_t dims,
                const int64_t *dim, uint64_t offset)
{
    put_text(&b->tensors, name);
    put_u32(&b->tensors, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_u64(&b->tensors, (uint64_t)dim[i]);
    put_u32(&b->tensors, format);
    put_u64(&b->tensors, offset);
    b->n_tensors++;
}

void gguf_tensor(struct gguf_builder *b, const char *name, uint32_t format, int dims,
                 const int64_t *dim, const void *data, size_t bytes)
{
    uint64_t offset = aligned(b, b->data_bytes);
    gguf_entry(b, name, format, (uint32_t)dims, dim, offset);
    b->data_bytes = offset + bytes;
    if (!data)
        return;
    b->pieces = realloc(b->pieces, (size_t)(b->n_pieces + 1) * sizeof *b->pieces);
    assert_non_null(b->pieces);
    b->pieces[b->n_pieces++] = (struct gguf_piece){offset, data, bytes};
}

void gguf_zeros(struct gguf_builder *b, const char *name, uint32_t format, int64_t cols,
                int64_t rows)
{
    const int64_t dim[2] = {cols, rows};
    size_t values = (size_t)cols * (size_t)(rows ? rows : 1);
    gguf_tensor(b, name, format, rows ? 2 : 1, dim, NULL, values * (format == 0 ? 4 : 2));
}

/* ---- bytes ---- */

void gguf_header(const struct gguf_builder *b, struct strbuf *out)
{
    put_u32(out, b->magic);
    put_u32(out, b->version);
    put_u64(out, b->n_tensors);
    put_u64(out, b->n_keys);
    put(out, b->keys.data, b->keys.len);
    put(out, b->tensors.data, b->tensors.len);
    while (out->len % b->align)
        put(out, "", 1);
}

void gguf_bytes(const struct gguf_builder *b, struct strbuf *out)
{
    gguf_header(b, out);
    size_t start = out->len;
    for (uint64_t i = 0; i < b->data_bytes; i++)
        put(out, "", 1);
    for (int i = 0; i < b->n_pieces; i++)
        memcpy(out->data + start + b->pieces[i].offset, b->pieces[i].data, b->pieces[i].bytes);
}

void gguf_write(const struct gguf_builder *b, const char *path)
{
    struct strbuf header = {0};
    gguf_header(b, &header);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, header.data, header.len), header.len);
    assert_int_equal(ftruncate(fd, (off_t)(header.len + b->data_bytes)), 0);
    for (int i = 0; i < b->n_pieces; i++)
        assert_int_equal(pwrite(fd, b->pieces[i].data, b->pieces[i].bytes,
                                (off_t)(header.len + b->pieces[i].offset)),
                         b->pieces[i].bytes);
    close(fd);
    strbuf_finish(&header);
}

/* ---- whole models ---- */

const struct gguf_shape gguf_tiny = {
    .arch = "llama",
    .layers = 2,
    .width = 32,
    .heads = 4,
    .kv_heads = 2,
    .head_size = 8,
    .ffn = 64,
    .vocabulary = 300,
    .context = 128,
};

void gguf_settings(struct gguf_builder *b, const struct gguf_shape *s)
{
    const struct {
        const char *key;
        int value;
    } rows[] = {
        {"block_count", s->layers},
        {"embedding_length", s->width},
        {"feed_forward_length", s->ffn},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv_heads},
        {"attention.key_length", s->head_size},
        {"attention.value_length", s->head_size},
        {"context_length", s->context},
        {"attention.sliding_window", s->window},
    };
    char key[96];
    gguf_text(b, "general.architecture", s->arch);
    gguf_text(b, "general.name", "A test");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, rows[i].key);
        if (rows[i].value)
            gguf_int(b, key, rows[i].value);
    }
}

/* <unk>, <s>, </s>, the 256 bytes, then made-up words. */
void gguf_vocabulary(struct gguf_builder *b, const struct gguf_shape *s)
{
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    static const int32_t first_types[] = {2, 3, 3};
    size_t n = (size_t)s->vocabulary;
    char(*texts)[16] = calloc(n, sizeof *texts);
    const char **list = calloc(n, sizeof *list);
    float *scores = calloc(n, sizeof *scores);
    int32_t *types = calloc(n, sizeof *types);
    assert_true(texts && list && scores && types);
    for (int i = 0; i < s->vocabulary; i++) {
        if (i < 3)
            snprintf(texts[i], sizeof texts[i], "%s", first[i]);
        else if (i < 259)
            snprintf(texts[i], sizeof texts[i], "<0x%02X>", (unsigned)(i - 3));
        else
            snprintf(texts[i], sizeof texts[i], "w%d", i);
        types[i] = i < 3 ? first_types[i] : i < 259 ? 6 : 1;
        list[i] = texts[i];
    }
    gguf_text(b, "tokenizer.ggml.model", "llama");
    gguf_texts(b, "tokenizer.ggml.tokens", list, n);
    gguf_array(b, "tokenizer.ggml.scores", GB_F32, scores, n, sizeof *scores);
    gguf_array(b, "tokenizer.ggml.token_type", GB_I32, types, n, sizeof *types);
    gguf_int(b, "tokenizer.ggml.bos_token_id", 1);
    gguf_int(b, "tokenizer.ggml.eos_token_id", 2);
    free(texts);
    free(list);
    free(scores);
    free(types);
}

struct adding {
    struct gguf_builder *b;
    const char *except;
};

static void add(const struct adding *a, const char *name, uint32_t format, int64_t cols,
                int64_t rows)
{
    if (!a->except || strcmp(a->except, name))
        gguf_zeros(a->b, name, format, cols, rows);
}

static void add_layer(const struct adding *a, const struct gguf_shape *s, int layer)
{
    int q = s->heads * s->head_size, kv = s->kv_heads * s->head_size;
    const struct {
        const char *name;
        int cols, rows;
    } tensors[] = {
        {"attn_norm", s->width, 0},     {"attn_q", s->width, q},
        {"attn_k", s->width, kv},       {"attn_v", s->width, kv},
        {"attn_output", q, s->width},   {"ffn_norm", s->width, 0},
        {"ffn_gate", s->width, s->ffn}, {"ffn_up", s->width, s->ffn},
        {"ffn_down", s->ffn, s->width},
    };
    char name[64];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensors[i].name);
        add(a, name, tensors[i].rows ? s->format : 0, tensors[i].cols, tensors[i].rows);
    }
}

void gguf_tensors(struct gguf_builder *b, const struct gguf_shape *s, const char *except)
{
    const struct adding a = {b, except};
    add(&a, "token_embd.weight", s->format, s->width, s->vocabulary);
    if (!s->tied)
        add(&a, "output.weight", s->format, s->width, s->vocabulary);
    add(&a, "output_norm.weight", 0, s->width, 0);
    for (int i = 0; i < s->layers; i++)
        add_layer(&a, s, i);
}

void gguf_model(struct gguf_builder *b, const struct gguf_shape *s)
{
    gguf_settings(b, s);
    gguf_vocabulary(b, s);
    gguf_tensors(b, s, NULL);
}
