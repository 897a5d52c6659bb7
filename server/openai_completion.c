#include "openai.h"

#include "json_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OBJECT "text_completion"

/* ---- log-probabilities: four lists over the same tokens ---- */

/* The tokens of a choice: its prompt's when they are shown, then its own. */
struct shown {
    const struct job_event *prompt, *answer;
    const struct generation_prompt *echo; /* or NULL */
    size_t characters;                    /* before the answer's first token */
};

typedef void token_writer(const struct generation *g, const struct job_token *t,
                          struct strbuf *out);

static void add_list(const struct generation *g, const char *name, const struct shown *shown,
                     token_writer *write, struct strbuf *out)
{
    const struct job_event *const chains[] = {shown->prompt, shown->answer};
    bool first = true;
    strbuf_addf(out, "\"%s\":[", name);
    for (int c = 0; c < 2; c++)
        for (const struct job_event *e = chains[c]; e; e = e->next)
            for (int i = 0; i < e->n_tokens; i++, first = false) {
                if (!first)
                    strbuf_addc(out, ',');
                write(g, &e->tokens[i], out);
            }
    strbuf_addc(out, ']');
}

static void write_token(const struct generation *g, const struct job_token *t, struct strbuf *out)
{
    openai_token(g, t->id, out);
}

static void write_logprob(const struct generation *g, const struct job_token *t, struct strbuf *out)
{
    (void)g;
    openai_logprob(t->logprob, out);
}

/* Two tokens may have the same text, and an object may not have the same key twice: a table of the
 * texts that are there. The first, which is the more likely, stays. */
struct texts {
    int32_t *ids; /* [size], -1: free */
    size_t size;
};

