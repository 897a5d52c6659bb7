#include "api.h"

#include "json_out.h"
#include "openai.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Routes without a generation: tokens, models, probes, metrics. */

void native_answer(struct exchange *ex)
{
    exchange_answer_json(ex, 200, &ex->reply);
}

/* ---- /tokenize: llama-server's form (content) and vLLM's (prompt or messages) ---- */

struct tokenize_request {
    const char *prompt;
    const json_t *content;
    bool add_special, parse_special, with_pieces, token_strings;
    const json_t *add_special_tokens, *add_bos;
    struct openai_request chat;
};

#define AT(member) offsetof(struct tokenize_request, member)
const struct schema_field tokenize_fields[] = {
    {"content", SCHEMA_ANY, SCHEMA_HONOUR, AT(content), 0, 0, NULL, NULL},
    {"add_special", SCHEMA_BOOL, SCHEMA_HONOUR, AT(add_special), 0, 0, NULL, NULL},
    {"parse_special", SCHEMA_BOOL, SCHEMA_HONOUR, AT(parse_special), 0, 0, NULL, NULL},
    {"with_pieces", SCHEMA_BOOL, SCHEMA_HONOUR, AT(with_pieces), 0, 0, NULL, NULL},
    {"model", SCHEMA_TEXT, SCHEMA_HONOUR, AT(chat.model), 0, 0, NULL, NULL},
    {"prompt", SCHEMA_TEXT, SCHEMA_HONOUR, AT(prompt), 0, 0, NULL, NULL},
    {"messages", SCHEMA_LIST, SCHEMA_HONOUR, AT(chat.messages), 0, 0, NULL, NULL},
    {"add_special_tokens", SCHEMA_GIVEN_BOOL, SCHEMA_HONOUR, AT(chat.add_special), 0, 0, NULL,
     NULL},
    {"add_generation_prompt", SCHEMA_GIVEN_BOOL, SCHEMA_HONOUR, AT(chat.add_generation_prompt), 0,
     0, NULL, NULL},
    {"continue_final_message", SCHEMA_BOOL, SCHEMA_HONOUR, AT(chat.continue_final), 0, 0, NULL,
     NULL},
    {"chat_template_kwargs", SCHEMA_OBJECT, SCHEMA_HONOUR, AT(chat.template_kwargs), 0, 0, NULL,
     NULL},
    {"return_token_strs", SCHEMA_BOOL, SCHEMA_HONOUR, AT(token_strings), 0, 0, NULL, NULL},
    {"tools", SCHEMA_LIST, SCHEMA_REFUSE, 0, 0, 0, schema_is_empty, NULL},
    {"chat_template", SCHEMA_TEXT, SCHEMA_REFUSE, 0, 0, 0, NULL, NULL},
    {NULL, SCHEMA_ANY, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
};
static const struct schema_field *const tokenize_tables[] = {tokenize_fields, NULL};

static json_t *read_body(struct exchange *ex, const struct schema_field *const *tables, void *out)
{
    struct schema_unknown unknown = {0};
    return schema_read_body(ex->body.data, ex->body.len, tables, out, &unknown, &ex->error);
}

static int encode(struct exchange *ex, const char *text, size_t bytes, struct tok_options options,
                  struct tok_ids *ids)
{
    struct err err = {0};
    if (tok_encode(ex->server->tokenizer, text, bytes, &options, ids, &err) == 0)
        return 0;
    return api_refuse(&ex->error, err.code == ERR_NOMEM ? 500 : 400, "invalid_value", "content",
                      "%s", err.text);
}

static void add_piece(const struct tokenizer *t, int32_t id, struct strbuf *out)
{
    size_t n;
    const char *piece = tok_piece(t, id, true, &n);
    strbuf_adds(out, "{\"id\":");
    json_out_int(out, id);
    strbuf_adds(out, ",\"piece\":");
    if (utf8_valid(piece, n)) {
        json_out_string(out, piece, n);
    } else {
        for (size_t i = 0; i < n; i++)
            strbuf_addf(out, "%c%d", i ? ',' : '[', (unsigned char)piece[i]);
        strbuf_addc(out, ']');
    }
    strbuf_addc(out, '}');
}

static void write_pieces(const struct tokenizer *t, const struct tok_ids *ids, struct strbuf *out)
{
    strbuf_adds(out, "{\"tokens\":[");
    for (int i = 0; i < ids->n; i++) {
        if (i)
            strbuf_addc(out, ',');
        add_piece(t, ids->ids[i], out);
    }
    strbuf_adds(out, "]}");
}

static void add_token_strings(const struct tokenizer *t, const struct tok_ids *ids,
                              struct strbuf *out)
{
    strbuf_adds(out, ",\"token_strs\":[");
    for (int i = 0; i < ids->n; i++) {
        size_t n;
        const char *piece = tok_piece(t, ids->ids[i], true, &n);
        if (i)
            strbuf_addc(out, ',');
        json_out_string(out, piece, n);
    }
    strbuf_addc(out, ']');
}

/* vLLM's answer: the count and the context come, too. */
static void write_counted(const struct exchange *ex, const struct tokenize_request *r,
                          const struct tok_ids *ids, struct strbuf *out)
{
    strbuf_addf(out, "{\"count\":%d,\"max_model_len\":%d,\"tokens\":", ids->n,
                engine_context(ex->server->engine));
    openai_ids(ids->ids, ids->n, out);
    if (r->token_strings)
        add_token_strings(ex->server->tokenizer, ids, out);
    strbuf_addc(out, '}');
}

static int tokenize_chat(struct exchange *ex, const struct tokenize_request *r, struct tok_ids *ids)
{
    return openai_chat_prompt(ex->server, &r->chat, ids, &ex->error);
}

static int tokenize(struct exchange *ex, const struct tokenize_request *r, struct tok_ids *ids)
{
    const json_t *c = r->content;
    struct tok_options options = {.special = true, .add_bos = !json_is_false(r->chat.add_special)};
    if ((c != NULL) + (r->prompt != NULL) + (r->chat.messages != NULL) != 1)
        return api_invalid(&ex->error, "content", "one of content, prompt and messages is needed");
    if (r->chat.messages)
        return tokenize_chat(ex, r, ids);
    if (r->prompt)
        return encode(ex, r->prompt, strlen(r->prompt), options, ids);
    if (!json_is_string(c))
        return api_invalid(&ex->error, "content", "a string was expected, not %s",
                           schema_type_name(c));
    options = (struct tok_options){.special = r->parse_special, .add_bos = r->add_special};
    return encode(ex, json_string_value(c), json_string_length(c), options, ids);
}

void tokenize_work(struct exchange *ex)
{
    struct tokenize_request r = {.parse_special = true, .chat = openai_request_default};
    struct tok_ids ids = {0};
    json_t *root = read_body(ex, tokenize_tables, &r);
    if (root && openai_served(ex->server, r.chat.model, &ex->error) == 0 &&
        tokenize(ex, &r, &ids) == 0) {
        if (!r.content) {
            write_counted(ex, &r, &ids, &ex->reply);
        } else if (r.with_pieces) {
            write_pieces(ex->server->tokenizer, &ids, &ex->reply);
        } else {
            strbuf_adds(&ex->reply, "{\"tokens\":");
            openai_ids(ids.ids, ids.n, &ex->reply);
            strbuf_addc(&ex->reply, '}');
        }
    }
    free(ids.ids);
    json_decref(root);
}

/* ---- /detokenize ---- */

struct detokenize_request {
    const char *model;
    const json_t *tokens;
};

const struct schema_field detokenize_fields[] = {
    {"tokens", SCHEMA_LIST, SCHEMA_HONOUR, offsetof(struct detokenize_request, tokens), 0, 0, NULL,
     NULL},
    {"model", SCHEMA_TEXT, SCHEMA_HONOUR, offsetof(struct detokenize_request, model), 0, 0, NULL,
     NULL},
    {NULL, SCHEMA_ANY, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
};
static const struct schema_field *const detokenize_tables[] = {detokenize_fields, NULL};

static int read_ids(struct exchange *ex, const json_t *list, int32_t *ids)
{
    int most = tok_size(ex->server->tokenizer);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= most)
            return api_invalid(&ex->error, "tokens", "a token id must be an integer from 0 to %d",
                               most - 1);
        ids[i] = (int32_t)json_integer_value(v);
    }
    return 0;
}

