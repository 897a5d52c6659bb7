#include "json_in.h"
#include "openai.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --public-prefix: from a file to tokens. */

#define MOST_BYTES ((size_t)1 << 20)

static int read_file(const char *path, struct strbuf *out, struct err *err)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(err, ERR_IO, "the public prefix '%s' cannot be read: %s", path,
                       strerror(errno));
    char *at = strbuf_reserve(out, MOST_BYTES);
    out->len = at ? fread(at, 1, MOST_BYTES, f) : 0;
    bool whole = at && feof(f);
    fclose(f);
    if (!whole || out->len == 0)
        return err_set(err, ERR_LIMIT, "the public prefix '%s' is empty or has more than %zu bytes",
                       path, MOST_BYTES);
    return 0;
}

/* The messages of an object, or a list of messages. */
static int chat_tokens(const struct server *s, const json_t *root, struct tok_ids *ids,
                       struct api_error *e)
{
    struct openai_request r = openai_request_default;
    r.messages = json_is_array(root) ? root : json_object_get(root, "messages");
    r.add_generation_prompt = json_false();
    return openai_chat_prompt(s, &r, ids, e);
}

static int text_tokens(const struct server *s, const struct strbuf *text, struct tok_ids *ids,
                       struct err *err)
{
    const struct tok_options options = {.special = true, .add_bos = true};
    return tok_encode(s->tokenizer, text->data, text->len, &options, ids, err);
}

static int to_tokens(const struct server *s, const char *path, const struct strbuf *text,
                     struct tok_ids *ids, struct err *err)
{
    struct api_error e = {0};
    json_t *root = json_loadb(text->data, text->len, 0, NULL);
    if (!root)
        return text_tokens(s, text, ids, err);
    int failed = chat_tokens(s, root, ids, &e);
    json_decref(root);
    return failed ? err_set(err, ERR_ARG, "the public prefix '%s': %s", path, e.message) : 0;
}

int server_public_prefix(const struct server *s, const char *path, struct kv_cache *cache,
                         struct err *err)
{
    struct strbuf text = {0};
    struct tok_ids ids = {0};
    int rc = read_file(path, &text, err);
    if (rc == 0)
        rc = to_tokens(s, path, &text, &ids, err);
    if (rc == 0 && ids.n < KV_BLOCK_TOKENS)
        rc = err_set(err, ERR_ARG, "the public prefix '%s' has %d tokens, at least %d are needed",
                     path, ids.n, KV_BLOCK_TOKENS);
    if (rc == 0)
        rc = kv_public(cache, ids.ids, ids.n, err);
    strbuf_finish(&text);
    free(ids.ids);
    return rc;
}
