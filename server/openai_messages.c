#include "openai.h"

#include "api.h"
#include "json_in.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* From messages to a prompt: checked, flattened to what templates expect, rendered, tokenised. */

static const struct {
    const char *given, *rendered;
} roles[] = {
    {"system", "system"},       {"developer", "system"}, {"user", "user"},
    {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
};

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(roles[i].given, role) == 0)
            return roles[i].rendered;
    return NULL;
}

static int part_text(const json_t *part, size_t at, struct strbuf *out, struct api_error *e)
{
    char field[48];
    const char *type = json_string_value(json_object_get(part, "type"));
    snprintf(field, sizeof field, "messages[%zu].content", at);
    if (!type)
        return api_invalid(e, field, "a part needs a type");
    bool refusal = strcmp(type, "refusal") == 0;
    if (strcmp(type, "text") && !refusal)
        return api_refuse(e, 400, "unsupported_value", field,
                          "%s: parts of type '%.40s' are not supported yet", field, type);
    const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    if (!json_is_string(text))
        return api_invalid(e, field, "a text part needs its text");
    if (out->len)
        strbuf_addc(out, '\n');
    strbuf_add(out, json_string_value(text), json_string_length(text));
    return 0;
}

/* The text of a message as one JSON string; NULL with an error, or json null when there is none. */
static json_t *content_of(const json_t *message, size_t at, struct api_error *e)
{
    const json_t *content = json_object_get(message, "content");
    struct strbuf text = {0};
    char field[48];
    snprintf(field, sizeof field, "messages[%zu].content", at);
    if (!content || json_is_null(content))
        return json_null();
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        api_invalid(e, field, "text or a list of parts was expected, not %s",
                    schema_type_name(content));
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(content); i++)
        if (part_text(json_array_get(content, i), at, &text, e))
            break;
    json_t *joined = e->status ? NULL : json_stringn(text.data ? text.data : "", text.len);
    strbuf_finish(&text);
    return joined;
}

/* Templates iterate over a call's arguments; clients send them as text. */
static void open_arguments(json_t *message)
{
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function");
        json_t *arguments = json_object_get(function, "arguments");
        size_t n = json_string_length(arguments);
        json_t *opened = n ? json_in_parse(json_string_value(arguments), n, NULL) : NULL;
        if (opened)
            json_object_set_new(function, "arguments", opened);
    }
}

static json_t *message_of(const json_t *message, size_t at, struct api_error *e)
{
    char field[48];
    snprintf(field, sizeof field, "messages[%zu]", at);
    if (!json_is_object(message)) {
        api_invalid(e, field, "an object was expected, not %s", schema_type_name(message));
        return NULL;
    }
    const char *role = role_of(message);
    if (!role) {
        snprintf(field, sizeof field, "messages[%zu].role", at);
        api_invalid(e, field, "it must be system, developer, user, assistant, tool or function");
        return NULL;
    }
    json_t *content = content_of(message, at, e);
    json_t *out = content ? json_deep_copy(message) : NULL;
    if (!out) {
        json_decref(content);
        api_no_memory(e); /* unless there is an error already */
        return NULL;
    }
    int failed = json_object_set_new(out, "content", content);
    failed |= json_object_set_new(out, "role", json_string(role));
    open_arguments(out);
    if (failed) {
        json_decref(out);
        api_no_memory(e);
        return NULL;
    }
    return out;
}

static json_t *messages_of(const json_t *list, struct api_error *e)
{
    if (json_array_size(list) == 0) {
        api_invalid(e, "messages", "at least one message is needed");
        return NULL;
    }
    json_t *out = json_array();
    for (size_t i = 0; out && i < json_array_size(list); i++) {
        json_t *message = message_of(json_array_get(list, i), i, e);
        if (!message || json_array_append_new(out, message)) {
            json_decref(out);
            api_no_memory(e);
            return NULL;
        }
    }
    return out;
}

static json_t *context_of(const struct openai_request *r, bool generate, struct api_error *e)
{
    json_t *messages = messages_of(r->messages, e);
    json_t *context = messages ? json_object() : NULL;
    if (!context) {
        json_decref(messages);
        api_no_memory(e); /* unless there is an error already */
        return NULL;
    }
    int failed = json_object_set_new(context, "messages", messages);
    if (r->template_kwargs)
        failed |= json_object_update_missing(context, (json_t *)r->template_kwargs);
    if (r->documents)
        failed |= json_object_set(context, "documents", (json_t *)r->documents);
    if (r->reasoning_effort)
        failed |= json_object_set_new(context, "reasoning_effort",
                                      json_string(r->reasoning_effort));
    failed |= json_object_set_new(context, "add_generation_prompt", json_boolean(generate));
    if (failed) {
        json_decref(context);
        api_no_memory(e);
        return NULL;
    }
    return context;
}

static int set_piece(json_t *object, const char *name, const struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *piece = id >= 0 ? tok_piece(t, id, true, &n) : NULL;
    return piece ? json_object_set_new(object, name, json_stringn(piece, n)) : 0;
}

static json_t *trusted_of(const struct tokenizer *t, struct api_error *e)
{
    json_t *trusted = json_object();
    if (!trusted || set_piece(trusted, "bos_token", t, tok_bos(t)) ||
        set_piece(trusted, "eos_token", t, tok_eos(t))) {
        json_decref(trusted);
        api_no_memory(e);
        return NULL;
    }
    return trusted;
}

