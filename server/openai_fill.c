#include "openai.h"

#include "siphash.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* From the typed request to the job: everything but the prompts. */

#define MOST_STOPS     4 /* the specification's; other dialects have their own */
#define MOST_BREAKERS  64
#define MOST_BAD_WORDS 1000

const struct openai_request openai_request_default = {
    .n = 1,
    .best_of = -1,
    .max_tokens = -1,
    .max_completion_tokens = -1,
    .temperature = 1,
    .top_p = 1,
    .typical_p = 1,
    .xtc_threshold = 0.1,
    .repetition_penalty = 1,
    .dry_base = 1.75,
    .dry_allowed_length = 2,
    .dry_last_n = -1,
    .skip_special = true,
};

/* What the parts below work on. */
struct fill {
    struct generation *g;
    struct job_request *job;
    const struct openai_request *r;
    struct mem_arena *arena;
    struct api_error *e;
};

json_t *openai_request_read(struct exchange *ex, bool chat, struct openai_request *out,
                            struct schema_unknown *unknown)
{
    const struct schema_field *const tables[] = {
        chat ? openai_chat_fields : openai_completion_fields, openai_common_fields, NULL};
    *out = openai_request_default;
    return schema_read_body(ex->body.data, ex->body.len, tables, out, unknown, &ex->error);
}

/* ---- lists ---- */

static bool is_token(const struct generation *g, const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 &&
           json_integer_value(v) < tok_size(g->server->tokenizer);
}

static int refuse_token(const struct fill *f, const char *name)
{
    return api_invalid(f->e, name, "a token id must be an integer from 0 to %d",
                       tok_size(f->g->server->tokenizer) - 1);
}

static int fill_ids(const struct fill *f, const json_t *list, const char *name, const int32_t **out,
                    int *n)
{
    size_t count = json_array_size(list);
    if (count == 0)
        return 0;
    int32_t *ids = mem_arena_alloc(f->arena, count * sizeof *ids);
    if (!ids)
        return api_no_memory(f->e);
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        if (!is_token(f->g, v))
            return refuse_token(f, name);
        ids[i] = (int32_t)json_integer_value(v);
    }
    *out = ids;
    *n = (int)count;
    return 0;
}

/* "123" -> 123, and nothing else; -1 when it is no token. */
static int32_t token_of_key(const struct generation *g, const char *key)
{
    int64_t id = 0;
    if (!*key || strlen(key) > 9)
        return -1;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return -1;
        id = id * 10 + (*key - '0');
    }
    return id < tok_size(g->server->tokenizer) ? (int32_t)id : -1;
}

static int fill_bias(const struct fill *f)
{
    size_t count = json_object_size(f->r->logit_bias), i = 0;
    const char *key;
    json_t *value;
    if (count == 0)
        return 0;
    int32_t *ids = mem_arena_alloc(f->arena, count * sizeof *ids);
    float *bias = mem_arena_alloc(f->arena, count * sizeof *bias);
    if (!ids || !bias)
        return api_no_memory(f->e);
    json_object_foreach((json_t *)f->r->logit_bias, key, value)
    {
        double v = json_number_value(value);
        ids[i] = token_of_key(f->g, key);
        if (ids[i] < 0)
            return refuse_token(f, "logit_bias");
        if (!json_is_number(value) || v < -100 || v > 100)
            return api_invalid(f->e, "logit_bias", "a bias must be a number from -100 to 100");
        bias[i++] = (float)v;
    }
    f->job->sampling.bias_ids = ids;
    f->job->sampling.bias = bias;
    f->job->sampling.n_bias = (int)count;
    return 0;
}

/* Copies of the strings of `v` (a string or a list) that are not empty. */
static int fill_strings(const struct fill *f, const json_t *v, const char *name, int most,
                        const char ***texts, size_t **bytes, int *n)
{
    size_t count = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (count > (size_t)most)
        return api_invalid(f->e, name, "%zu strings were given, %d are the most", count, most);
    const char **to = mem_arena_alloc(f->arena, (count + 1) * sizeof *to);
    size_t *sizes = mem_arena_alloc(f->arena, (count + 1) * sizeof *sizes);
    if (!to || !sizes)
        return api_no_memory(f->e);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one))
            return api_invalid(f->e, name, "strings were expected, not %s", schema_type_name(one));
        size_t size = json_string_length(one);
        if (size == 0)
            continue;
        to[*n] = mem_arena_strndup(f->arena, json_string_value(one), size);
        sizes[*n] = size;
        if (!to[(*n)++])
            return api_no_memory(f->e);
    }
    *texts = to;
    *bytes = sizes;
    return 0;
}

