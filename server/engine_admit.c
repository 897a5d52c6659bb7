#include "engine_state.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>

/* Who begins and who ends: waiting requests become running sequences, sequences get and lose their
 * place in the cache. */

/* ---- ends ---- */

static void end_request(struct engine *e, struct request *r)
{
    r->job->times.finished = engine_clock();
    engine_send(e, r->job, r->done);
    job_unref(r->job);
    free(r);
}

void engine_fail(struct request *r, int code, const char *text)
{
    r->finished = true;
    if (r->done->error)
        return;
    r->done->error = code;
    r->done->text = strdup(text);
    r->done->text_bytes = r->done->text ? strlen(text) : 0;
}

void engine_fail_memory(struct request *r)
{
    engine_fail(r, ERR_NOMEM, "the server is out of memory");
}

static void remove_running(struct engine *e, struct sequence *s)
{
    int i = 0;
    while (e->running[i] != s)
        i++;
    memmove(e->running + i, e->running + i + 1,
            (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
}

void engine_park(struct engine *e, struct sequence *s)
{
    if (!s->kv)
        return;
    if (kv_seq_ready(s->kv) == kv_seq_length(s->kv))
        kv_seq_mark(s->kv);
    kv_seq_close(s->kv);
    s->kv = NULL;
    e->changes++;
}

void engine_count_prompt(struct engine *e, const struct sequence *s)
{
    int had = s->computed + sequence_cached(s);
    e->now.prompt_tokens += (uint64_t)had;
    e->now.prompt_computed_tokens += (uint64_t)s->computed;
    e->now.prompt_cached_tokens += (uint64_t)(had - s->computed);
    if (had > 0)
        e->now.misses[s->miss]++;
}

void engine_finish(struct engine *e, struct sequence *s, enum job_finish finish)
{
    struct request *r = s->request;
    struct job_event *event = engine_event(JOB_FINISH, s->choice);
    if (event) {
        stream_take(&s->stream, true, event);
        event->finish = finish;
        event->stop_string = s->stop_string;
        event->stop_token = s->stop_token;
        event->completion_tokens = s->generated;
        event->logprob_sum = s->logprob_sum;
        engine_send(e, r->job, event);
    } else {
        engine_fail_memory(r);
    }
    e->now.finished[finish]++;
    if (!s->announced)
        engine_count_prompt(e, s);
    engine_park(e, s);
    remove_running(e, s);
    engine_leave_slot(e, s);
    sequence_destroy(s);
    r->live--;
    if (r->live == 0 && !r->waits)
        end_request(e, r); /* else drop_waiting ends it, or its next choice begins */
}

static bool should_drop(const struct request *r)
{
    return r->finished || atomic_load(&r->job->cancelled);
}

static void unlink_waiting(struct engine *e, struct request **at)
{
    struct request *r = *at;
    *at = r->next;
    r->waits = false;
    if (!*at)
        e->waiting_last = at;
    e->n_waiting--;
}

static struct request **waiting_link(struct engine *e, const struct request *r)
{
    struct request **at = &e->waiting;
    while (*at != r)
        at = &(*at)->next;
    return at;
}

static void drop_waiting(struct engine *e)
{
    struct request **at = &e->waiting;
    while (*at) {
        struct request *r = *at;
        if (!should_drop(r)) {
            at = &r->next;
            continue;
        }
        unlink_waiting(e, at);
        if (r->started == 0)
            e->begun++;
        r->finished = true;
        if (r->live == 0)
            end_request(e, r);
    }
}

static bool out_of_time(const struct sequence *s, int64_t now)
{
    const struct job *j = s->request->job;
    return j->request.max_seconds > 0 &&
           (double)(now - j->times.submitted) * 1e-9 >= j->request.max_seconds;
}

void engine_drop(struct engine *e)
{
    int64_t now = engine_clock();
    for (int i = e->n_running - 1; i >= 0; i--) {
        struct sequence *s = e->running[i];
        if (should_drop(s->request))
            engine_finish(e, s, FINISH_CANCELLED);
        else if (out_of_time(s, now))
            engine_finish(e, s, FINISH_LENGTH);
    }
    drop_waiting(e);
}

/* ---- beginnings ---- */

void engine_accept(struct engine *e, struct job *j)
{
    struct request *r = calloc(1, sizeof *r);
    struct job_event *done = engine_event(JOB_DONE, 0);
    if (!r || !done) {
        /* Without memory even for this the front end would wait for ever; there is nothing left to
         * do but say so. */
        log_error("out of memory: request %llu is lost", (unsigned long long)j->id);
        free(r);
        free(done);
        job_unref(j);
        return;
    }
    r->job = j;
    r->done = done;
    r->turn = sched_turn((double)j->times.submitted * 1e-9, j->request.priority);
    r->choices = j->request.n_prompts * j->request.candidates;
    r->waits = true;
    *e->waiting_last = r;
    e->waiting_last = &r->next;
    e->n_waiting++;
    e->claims_changed = true;
}

void engine_begin(struct engine *e, struct request *r)
{
    struct sequence *s;
    struct err err;
    if (r->started == 0) {
        e->begun++;
        r->job->times.started = engine_clock();
    }
    int rc = sequence_create(r, e->tokenizer, e->context, e->config.lookup > 0, &s, &err);
    if (rc) {
        engine_fail(r, rc, err.text);
    } else {
        s->serial = ++e->serials;
        e->running[e->n_running++] = s;
        r->live++;
        r->slots++;
    }
    r->started++;
    if (r->started < r->choices && !r->finished)
        return;
    unlink_waiting(e, waiting_link(e, r));
    if (r->live == 0)
        end_request(e, r);
}

/* ---- a place in the cache ---- */

static size_t kv_bytes_wanted(const struct engine *e, const struct sequence *s)
{
    return model_kv_bytes(e->plan, s->n + 1) - model_kv_bytes(e->plan, kv_seq_length(s->kv));
}

/* Room for what it has still to compute, for what those before it have, and for each of them to go
 * on by a block. Those after it in line give way when it grows. */
static bool has_room(struct engine *e, const struct sequence *s)
{
    struct kv_stats st;
    kv_stats(e->config.cache, &st);
    size_t room = st.bytes_free + st.bytes_cached, block = model_kv_bytes(e->plan, 1);
    size_t wanted = kv_bytes_wanted(e, s) + block;
    bool before = true, first = true;
    for (int i = 0; i < e->n_running; i++) {
        const struct sequence *other = e->running[i];
        if (other == s) {
            before = false;
        } else if (other->kv && before) {
            wanted += kv_bytes_wanted(e, other) + block;
            first = false;
        } else if (other->kv) {
            room += model_kv_bytes(e->plan, kv_seq_length(other->kv));
        }
    }
    return first || wanted <= room; /* engine_submit has checked that it fits alone */
}

/* False: it has to wait for memory. */
static bool open_sequence(struct engine *e, struct sequence *s)
{
    struct err err;
    struct kv_match match;
    if (s->refused_at == e->changes)
        return false;
    if (!s->shifted)
        s->variant = model_variant(e->plan, s->n);
    uint64_t salt = kv_salt(s->request->job->request.salt, s->variant);
    int rc = kv_seq_open(e->config.cache, salt, s->tokens, s->n, sequence_reusable(s), &s->kv,
                         &match, &err);
    if (rc) {
        engine_fail(s->request, rc, err.text);
        return true;
    }
    if (!has_room(e, s)) {
        kv_seq_close(s->kv);
        s->kv = NULL;
        s->refused_at = e->changes;
        return false;
    }
    if (s->shifted)
        kv_seq_detach(s->kv); /* has nothing yet, so nothing can fail */
    s->miss = s->opened ? s->miss : match.miss;
    s->opened = true;
    return true;
}

void engine_admit(struct engine *e)
{
    engine_give_slots(e);
    for (int i = 0; i < e->n_running; i++)
        if (!e->running[i]->kv && !e->running[i]->aside && !open_sequence(e, e->running[i]))
            break; /* nobody overtakes: the first in line gets the room that comes free */
}

void engine_shift(struct engine *e, struct sequence *s)
{
    engine_park(e, s);
    sequence_shift(s, e->context);
}