/* ---- continuing the last message ---- */

static bool found_at(const struct chat_text *text, size_t at, const char *want, size_t n)
{
    return at + n <= text->bytes && memcmp(text->text + at, want, n) == 0;
}

/* Cuts the text after the last message's content, so that the answer goes on from there. */
static int cut_after(struct chat_text *text, const json_t *messages, struct api_error *e)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role"));
    const char *want = json_string_value(content);
    size_t n = want ? json_string_length(content) : 0;
    if (!role || strcmp(role, "assistant") || n == 0)
        return api_invalid(e, "continue_final_message", "the last message must be the assistant's");
    while (n && memchr(" \n\t\r", want[n - 1], 4)) /* templates trim */
        n--;
    for (; n && memchr(" \n\t\r", *want, 4); want++)
        n--;
    for (size_t at = text->bytes; n && at-- > 0;)
        if (found_at(text, at, want, n)) {
            text->bytes = at + n;
            return 0;
        }
    return api_invalid(e, "continue_final_message",
                       "the chat template does not show the last message's text");
}

/* ---- rendering ---- */

static int render_context(const struct server *s, const json_t *context, struct chat_text *out,
                          struct api_error *e)
{
    struct err err = {0};
    json_t *trusted = trusted_of(s->tokenizer, e);
    if (!trusted)
        return -1;
    int failed = chat_template_render(s->chat_template, context, trusted, time(NULL), out, &err);
    json_decref(trusted);
    if (failed)
        return api_refuse(e, failed == ERR_NOMEM ? 500 : 400, "template_error", "messages",
                          "the chat template refused: %s", err.text);
    return 0;
}

/* Null contents become empty ones; false when there was none. */
static bool fill_contents(json_t *context)
{
    size_t i;
    json_t *message;
    bool found = false;
    json_array_foreach(json_object_get(context, "messages"), i, message)
    {
        bool missing = json_is_null(json_object_get(message, "content"));
        found |= missing && json_object_set_new(message, "content", json_string("")) == 0;
    }
    return found;
}

/* Some templates tell a call from an answer by its null content, others cannot add null to text. */
static int render_either(const struct server *s, json_t *context, struct chat_text *out,
                         struct api_error *e)
{
    int failed = render_context(s, context, out, e);
    if (!failed || e->status != 400 || !fill_contents(context))
        return failed;
    *e = (struct api_error){0};
    return render_context(s, context, out, e);
}

static int render(const struct server *s, const struct openai_request *r, struct chat_text *out,
                  struct api_error *e)
{
    bool generate = !json_is_false(r->add_generation_prompt) && !r->continue_final;
    if (!s->chat_template)
        return api_refuse(e, 400, "no_chat_template", NULL, "this model cannot chat: %s",
                          s->template_error.text);
    if (r->continue_final && json_is_true(r->add_generation_prompt))
        return api_invalid(e, "continue_final_message",
                           "it cannot be combined with add_generation_prompt");
    json_t *context = context_of(r, generate, e);
    if (!context)
        return -1;
    int failed = render_either(s, context, out, e);
    if (!failed && r->continue_final)
        failed = cut_after(out, json_object_get(context, "messages"), e);
    json_decref(context);
    return failed;
}

/* Templates write the BOS token themselves; where one does not, the model's is added, never twice.
 */
static int encode(const struct tokenizer *t, const struct openai_request *r,
                  const struct chat_text *text, struct tok_ids *ids, struct api_error *e)
{
    struct tok_options options = {.special = true, .plain = text->plain};
    struct err err = {0};
    size_t n = 0;
    const char *bos = tok_adds_bos(t) && tok_bos(t) >= 0 ? tok_piece(t, tok_bos(t), true, &n)
                                                         : NULL;
    bool there = bos && found_at(text, 0, bos, n);
    options.add_bos = bos && !there && !json_is_false(r->add_special);
    if (tok_encode(t, text->text, text->bytes, &options, ids, &err))
        return api_refuse(e, err.code == ERR_NOMEM ? 500 : 400, "invalid_value", "messages", "%s",
                          err.text);
    return 0;
}

int openai_chat_prompt(const struct server *s, const struct openai_request *r, struct tok_ids *ids,
                       struct api_error *e)
{
    struct chat_text text = {0};
    if (!r->messages)
        return api_invalid(e, "messages", "at least one message is needed");
    int failed = render(s, r, &text, e) || encode(s->tokenizer, r, &text, ids, e) ? -1 : 0;
    free(text.text);
    free(text.plain);
    return failed;
}

static int make_prompt(struct generation *g, const struct openai_request *r, struct api_error *e)
{
    struct tok_ids ids = {0};
    if (openai_make_prompts(g, 1, e))
        return -1;
    if (openai_chat_prompt(g->server, r, &ids, e)) {
        free(ids.ids);
        return -1;
    }
    return openai_take_prompt(g, 0, &ids, r, e);
}

void chat_work(struct exchange *ex)
{
    struct openai_request r;
    struct schema_unknown unknown = {0};
    json_t *root = openai_request_read(ex, true, &r, &unknown);
    if (!root)
        return;
    struct generation *g = generation_create(ex, &openai_chat_dialect);
    if (g && openai_check_model(g, &r, &ex->error) == 0 && make_prompt(g, &r, &ex->error) == 0)
        openai_fill(g, &r, true, &unknown, &ex->error);
    json_decref(root);
    strbuf_finish(&ex->body);
}