static int fill_stop(const struct fill *f)
{
    const char **texts = NULL;
    size_t *bytes = NULL;
    if (fill_strings(f, f->r->stop, "stop", MOST_STOPS, &texts, &bytes, &f->job->n_stop))
        return -1;
    f->job->stop = texts;
    f->job->stop_bytes = bytes;
    f->job->include_stop = f->r->include_stop;
    f->job->ignore_eos = f->r->ignore_eos;
    return fill_ids(f, f->r->stop_token_ids, "stop_token_ids", &f->job->sampling.stop_ids,
                    &f->job->sampling.n_stop_ids);
}

static int fill_breakers(const struct fill *f)
{
    const char **texts = NULL;
    size_t *bytes = NULL;
    int n = 0;
    if (!f->r->dry_breakers)
        return 0;
    if (fill_strings(f, f->r->dry_breakers, "dry_sequence_breakers", MOST_BREAKERS, &texts, &bytes,
                     &n))
        return -1;
    f->job->sampling.dry_breakers = texts;
    f->job->sampling.n_dry_breakers = n;
    return 0;
}

/* A word is barred at the beginning of a text and inside it: with and without a space before. */
static int add_bad_word(const struct fill *f, const char *word, size_t bytes, bool space,
                        struct tok_ids *out)
{
    struct strbuf text = {0};
    struct tok_ids ids = {0};
    struct err err;
    const struct tok_options options = {0};
    if (space)
        strbuf_addc(&text, ' ');
    strbuf_add(&text, word, bytes);
    int failed = text.failed ||
                 tok_encode(f->g->server->tokenizer, text.data, text.len, &options, &ids, &err);
    if (!failed && ids.n) {
        out->ids = mem_arena_alloc(f->arena, (size_t)ids.n * sizeof *out->ids);
        out->n = out->cap = ids.n;
        failed = !out->ids;
        if (out->ids)
            memcpy(out->ids, ids.ids, (size_t)ids.n * sizeof *out->ids);
    }
    free(ids.ids);
    strbuf_finish(&text);
    return failed ? api_no_memory(f->e) : 0;
}

static int fill_bad_words(const struct fill *f)
{
    const char **texts = NULL;
    size_t *bytes = NULL;
    int n = 0;
    if (!f->r->bad_words)
        return 0;
    if (fill_strings(f, f->r->bad_words, "bad_words", MOST_BAD_WORDS, &texts, &bytes, &n))
        return -1;
    struct tok_ids *words = mem_arena_alloc(f->arena, 2 * (size_t)(n + 1) * sizeof *words);
    if (!words)
        return api_no_memory(f->e);
    int made = 0;
    for (int i = 0; i < 2 * n; i++) {
        if (add_bad_word(f, texts[i / 2], bytes[i / 2], i % 2, &words[made]))
            return -1;
        made += words[made].n > 0;
    }
    f->job->sampling.bad_words = words;
    f->job->sampling.n_bad_words = made;
    return 0;
}

/* ---- log-probabilities ---- */

static int fill_count(const struct fill *f, const json_t *v, const char *name, int *out)
{
    int most = f->g->server->config->max_logprobs;
    if (!v)
        return 0;
    int64_t n = schema_int(v);
    if (n == -1 && most == -1) {
        *out = -1;
        return 0;
    }
    if (n < 0 || (most >= 0 && n > most) || n > INT_MAX)
        return api_invalid(f->e, name,
                           "%lld was given; it must be between 0 and %d (see --max-logprobs)",
                           (long long)n, most);
    *out = (int)n;
    return 0;
}

static int fill_logprobs(const struct fill *f, bool chat)
{
    const struct openai_request *r = f->r;
    struct generation_options *o = &f->g->options;
    f->job->logprobs = f->job->prompt_logprobs = JOB_NO_LOGPROBS;
    if (chat && r->top_logprobs && !r->chat_logprobs)
        return api_invalid(f->e, "top_logprobs", "logprobs must be true for it");
    o->logprobs = chat ? r->chat_logprobs : r->logprobs != NULL;
    if (o->logprobs)
        f->job->logprobs = 0;
    if (fill_count(f, chat ? r->top_logprobs : r->logprobs, chat ? "top_logprobs" : "logprobs",
                   &f->job->logprobs))
        return -1;
    o->prompt_logprobs = r->prompt_logprobs != NULL;
    if (o->prompt_logprobs && r->stream)
        return api_invalid(f->e, "prompt_logprobs", "it cannot be streamed");
    if (fill_count(f, r->prompt_logprobs, "prompt_logprobs", &f->job->prompt_logprobs))
        return -1;
    bool more = f->job->prompt_logprobs >= 0 && f->job->prompt_logprobs < f->job->logprobs;
    if (o->echo && o->logprobs &&
        (f->job->prompt_logprobs == JOB_NO_LOGPROBS || more || f->job->logprobs == -1))
        f->job->prompt_logprobs = f->job->logprobs;
    return 0;
}

