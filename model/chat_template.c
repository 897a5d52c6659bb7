#include "jinja/jinja_render.h"
#include "model.h"

#include <stdlib.h>

struct chat_template {
    struct jj_template jinja;
};

static int source_check(const char *source, size_t bytes, struct err *err)
{
    if (bytes > JJ_MAX_SOURCE_BYTES)
        return err_set(err, ERR_LIMIT, "chat template: has %zu bytes, more than %zu", bytes,
                       JJ_MAX_SOURCE_BYTES);
    if (memchr(source, 0, bytes) || !jj_utf8_valid(source, bytes))
        return err_set(err, ERR_FORMAT, "chat template: is not UTF-8 text");
    return 0;
}

int chat_template_create(const char *source, size_t bytes, struct chat_template **out,
                         struct err *err)
{
    int code = source_check(source, bytes, err);
    if (code)
        return code;
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(err, ERR_NOMEM, "chat template: out of memory");
    code = jj_parse(&t->jinja, source, bytes, err);
    if (code) {
        chat_template_destroy(t);
        return code;
    }
    *out = t;
    return 0;
}

void chat_template_destroy(struct chat_template *t)
{
    if (!t)
        return;
    mem_arena_finish(&t->jinja.arena);
    free(t);
}

static int text_copy(const struct jj_buf *b, struct chat_text *out, struct err *err)
{
    char *text = mem_strndup(b->n ? b->bytes : "", b->n);
    unsigned char *plain = malloc(b->n + 1);
    if (!text || !plain) {
        free(text);
        free(plain);
        return err_set(err, ERR_NOMEM, "chat template: out of memory for %zu bytes of text", b->n);
    }
    if (b->n)
        memcpy(plain, b->marks, b->n);
    *out = (struct chat_text){.text = text, .plain = plain, .bytes = b->n};
    return 0;
}

int chat_template_render(const struct chat_template *t, const json_t *context,
                         const json_t *trusted, int64_t now, struct chat_text *out, struct err *err)
{
    struct jj_rt rt = {.t = &t->jinja, .err = err};
    struct jj_input input = {.plain = context, .trusted = trusted, .now = now};
    struct jj_buf text = {0};
    int code = jj_render(&rt, &input, &text);
    if (code == 0)
        code = text_copy(&text, out, err);
    mem_arena_finish(&rt.arena);
    return code;
}