static void write_text(struct exchange *ex, const int32_t *ids, int n)
{
    struct strbuf text = {0};
    if (tok_decode(ex->server->tokenizer, ids, n, true, &text))
        text.failed = true;
    ex->reply.failed |= text.failed;
    for (int i = 0; i < 2; i++) { /* llama-server's name, and vLLM's */
        strbuf_adds(&ex->reply, i ? ",\"prompt\":" : "{\"content\":");
        json_out_string(&ex->reply, text.len ? text.data : "", text.len);
    }
    strbuf_addc(&ex->reply, '}');
    strbuf_finish(&text);
}

void detokenize_work(struct exchange *ex)
{
    struct detokenize_request r = {0};
    json_t *root = read_body(ex, detokenize_tables, &r);
    size_t n = json_array_size(r.tokens);
    int32_t *ids = root ? malloc((n + 1) * sizeof *ids) : NULL;
    if (root && !ids)
        api_no_memory(&ex->error);
    else if (root && !r.tokens)
        api_invalid(&ex->error, "tokens", "a list of token ids is needed");
    else if (root && openai_served(ex->server, r.model, &ex->error) == 0 &&
             read_ids(ex, r.tokens, ids) == 0)
        write_text(ex, ids, (int)n);
    free(ids);
    json_decref(root);
}