/* ---- numbers ---- */

static void fill_sampling(const struct fill *f)
{
    const struct openai_request *r = f->r;
    struct sampler_params *p = &f->job->sampling;
    *p = sampler_params_default;
    p->temperature = r->temperature;
    p->top_k = (int)r->top_k;
    p->top_p = r->top_p;
    p->min_p = r->min_p;
    p->typical_p = r->typical_p;
    p->top_n_sigma = r->top_n_sigma;
    p->xtc_probability = r->xtc_probability;
    p->xtc_threshold = r->xtc_threshold;
    p->repetition_penalty = r->repetition_penalty;
    p->presence_penalty = r->presence_penalty;
    p->frequency_penalty = r->frequency_penalty;
    p->dry_multiplier = r->dry_multiplier;
    p->dry_base = r->dry_base;
    p->dry_allowed_length = (int)r->dry_allowed_length;
    p->dry_last_n = (int)r->dry_last_n;
    p->min_tokens = (int)r->min_tokens;
    if (r->seed)
        p->seed = (uint64_t)schema_int(r->seed);
    else
        front_random(&p->seed, sizeof p->seed);
}

static int fill_candidates(const struct fill *f, bool chat)
{
    const struct openai_request *r = f->r;
    int64_t best = r->best_of < 0 || chat ? r->n : r->best_of;
    if (best < r->n)
        return api_invalid(f->e, "best_of", "%lld was given; it must be at least n, which is %lld",
                           (long long)best, (long long)r->n);
    if (best > r->n && r->stream)
        return api_invalid(f->e, "best_of", "the best of several cannot be streamed");
    int64_t choices = best * f->job->n_prompts;
    int most = f->g->server->config->most_choices;
    if (choices > most)
        return api_invalid(f->e, r->n > 1 || chat ? "n" : "prompt",
                           "%lld answers were asked for in one request, %d are the most",
                           (long long)choices, most);
    f->job->candidates = (int)best;
    f->g->options.candidates_wanted = (int)r->n;
    return 0;
}

