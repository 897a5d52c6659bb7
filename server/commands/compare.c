#include "compare.h"

#include "commands.h"

#include "http_client.h"
#include "server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE     600 /* seconds without a byte: a long prompt on a slow machine */
#define SHORT_PROMPT 16  /* tokens before an answer whose speed is measured */
#define MOST_USERS   256

enum side { OURS, THEIRS, SIDES };

struct compare {
    const struct settings *settings;
    struct session *session;
    struct http_address at[SIDES];
    char *model[SIDES]; /* names to ask for */
    uint64_t random;
    /* our server */
    struct server *server;
    struct engine *engine;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ready, ended;
    char address[64];
    struct err serve_err;
};

/* What a measurement asks each user's server for, all at once. */
struct work {
    const char *kind;
    int prompt, answer; /* tokens */
    bool reads;         /* prompt tokens count, else those of the answer */
    int users;
};

/* ---- one request ---- */

struct ask {
    const struct compare *c;
    enum side side;
    const struct work *work;
    const char *prompt;
    double tokens; /* that count */
    pthread_t thread;
    bool started;
    int rc;
    struct err err;
};

static const char *side_name(const struct compare *c, enum side side)
{
    return side == OURS ? "our own server" : c->settings->compare;
}

/* The object that a request is answered with; *status 200. */
static int ask_json(const struct compare *c, enum side side, const struct http_request *q,
                    json_t **out, struct err *err)
{
    struct strbuf raw = {0};
    struct http_answer answer;
    int rc = http_ask(&c->at[side], q, &raw, &answer, err);
    if (rc == 0 && answer.status != 200)
        rc = err_set(err, ERR_IO, "its status was %d: %.*s", answer.status,
                     (int)(answer.bytes < 300 ? answer.bytes : 300), answer.body);
    if (rc == 0 && !(*out = json_loadb(answer.body, answer.bytes, JSON_ALLOW_NUL, NULL)))
        rc = err_set(err, ERR_FORMAT, "its answer is not JSON");
    strbuf_finish(&raw);
    if (rc)
        err_prefix(err, "cannot ask %s for %s", side_name(c, side), q->path);
    return rc;
}

