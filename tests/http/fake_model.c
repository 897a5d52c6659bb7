#include "model.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A model for tests of the front end: 256 byte tokens and a few control tokens, a template that
 * writes "<s>role: text\n". No weights. */

enum { BOS = 256, EOS, TURN, SIZE };

static const char *const names[] = {"<s>", "</s>", "<|turn|>"};
static const char bytes_table[256][1] = {
#define B(i)                                                                                       \
    {                                                                                              \
        (char)(i)                                                                                  \
    }
#define B4(i)  B(i), B(i + 1), B(i + 2), B(i + 3)
#define B16(i) B4(i), B4(i + 4), B4(i + 8), B4(i + 12)
#define B64(i) B16(i), B16(i + 16), B16(i + 32), B16(i + 48)
    B64(0), B64(64), B64(128), B64(192)};

struct tokenizer {
    int unused;
};
static const struct tokenizer the_tokenizer;

static int push(struct tok_ids *out, int32_t id)
{
    if (out->n == out->cap) {
        int cap = out->cap ? out->cap * 2 : 64;
        int32_t *more = realloc(out->ids, (size_t)cap * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        out->ids = more;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return 0;
}

static int32_t special_at(const char *text, size_t n, size_t *bytes)
{
    for (int i = 0; i < SIZE - BOS; i++) {
        *bytes = strlen(names[i]);
        if (n >= *bytes && memcmp(text, names[i], *bytes) == 0)
            return BOS + i;
    }
    return -1;
}

int tok_encode(const struct tokenizer *t, const char *text, size_t bytes,
               const struct tok_options *options, struct tok_ids *out, struct err *err)
{
    (void)t;
    int failed = options->add_bos ? push(out, BOS) : 0;
    for (size_t i = 0; i < bytes && !failed;) {
        size_t n = 1;
        int32_t id = options->special ? special_at(text + i, bytes - i, &n) : -1;
        if (id >= 0 && options->plain && options->plain[i])
            id = -1;
        n = id >= 0 ? n : 1;
        failed = push(out, id >= 0 ? id : (int32_t)(unsigned char)text[i]);
        i += n;
    }
    return failed ? err_set(err, ERR_NOMEM, "no memory") : 0;
}

const char *tok_piece(const struct tokenizer *t, int32_t id, bool special, size_t *bytes)
{
    (void)t;
    if (id < 256) {
        *bytes = 1;
        return bytes_table[id];
    }
    *bytes = special ? strlen(names[id - 256]) : 0;
    return names[id - 256];
}

int tok_decode(const struct tokenizer *t, const int32_t *ids, int n, bool special,
               struct strbuf *out)
{
    for (int i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = tok_piece(t, ids[i], special, &bytes);
        strbuf_add(out, piece, bytes);
    }
    return out->failed ? ERR_NOMEM : 0;
}

int tok_size(const struct tokenizer *t)
{
    (void)t;
    return SIZE;
}

bool tok_is_end(const struct tokenizer *t, int32_t id)
{
    (void)t;
    return id == EOS || id == TURN;
}

int32_t tok_bos(const struct tokenizer *t)
{
    (void)t;
    return BOS;
}

int32_t tok_eos(const struct tokenizer *t)
{
    (void)t;
    return EOS;
}

bool tok_adds_bos(const struct tokenizer *t)
{
    (void)t;
    return true;
}

/* With FAKE_INFILL the control tokens stand around a hole. */
int32_t tok_find(const struct tokenizer *t, const char *text, size_t bytes)
{
    static const char *const marks[] = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"};
    (void)t;
    for (int i = 0; i < 3; i++)
        if (getenv("FAKE_INFILL") && strlen(marks[i]) == bytes &&
            memcmp(marks[i], text, bytes) == 0)
            return BOS + i;
    return -1;
}

/* ---- template ---- */

struct chat_template {
    int unused;
};
static const struct chat_template the_template;

struct writer {
    struct strbuf text, plain;
};

static void add(struct writer *w, const char *text, size_t n, char plain)
{
    strbuf_add(&w->text, text, n);
    for (size_t i = 0; i < n; i++)
        strbuf_addc(&w->plain, plain);
}

int chat_template_render(const struct chat_template *t, const json_t *context,
                         const json_t *trusted, int64_t now, struct chat_text *out, struct err *err)
{
    struct writer w = {0};
    size_t i;
    json_t *message;
    (void)t;
    (void)now;
    add(&w, json_string_value(json_object_get(trusted, "bos_token")), 3, 0);
    json_array_foreach(json_object_get(context, "messages"), i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const json_t *content = json_object_get(message, "content");
        if (strcmp(role, "tool") == 0) {
            strbuf_finish(&w.text);
            strbuf_finish(&w.plain);
            return err_set(err, ERR_ARG, "this template knows no tools");
        }
        add(&w, role, strlen(role), 1);
        add(&w, ": ", 2, 0);
        if (json_is_string(content))
            add(&w, json_string_value(content), json_string_length(content), 1);
        add(&w, "<|turn|>", 8, 0);
    }
    if (json_is_true(json_object_get(context, "add_generation_prompt")))
        add(&w, "assistant: ", 11, 0);
    out->bytes = w.text.len;
    out->text = strbuf_take(&w.text);
    out->plain = (unsigned char *)strbuf_take(&w.plain);
    return out->text && out->plain ? 0 : err_set(err, ERR_NOMEM, "no memory");
}

/* ---- model ---- */

const struct sampler_params sampler_params_default = {
    .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};

static const struct model_plan the_plan = {.name = "fake",
                                           .architecture = "none",
                                           .layers = 1,
                                           .vocabulary = SIZE,
                                           .trained_context = 4096,
                                           .context = 4096};

const struct model_plan *model_plan(const struct model *m)
{
    (void)m;
    return &the_plan;
}

const struct tokenizer *model_tokenizer(const struct model *m)
{
    (void)m;
    return &the_tokenizer;
}

const struct chat_template *model_chat_template(const struct model *m, struct err *err)
{
    (void)m;
    (void)err;
    return &the_template;
}