static int fill_stream(const struct fill *f)
{
    static const struct schema_field fields[] = {
        {"include_usage", SCHEMA_BOOL, SCHEMA_HONOUR,
         offsetof(struct generation_options, include_usage), 0, 0, NULL, NULL},
        {"continuous_usage_stats", SCHEMA_BOOL, SCHEMA_HONOUR,
         offsetof(struct generation_options, continuous_usage), 0, 0, NULL, NULL},
        {"include_obfuscation", SCHEMA_BOOL, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
        {NULL, SCHEMA_ANY, SCHEMA_IGNORE, 0, 0, 0, NULL, NULL},
    };
    static const struct schema_field *const tables[] = {fields, NULL};
    struct schema_unknown unknown = {0};
    struct generation_options *o = &f->g->options;
    o->stream = f->r->stream;
    if (f->r->stream_options && schema_read(tables, f->r->stream_options, o, &unknown, f->e)) {
        char field[sizeof f->e->param];
        memcpy(field, f->e->param, sizeof field);
        snprintf(f->e->param, sizeof f->e->param, "stream_options.%.60s", field);
        return -1;
    }
    o->include_usage &= o->stream;
    o->continuous_usage &= o->include_usage;
    return 0;
}

static int fill_limits(const struct fill *f, bool chat)
{
    const struct openai_request *r = f->r;
    double most = f->g->server->config->max_seconds;
    int64_t asked = r->max_completion_tokens >= 0 ? r->max_completion_tokens : r->max_tokens;
    if (asked < 0 && !chat)
        asked = 16;
    f->g->options.asked_tokens = asked;
    f->job->max_tokens = (int)asked;
    f->job->priority = (int)r->priority;
    f->job->max_seconds = most > 0 && (r->max_time <= 0 || r->max_time > most) ? most : r->max_time;
    if (r->min_tokens > 0 && asked >= 0 && r->min_tokens > asked)
        return api_invalid(f->e, "min_tokens", "it is greater than max_tokens, which is %lld",
                           (long long)asked);
    return 0;
}

/* Tenants pay from their own shares and never see each other's prefixes; within a tenant a salt
 * parts them further. */
static void fill_tenant(const struct fill *f)
{
    const char *salt = f->r->cache_salt;
    uint64_t key[2] = {f->g->server->salt_key[0], f->g->server->salt_key[1]};
    f->job->tenant = f->job->salt = f->g->exchange->tenant;
    key[1] ^= f->job->tenant;
    if (salt)
        f->job->salt = siphash(key, salt, strlen(salt));
}

/* ---- names ---- */

static int refuse_name(const struct server *s, const char *name, struct api_error *e)
{
    struct strbuf names = {0};
    strbuf_adds(&names, front_model_name(s));
    for (int i = 1; i < s->config->n_served_names; i++)
        strbuf_addf(&names, ", %s", s->config->served_names[i]);
    api_refuse(e, 404, "model_not_found", "model",
               "the model '%.100s' is not served here, only: %.300s", name,
               names.data ? names.data : "");
    strbuf_finish(&names);
    return -1;
}

int openai_served(const struct server *s, const char *name, struct api_error *e)
{
    if (!name || strcmp(name, front_model_name(s)) == 0)
        return 0;
    for (int i = 0; i < s->config->n_served_names; i++)
        if (strcmp(s->config->served_names[i], "*") == 0 ||
            strcmp(s->config->served_names[i], name) == 0)
            return 0;
    return refuse_name(s, name, e);
}

static int fill_model(const struct fill *f)
{
    const char *name = f->r->model;
    f->g->model = front_model_name(f->g->server);
    if (openai_served(f->g->server, name, f->e))
        return -1;
    if (name)
        f->g->model = mem_arena_strndup(f->arena, name, strlen(name));
    return f->g->model ? 0 : api_no_memory(f->e);
}

static int fill_id(const struct fill *f)
{
    const char *prefix = f->g->options.dialect->id_prefix;
    char random[25];
    front_random_hex(random, 24);
    snprintf(f->g->id, sizeof f->g->id, "%s%s", prefix,
             f->r->request_id ? f->r->request_id : random);
    return 0;
}

/* A line of its own, with nothing in it that could pass for another line of the log. */
static void fill_unknown_name(const char *name, struct strbuf *out)
{
    if (out->len)
        strbuf_addc(out, '\n');
    for (int i = 0; name[i] && i < 40; i++)
        strbuf_addc(out, (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i]);
}

static int fill_unknown(const struct fill *f, const struct schema_unknown *unknown)
{
    struct strbuf names = {0};
    for (int i = 0; i < unknown->n; i++)
        fill_unknown_name(unknown->names[i], &names);
    if (names.len)
        f->g->unknown_fields = mem_arena_strndup(f->arena, names.data, names.len);
    strbuf_finish(&names);
    return 0;
}

static void fill_options(const struct fill *f)
{
    struct generation_options *o = &f->g->options;
    o->echo = f->r->echo;
    o->token_ids = f->r->return_token_ids;
    o->tokens_as_ids = f->r->tokens_as_ids;
    o->show_special = f->job->special = !f->r->skip_special;
    o->cache_info = f->r->return_cache_info;
    f->job->shift = f->r->context_shift;
    f->job->keep = (int)f->r->n_keep;
}

int openai_check_model(struct generation *g, const struct openai_request *r, struct api_error *e)
{
    const struct fill f = {g, &g->job->request, r, &g->job->arena, e};
    return fill_model(&f);
}

int openai_fill(struct generation *g, const struct openai_request *r, bool chat,
                const struct schema_unknown *unknown, struct api_error *e)
{
    const struct fill f = {g, &g->job->request, r, &g->job->arena, e};
    fill_options(&f);
    fill_tenant(&f);
    fill_sampling(&f);
    if (fill_stream(&f) || fill_candidates(&f, chat) || fill_limits(&f, chat) || fill_stop(&f) ||
        fill_bias(&f) || fill_breakers(&f) || fill_bad_words(&f) || fill_logprobs(&f, chat))
        return -1;
    if (fill_ids(&f, r->allowed_token_ids, "allowed_token_ids", &f.job->sampling.allowed,
                 &f.job->sampling.n_allowed))
        return -1;
    return fill_id(&f) || fill_unknown(&f, unknown) ? -1 : generation_prepare(g, e);
}
