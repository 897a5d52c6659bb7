#include "api.h"
#include "json_in.h"
#include "openai.h"

#include <stdlib.h>

/* The first byte chooses the route, the rest is the body: it becomes a job, or is refused with a
 * status below 500. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void (*const routes[])(struct exchange *ex) = {completions_work, chat_work, tokenize_work,
                                                      detokenize_work};

static struct server *server_once(void)
{
    static struct server server;
    static struct server_config config;
    struct err err;
    if (!server.config) {
        json_in_setup(0);
        config = server_config_default;
        config.max_logprobs = -1;
        server.config = &config;
        server.tokenizer = model_tokenizer(NULL);
        server.chat_template = model_chat_template(NULL, &err);
    }
    strbuf_finish(&server.unknown_fields); /* of earlier bodies: each must run alone */
    return &server;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    struct exchange ex = {.server = server_once()};
    strbuf_add(&ex.body, (const char *)data + 1, bytes - 1);
    routes[data[0] % (sizeof routes / sizeof *routes)](&ex);
    if (ex.error.status >= 500)
        abort();
    generation_destroy(ex.made);
    strbuf_finish(&ex.body);
    strbuf_finish(&ex.reply);
    return 0;
}
