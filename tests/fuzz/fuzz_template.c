#include "model.h"

#include <stdint.h>
#include <stdlib.h>

/* Any bytes as a chat template: it renders or is refused, within its limits. The first byte's low
 * bit says whether the rest is the template or the JSON of the messages for a template that
 * prints them in many ways.
 *
 *     clang -fsanitize=fuzzer,address,undefined tests/fuzz/fuzz_template.c ...
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char messages_text[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hell\\u00f6, <|x|> '\\\"\\\\\"},"
    " {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \" y \"}],"
    "  \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1.5}}}]}],"
    " \"tools\": [{\"n\": [null, true, -3, {}]}], \"s\": \"a,b\\n c\", \"n\": 3}";

static const char printing[] =
    "{{ messages }}{{ messages | tojson(indent=2) }}{% for m in messages %}{{ m.role ~ m.content }}"
    "{{ m | dictsort }}{{ m | string | upper | trim }}{{ (m | string)[::-1] }}{% endfor %}";

static void render(const struct chat_template *t, const json_t *context)
{
    struct chat_text text = {0};
    struct err err = {0};
    if (chat_template_render(t, context, NULL, 1767323045, &text, &err) == 0) {
        for (size_t i = 0; i < text.bytes; i++)
            if (text.plain[i] > 1)
                abort();
    }
    free(text.text);
    free(text.plain);
}

static void fuzz_source(const char *source, size_t bytes)
{
    static json_t *context;
    struct chat_template *t = NULL;
    struct err err = {0};
    if (!context)
        context = json_loads(messages_text, 0, NULL);
    if (chat_template_create(source, bytes, &t, &err) != 0)
        return;
    render(t, context);
    chat_template_destroy(t);
}

static void fuzz_context(const char *text, size_t bytes)
{
    static struct chat_template *t;
    struct err err = {0};
    json_t *messages = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!messages)
        return;
    if (!t && chat_template_create(printing, sizeof printing - 1, &t, &err) != 0)
        abort();
    json_t *context = json_pack("{s:o}", "messages", messages);
    render(t, context);
    json_decref(context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (data[0] & 1)
        fuzz_context((const char *)data + 1, bytes - 1);
    else
        fuzz_source((const char *)data + 1, bytes - 1);
    return 0;
}