static size_t hash_text(const char *s, size_t n)
{
    size_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static bool texts_add(struct texts *t, const struct tokenizer *tokenizer, int32_t id)
{
    size_t n, m;
    const char *text = tok_piece(tokenizer, id, true, &n);
    for (size_t i = hash_text(text, n);; i++) {
        int32_t *slot = &t->ids[i & (t->size - 1)];
        if (*slot < 0) {
            *slot = id;
            return true;
        }
        const char *other = tok_piece(tokenizer, *slot, true, &m);
        if (m == n && memcmp(other, text, n) == 0)
            return false;
    }
}

static bool texts_init(struct texts *t, int most, int32_t *small, size_t small_size)
{
    t->size = small_size;
    t->ids = small;
    while (t->size < 2 * (size_t)most)
        t->size *= 2;
    if (t->size > small_size)
        t->ids = malloc(t->size * sizeof *t->ids);
    if (t->ids)
        memset(t->ids, 0xff, t->size * sizeof *t->ids);
    return t->ids != NULL;
}

static void add_pair(const struct generation *g, int32_t id, float logprob, bool *first,
                     struct strbuf *out)
{
    if (!*first)
        strbuf_addc(out, ',');
    *first = false;
    openai_token(g, id, out);
    strbuf_addc(out, ':');
    openai_logprob(logprob, out);
}

static void add_pairs(const struct generation *g, const struct job_token *t, struct texts *texts,
                      struct strbuf *out)
{
    const struct tokenizer *tokenizer = g->server->tokenizer;
    bool first = true, by_id = g->options.tokens_as_ids, seen = false;
    for (int i = 0; i < t->n_top; i++) {
        seen |= t->top[i].id == t->id;
        if (by_id || texts_add(texts, tokenizer, t->top[i].id))
            add_pair(g, t->top[i].id, t->top[i].logprob, &first, out);
    }
    if (!seen && (by_id || texts_add(texts, tokenizer, t->id)))
        add_pair(g, t->id, t->logprob, &first, out);
}

static void write_tops(const struct generation *g, const struct job_token *t, struct strbuf *out)
{
    int32_t small[64];
    struct texts texts;
    if (isnan(t->logprob)) {
        strbuf_adds(out, "null");
        return;
    }
    if (!texts_init(&texts, t->n_top + 1, small, 64)) {
        out->failed = true;
        return;
    }
    strbuf_addc(out, '{');
    add_pairs(g, t, &texts, out);
    strbuf_addc(out, '}');
    if (texts.ids != small)
        free(texts.ids);
}

/* Where a token begins, in characters; one that begins inside a character belongs to its start. */
static void add_offset(const struct generation *g, int32_t id, bool unspaced, bool first,
                       size_t *characters, struct strbuf *out)
{
    size_t n;
    const char *piece = tok_piece(g->server->tokenizer, id, g->options.show_special, &n);
    if (unspaced && n && *piece == ' ') {
        piece++;
        n--;
    }
    bool inside = n && ((unsigned char)*piece & 0xc0) == 0x80 && *characters;
    if (!first)
        strbuf_addc(out, ',');
    json_out_int(out, (int64_t)(*characters - inside));
    *characters += utf8_count(piece, n);
}

static void add_offsets(const struct generation *g, const struct shown *shown, size_t *characters,
                        struct strbuf *out)
{
    const struct job_event *const chains[] = {shown->prompt, shown->answer};
    bool first = true;
    const struct generation_prompt *p = shown->echo;
    bool unspaced = p && p->text && *p->text != ' ';
    strbuf_adds(out, "\"text_offset\":[");
    for (int c = 0; c < 2; c++)
        for (const struct job_event *e = chains[c]; e; e = e->next)
            for (int i = 0; i < e->n_tokens; i++, first = false)
                add_offset(g, e->tokens[i].id, unspaced && c == 0 && *characters == 0, first,
                           characters, out);
    strbuf_addc(out, ']');
}

static void add_logprobs(const struct generation *g, const struct shown *shown, size_t *characters,
                         struct strbuf *out)
{
    strbuf_adds(out, ",\"logprobs\":");
    if (!g->options.logprobs) {
        strbuf_adds(out, "null");
        return;
    }
    strbuf_addc(out, '{');
    add_list(g, "tokens", shown, write_token, out);
    strbuf_addc(out, ',');
    add_list(g, "token_logprobs", shown, write_logprob, out);
    strbuf_addc(out, ',');
    add_list(g, "top_logprobs", shown, write_tops, out);
    strbuf_addc(out, ',');
    add_offsets(g, shown, characters, out);
    strbuf_addc(out, '}');
}

/* ---- a whole answer ---- */

static void add_choice(struct generation *g, int index, int choice, struct strbuf *out)
{
    struct generation_choice *c = &g->choices[choice];
    int prompt = choice / g->job->request.candidates;
    const struct generation_prompt *p = &g->prompts[prompt];
    struct shown shown = {.answer = c->events};
    size_t characters = 0;
    if (g->options.echo && g->options.logprobs)
        shown.prompt = p->events;
    if (g->options.echo)
        shown.echo = p;
    strbuf_addf(out, "{\"index\":%d,\"text\":\"", index);
    if (g->options.echo)
        json_out_escaped(out, p->text, p->text_bytes);
    json_out_escaped(out, c->text.data ? c->text.data : "", c->text.len);
    strbuf_addc(out, '"');
    add_logprobs(g, &shown, &characters, out);
    strbuf_addc(out, ',');
    openai_finish(g, c, out);
    if (g->options.prompt_logprobs) {
        strbuf_adds(out, ",\"prompt_logprobs\":");
        openai_prompt_logprobs(g, p, out);
    }
    if (g->options.token_ids) {
        const struct tok_ids *ids = &g->job->request.prompts[prompt];
        strbuf_adds(out, ",\"prompt_token_ids\":");
        openai_ids(ids->ids, ids->n, out);
        strbuf_adds(out, ",\"token_ids\":");
        openai_event_ids(c->events, out);
    }
    strbuf_addc(out, '}');
}

static void whole(struct generation *g, struct strbuf *out)
{
    int wanted = g->options.candidates_wanted;
    int ranked[128]; /* the most that n may be */
    openai_head(g, OBJECT, out);
    strbuf_adds(out, ",\"choices\":[");
    for (int p = 0; p < g->job->request.n_prompts; p++) {
        openai_ranked(g, p, ranked);
        for (int i = 0; i < wanted; i++) {
            if (p || i)
                strbuf_addc(out, ',');
            add_choice(g, p * wanted + i, ranked[i], out);
        }
    }
    strbuf_adds(out, "],\"usage\":");
    openai_usage(g, out);
    strbuf_addc(out, '}');
}

/* ---- a stream ---- */

/* What a chunk says of one choice; NULL and 0 where it says nothing. */
struct piece {
    int choice;
    const char *text;
    size_t bytes;
    struct shown shown;
    bool prompt_ids, last;
};

static void add_chunk(struct generation *g, const struct piece *piece, struct strbuf *out)
{
    struct generation_choice *c = &g->choices[piece->choice];
    openai_chunk_begin(g, OBJECT, out);
    strbuf_addf(out, "{\"index\":%d,\"text\":", piece->choice);
    json_out_string(out, piece->text ? piece->text : "", piece->bytes);
    add_logprobs(g, &piece->shown, &c->characters, out);
    strbuf_addc(out, ',');
    if (piece->last)
        openai_finish(g, c, out);
    else
        strbuf_adds(out, "\"finish_reason\":null");
    if (piece->prompt_ids) {
        const struct tok_ids *ids =
            &g->job->request.prompts[piece->choice / g->job->request.candidates];
        strbuf_adds(out, ",\"prompt_token_ids\":");
        openai_ids(ids->ids, ids->n, out);
    }
    if (g->options.token_ids) {
        strbuf_adds(out, ",\"token_ids\":");
        openai_event_ids(piece->shown.answer, out);
    }
    strbuf_addc(out, '}');
    openai_chunk_end(g, out);
}

/* The prompt's text, once for each of its candidates. */
static void add_echo(struct generation *g, int first_choice, struct strbuf *out)
{
    int candidates = g->job->request.candidates, prompt = first_choice / candidates;
    const struct generation_prompt *p = &g->prompts[prompt];
    for (int i = prompt * candidates; i < (prompt + 1) * candidates; i++) {
        const struct piece piece = {.choice = i,
                                    .text = p->text,
                                    .bytes = p->text_bytes,
                                    .shown = {.prompt = p->events, .echo = p},
                                    .prompt_ids = g->options.token_ids};
        add_chunk(g, &piece, out);
        g->choices[i].begun = true;
    }
}

static void add_answer(struct generation *g, const struct job_event *e, struct strbuf *out)
{
    struct generation_choice *c = &g->choices[e->choice];
    bool tells = e->text_bytes || e->kind == JOB_FINISH ||
                 (e->n_tokens && (g->options.logprobs || g->options.token_ids));
    const struct piece piece = {.choice = e->choice,
                                .text = e->text,
                                .bytes = e->text_bytes,
                                .shown = {.answer = e},
                                .prompt_ids = g->options.token_ids && !c->begun,
                                .last = e->kind == JOB_FINISH};
    if (!tells)
        return;
    c->begun = true;
    add_chunk(g, &piece, out);
}

static void event(struct generation *g, const struct job_event *e, struct strbuf *out)
{
    const struct generation_prompt *p = &g->prompts[e->choice / g->job->request.candidates];
    int all = g->job->request.prompts[e->choice / g->job->request.candidates].n;
    switch (e->kind) {
    case JOB_STARTED:
        if (g->options.echo && !g->options.logprobs && !g->choices[e->choice].begun)
            add_echo(g, e->choice, out);
        break;
    case JOB_PROMPT:
        if (g->options.echo && p->tokens_seen == all)
            add_echo(g, e->choice, out);
        break;
    case JOB_TEXT:
    case JOB_FINISH:
        add_answer(g, e, out);
        break;
    case JOB_DONE:
        break;
    }
}

static void end(struct generation *g, struct strbuf *out)
{
    openai_stream_end(g, OBJECT, out);
}

const struct generation_dialect openai_completion_dialect = {"cmpl-", whole, event, end,
                                                             openai_stream_error};
