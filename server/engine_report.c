#include "engine_state.h"

#include <stdlib.h>

struct job_event *engine_event(enum job_event_kind kind, int choice)
{
    struct job_event *event = calloc(1, sizeof *event);
    if (event) {
        event->kind = kind;
        event->choice = choice;
        event->stop_token = -1;
    }
    return event;
}

void engine_send(struct engine *e, struct job *j, struct job_event *event)
{
    job_put(j, event);
    pthread_mutex_lock(&e->news_lock);
    if (!j->listed) {
        j->listed = true;
        job_ref(j);
        j->next_news = e->news;
        e->news = j;
    }
    pthread_mutex_unlock(&e->news_lock);
    e->told = true;
}

/* One at a time: a job that has been handed out can be listed again at once. */
struct job *engine_next_news(struct engine *e)
{
    pthread_mutex_lock(&e->news_lock);
    struct job *j = e->news;
    if (j) {
        e->news = j->next_news;
        j->listed = false;
    }
    pthread_mutex_unlock(&e->news_lock);
    return j;
}

void engine_notify(struct engine *e)
{
    if (e->told && e->config.notify)
        e->config.notify(e->config.notify_arg);
    e->told = false;
}

void engine_publish(struct engine *e)
{
    e->now.running = e->n_running - e->n_aside;
    e->now.waiting = e->n_aside;
    kv_stats(e->config.cache, &e->now.kv);
    if (e->now.kv.block_bytes_total)
        e->now.kv_usage = (double)e->now.kv.bytes_used / (double)e->now.kv.block_bytes_total;
    e->now.tokens_per_second_prefill = e->prompt_ms_per_token > 0 ? 1e3 / e->prompt_ms_per_token
                                                                  : 0;
    e->now.tokens_per_second_decode = e->decode_ms > 0 ? 1e3 / e->decode_ms : 0;
    pthread_mutex_lock(&e->lock);
    e->stats = e->now;
    e->queued -= e->begun;
    e->begun = 0;
    pthread_mutex_unlock(&e->lock);
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting += e->queued;
    pthread_mutex_unlock(&e->lock);
}

int engine_context(const struct engine *e)
{
    return e->context;
}

/* ---- the debug view ---- */

struct prefix_list {
    const struct tokenizer *tokenizer;
    json_t *out;
    bool texts;
};

#define SHOWN_PREFIXES 20
#define SHOWN_BYTES    400

static void list_prefix(void *arg, const struct kv_prefix *prefix)
{
    struct prefix_list *l = arg;
    json_t *o = json_pack("{s:i, s:I, s:i}", "tokens", prefix->n, "hits", (json_int_t)prefix->hits,
                          "users", prefix->users);
    struct strbuf text = {0}, valid = {0};
    if (l->texts && tok_decode(l->tokenizer, prefix->tokens, prefix->n, true, &text) == 0) {
        utf8_append(&valid, text.data ? text.data : "",
                    text.len < SHOWN_BYTES ? text.len : SHOWN_BYTES, false);
        json_object_set_new(o, "text", json_stringn(valid.data ? valid.data : "", valid.len));
    }
    strbuf_finish(&text);
    strbuf_finish(&valid);
    json_array_append_new(l->out, o);
}

static json_t *groups_json(const struct engine *e, const struct kv_stats *st)
{
    json_t *list = json_array();
    for (int g = 0; g < e->plan->kv.groups; g++) {
        const struct kv_group_config *group = &e->plan->kv.group[g];
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I}", "name", group->name, "window",
                            group->window, "block_bytes", (json_int_t)group->block_bytes, "free",
                            (json_int_t)st->blocks_free[g], "held", (json_int_t)st->blocks_held[g],
                            "shared", (json_int_t)st->blocks_shared[g], "cached",
                            (json_int_t)st->blocks_cached[g]));
    }
    return list;
}

static json_t *sequence_json(const struct engine *e, const struct sequence *s)
{
    json_t *held = json_object();
    for (int g = 0; g < e->plan->kv.groups && s->kv; g++) {
        void *const *blocks = kv_seq_blocks(s->kv, g);
        int n = (kv_seq_length(s->kv) + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS, count = 0;
        for (int i = 0; i < n; i++)
            count += blocks[i] != NULL;
        json_object_set_new(held, e->plan->kv.group[g].name, json_integer(count));
    }
    return json_pack("{s:I, s:i, s:i, s:i, s:i, s:i, s:b, s:o}", "request",
                     (json_int_t)s->request->job->id, "choice", s->choice, "prompt_tokens",
                     s->prompt_n, "generated_tokens", s->generated, "length",
                     s->kv ? kv_seq_length(s->kv) : 0, "ready", s->kv ? kv_seq_ready(s->kv) : 0,
                     "waits", s->kv == NULL || kv_seq_producer(s->kv) != NULL, "blocks", held);
}

json_t *engine_debug(struct engine *e, bool texts)
{
    struct kv_stats st;
    struct prefix_list prefixes = {e->tokenizer, json_array(), texts};
    json_t *running = json_array();
    pthread_mutex_lock(&e->state_lock);
    kv_stats(e->config.cache, &st);
    kv_visit_prefixes(e->config.cache, SHOWN_PREFIXES, list_prefix, &prefixes);
    for (int i = 0; i < e->n_running; i++)
        json_array_append_new(running, sequence_json(e, e->running[i]));
    json_t *groups = groups_json(e, &st);
    pthread_mutex_unlock(&e->state_lock);
    return json_pack("{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "block_tokens", KV_BLOCK_TOKENS,
                     "bytes_total", (json_int_t)st.block_bytes_total, "bytes_free",
                     (json_int_t)st.bytes_free, "bytes_used", (json_int_t)st.bytes_used,
                     "bytes_cached", (json_int_t)st.bytes_cached, "groups", groups, "prefixes",
                     prefixes.out, "running", running);
}