/* ---- models ---- */

static void write_model(const struct server *s, const char *name, struct strbuf *out)
{
    const struct model_plan *p = model_plan(s->config->model);
    strbuf_adds(out, "{\"id\":");
    json_out_text(out, name);
    strbuf_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"ropewalk\",\"root\":",
                (long long)s->created);
    json_out_text(out, p->name);
    strbuf_addf(out, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[]",
                engine_context(s->engine));
    strbuf_addf(out,
                ",\"meta\":{\"n_vocab\":%d,\"n_ctx\":%d,\"n_ctx_train\":%d,\"n_embd\":%d,"
                "\"n_params\":%llu,\"size\":%zu,\"max_logprobs\":%d}}",
                p->vocabulary, engine_context(s->engine), p->trained_context, p->width,
                (unsigned long long)p->parameters, p->weight_bytes, s->config->max_logprobs);
}

void models_answer(struct exchange *ex)
{
    const struct server *s = ex->server;
    const struct server_config *c = s->config;
    struct strbuf out = {0};
    int written = 0;
    strbuf_adds(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < c->n_served_names; i++) {
        if (strcmp(c->served_names[i], "*") == 0)
            continue;
        if (written++)
            strbuf_addc(&out, ',');
        write_model(s, c->served_names[i], &out);
    }
    if (!written)
        write_model(s, front_model_name(s), &out);
    strbuf_adds(&out, "]}");
    exchange_answer_json(ex, 200, &out);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void decode_percent(char *text)
{
    char *to = text;
    for (; *text; text++) {
        int high = *text == '%' ? hex_digit(text[1]) : -1;
        int low = high >= 0 ? hex_digit(text[2]) : -1;
        if (low < 0 || high * 16 + low == 0) {
            *to++ = *text;
        } else {
            *to++ = (char)(high * 16 + low);
            text += 2;
        }
    }
    *to = '\0';
}

void model_answer(struct exchange *ex)
{
    struct strbuf out = {0};
    char *name = ex->path + strlen("/v1/models/");
    decode_percent(name);
    if (openai_served(ex->server, name, &ex->error)) {
        exchange_refuse(ex);
        return;
    }
    write_model(ex->server, name, &out);
    exchange_answer_json(ex, 200, &out);
}

/* ---- probes ---- */

void health_answer(struct exchange *ex)
{
    struct strbuf out = {0};
    strbuf_adds(&out, "{\"status\":\"ok\"}");
    exchange_answer_json(ex, 200, &out);
}

void ready_answer(struct exchange *ex)
{
    struct strbuf out = {0};
    bool draining = drain_begun(ex->server);
    if (draining) {
        api_refuse(&ex->error, 503, "server_shutting_down", NULL, "the server is shutting down");
        exchange_refuse(ex);
        return;
    }
    strbuf_adds(&out, "{\"status\":\"ready\"}");
    exchange_answer_json(ex, 200, &out);
}

void metrics_answer(struct exchange *ex)
{
    struct strbuf out = {0};
    metrics_render(ex->server, &out);
    exchange_answer(ex, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}