static char *request_body(const struct ask *a)
{
    json_t *body = json_pack("{s:s, s:i, s:i, s:b, s:b}", "prompt", a->prompt, "max_tokens",
                             a->work->answer, "temperature", 0, "ignore_eos", 1, "stream", 0);
    if (body && a->c->model[a->side])
        json_object_set_new(body, "model", json_string(a->c->model[a->side]));
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

static int count_tokens(struct ask *a, const json_t *answer)
{
    const json_t *usage = json_object_get(answer, "usage");
    const char *key = a->work->reads ? "prompt_tokens" : "completion_tokens";
    const json_t *n = json_object_get(usage, key);
    if (!json_is_integer(n) || json_integer_value(n) <= 0)
        return err_set(&a->err, ERR_FORMAT, "%s does not say usage.%s in its answer",
                       side_name(a->c, a->side), key);
    a->tokens = (double)json_integer_value(n);
    return 0;
}

static void *ask_main(void *arg)
{
    struct ask *a = arg;
    json_t *answer = NULL;
    char *body = request_body(a);
    const struct http_request q = {"/v1/completions", body, PATIENCE};
    a->rc = body ? ask_json(a->c, a->side, &q, &answer, &a->err)
                 : err_set(&a->err, ERR_NOMEM, "no memory for a request");
    if (a->rc == 0)
        a->rc = count_tokens(a, answer);
    json_decref(answer);
    free(body);
    return NULL;
}

/* ---- prompts ---- */

static const char *draw_word(struct compare *c)
{
    static const char *const words[] = {
        "time",  "river", "house", "garden", "summer", "letter", "window",  "mother",
        "table", "story", "music", "winter", "market", "forest", "bridge",  "silver",
        "north", "small", "bring", "under",  "answer", "carry",  "morning", "paper",
        "stone", "water", "young", "follow", "doctor", "island", "number",  "simple",
    };
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return words[(c->random >> 33) % (sizeof words / sizeof *words)];
}

static int token_count(const struct compare *c, const struct strbuf *text)
{
    struct tok_ids ids = {0};
    const struct tok_options plain = {.add_bos = true};
    struct err err;
    int n = tok_encode(model_tokenizer(c->session->model), text->data, text->len, &plain, &ids,
                       &err)
                ? -1
                : ids.n;
    free(ids.ids);
    return n;
}

/* Words without sense, unlike those of any other prompt, of `tokens` tokens or a few more. */
static char *make_prompt(struct compare *c, int tokens)
{
    struct strbuf text = {0};
    for (int have = 0, missing; (missing = tokens - have) > 0;) {
        int words = missing / 4 + 1;
        for (int i = 0; i < words; i++)
            strbuf_addf(&text, "%s%s", text.len ? " " : "", draw_word(c));
        have = text.failed ? -1 : token_count(c, &text);
        if (have < 0)
            break;
    }
    return strbuf_take(&text);
}

/* ---- measuring ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* All users at once; *rate: tokens a second. */
static int ask_all(struct compare *c, enum side side, const struct work *w, char **prompts,
                   double *rate, struct err *err)
{
    struct ask *asks = calloc((size_t)w->users, sizeof *asks);
    double start = now(), tokens = 0;
    int rc = asks ? 0 : err_set(err, ERR_NOMEM, "no memory for %d users", w->users);
    for (int i = 0; i < w->users && rc == 0; i++) {
        asks[i] = (struct ask){.c = c, .side = side, .work = w, .prompt = prompts[i]};
        if (pthread_create(&asks[i].thread, NULL, ask_main, &asks[i]))
            rc = err_set(err, ERR_IO, "cannot start a thread for user %d", i + 1);
        else
            asks[i].started = true;
    }
    for (int i = 0; asks && i < w->users && asks[i].started; i++) {
        pthread_join(asks[i].thread, NULL);
        tokens += asks[i].tokens;
        if (rc == 0 && asks[i].rc) {
            rc = asks[i].rc;
            *err = asks[i].err;
        }
    }
    *rate = tokens / (now() - start);
    free(asks);
    return rc;
}

/* Both sides, with the same prompts; who goes first changes. */
static int run_round(struct compare *c, const struct work *w, int round, double rates[SIDES],
                     struct err *err)
{
    char *prompts[MOST_USERS] = {0};
    int rc = 0;
    for (int i = 0; i < w->users && rc == 0; i++)
        if (!(prompts[i] = make_prompt(c, w->prompt)))
            rc = err_set(err, ERR_NOMEM, "no memory for a prompt of %d tokens", w->prompt);
    for (int i = 0; i < SIDES && rc == 0; i++) {
        enum side side = (enum side)((i + round) % SIDES);
        rc = ask_all(c, side, w, prompts, &rates[side], err);
    }
    for (int i = 0; i < w->users; i++)
        free(prompts[i]);
    return rc;
}

static int compare_rates(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const struct compare *c, const struct work *w, const double medians[SIDES],
                   json_t *rows)
{
    double ratio = medians[THEIRS] > 0 ? medians[OURS] / medians[THEIRS] : 0;
    if (c->settings->json) {
        json_array_append_new(rows, json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f}", "kind",
                                              w->kind, "prompt", w->prompt, "answer", w->answer,
                                              "users", w->users, "tokens_per_second", medians[OURS],
                                              "theirs", medians[THEIRS], "ratio", ratio));
        return;
    }
    printf("%-8s %8d %8d %6d %12.1f %12.1f %8.2f\n", w->kind, w->prompt, w->answer, w->users,
           medians[OURS], medians[THEIRS], ratio);
    fflush(stdout);
}

static int measure(struct compare *c, const struct work *w, json_t *rows, struct err *err)
{
    int runs = c->settings->repeat, rc = 0;
    double medians[SIDES] = {0};
    double *rates = calloc((size_t)runs * SIDES, sizeof *rates);
    if (!rates)
        return err_set(err, ERR_NOMEM, "no memory for %d runs", runs);
    for (int i = 0; i < runs && rc == 0; i++) {
        double pair[SIDES];
        rc = run_round(c, w, i, pair, err);
        for (int side = 0; side < SIDES && rc == 0; side++)
            rates[side * runs + i] = pair[side];
    }
    for (int side = 0; side < SIDES; side++) {
        qsort(rates + side * runs, (size_t)runs, sizeof *rates, compare_rates);
        medians[side] = rates[side * runs + runs / 2];
    }
    if (rc == 0)
        report(c, w, medians, rows);
    free(rates);
    return rc;
}

/* Prompts with one token of answer, answers to short prompts, and both. */
static int measure_sizes(struct compare *c, int prompt, int answer, int users, json_t *rows,
                         struct err *err)
{
    const struct work works[] = {
        {"prefill", prompt, 1, true, users},
        {"decode", SHORT_PROMPT, answer, false, users},
        {"both", prompt, answer, false, users},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof works / sizeof *works && rc == 0; i++)
        if (works[i].prompt && works[i].answer)
            rc = measure(c, &works[i], rows, err);
    return rc;
}

static int measure_all(struct compare *c, json_t *rows, struct err *err)
{
    const struct settings *s = c->settings;
    const struct work warm_up = {"decode", SHORT_PROMPT, 4, false, 1};
    double ignored[SIDES];
    int rc = run_round(c, &warm_up, 0, ignored, err);
    for (int u = 0; u < s->compare_users.n && rc == 0; u++)
        for (int p = 0; p < s->prompt_sizes.n && rc == 0; p++)
            for (int g = 0; g < s->generate_sizes.n && rc == 0; g++)
                rc = measure_sizes(c, s->prompt_sizes.items[p], s->generate_sizes.items[g],
                                   s->compare_users.items[u], rows, err);
    return rc;
}

/* ---- our server ---- */

static void tell_ready(void *arg, const char *address)
{
    struct compare *c = arg;
    pthread_mutex_lock(&c->lock);
    snprintf(c->address, sizeof c->address, "%s", address);
    c->ready = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

static void *serve_main(void *arg)
{
    struct compare *c = arg;
    server_run(c->server, c->engine, &c->serve_err);
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int serve_create(struct compare *c, struct err *err)
{
    struct server_config front = server_config_default;
    front.model = c->session->model;
    front.version = PROGRAM_VERSION;
    front.host = "127.0.0.1";
    front.port = 0;
    front.page = false;
    front.most_connections = c->session->budget.connections;
    front.body_bytes = c->session->budget.body;
    front.room_bytes = c->session->budget.requests;
    front.ready = tell_ready;
    front.ready_arg = c;
    int rc = server_create(&front, &c->server, err);
    if (rc)
        return rc;
    const struct engine_config config = {
        .model = c->session->model,
        .cache = c->session->cache,
        .pool = c->session->pool,
        .most_sequences = c->settings->parallel,
        .most_queued = MOST_USERS,
        .itl_target_ms = 100,
        .nice = c->session->nice,
        .notify = server_notify,
        .notify_arg = c->server,
    };
    return engine_create(&config, &c->engine, err);
}

static int serve_start(struct compare *c, struct err *err)
{
    if (pthread_create(&c->thread, NULL, serve_main, c))
        return err_set(err, ERR_IO, "cannot start a thread for the server");
    pthread_mutex_lock(&c->lock);
    while (!c->ready && !c->ended)
        pthread_cond_wait(&c->wake, &c->lock);
    bool ready = c->ready;
    pthread_mutex_unlock(&c->lock);
    if (ready)
        return http_address_parse(c->address, &c->at[OURS], err);
    pthread_join(c->thread, NULL);
    *err = c->serve_err;
    return err->code;
}

/* A server ends as ever: by a signal. */
static void serve_stop(struct compare *c)
{
    kill(getpid(), SIGTERM);
    pthread_join(c->thread, NULL);
}

/* ---- life ---- */

/* What to call its model: servers with several want to be told. */
static int ask_model(struct compare *c, struct err *err)
{
    json_t *list = NULL;
    const struct http_request q = {"/v1/models", NULL, PATIENCE};
    int rc = ask_json(c, THEIRS, &q, &list, err);
    if (rc)
        return rc;
    const char *id = json_string_value(
        json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
    c->model[THEIRS] = id ? strdup(id) : NULL;
    json_decref(list);
    return 0;
}

int compare_create(const struct settings *settings, struct compare **out, struct err *err)
{
    struct compare *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory to compare");
    c->settings = settings;
    c->random = (uint64_t)time(NULL); /* nothing in its cache from an earlier run */
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    int rc = http_address_parse(settings->compare, &c->at[THEIRS], err);
    if (rc == 0)
        rc = ask_model(c, err);
    if (rc) {
        compare_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

int compare_run(struct compare *c, struct session *session, json_t *rows, struct err *err)
{
    c->session = session;
    int rc = serve_create(c, err);
    if (rc == 0)
        rc = serve_start(c, err);
    if (rc)
        return rc;
    if (!c->settings->json)
        printf("%s here, and %s; tokens a second, medians of %d rounds\n%-8s %8s %8s %6s %12s "
               "%12s %8s\n",
               model_plan(session->model)->name, c->settings->compare, c->settings->repeat, "work",
               "prompt", "answer", "users", "ours", "theirs", "ratio");
    rc = measure_all(c, rows, err);
    serve_stop(c);
    return rc;
}

void compare_destroy(struct compare *c)
{
    if (!c)
        return;
    engine_destroy(c->engine);
    server_destroy(c->server);
    for (int i = 0; i < SIDES; i++)
        free(c->model[i]);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->wake);
    free(c);
}
