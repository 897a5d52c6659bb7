#include "commands.h"
#include "compare.h"
#include "pool.h"
#include "session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* `ropewalk bench FILE`: how fast the engine's two kinds of work are here, without HTTP. Prefill is
 * a prompt through the decoder in chunks of --batch-tokens and the logits of its last token; decode
 * is one token at a time for each of N sequences, logits and choice included, at a depth of
 * context. */

struct bench {
    const struct settings *settings;
    struct session session;
    float *logits;
    struct sampler *sampler; /* the most likely token */
    uint64_t random;
    json_t *rows; /* for --json */
    struct compare *compare;
};

struct measurement {
    const char *kind; /* "prefill" or "decode" */
    int tokens, depth, sequences;
};

/* What came of its runs. Steps: of a decode, how long each took. */
struct results {
    double *rates, *steps; /* tokens a second; seconds */
    int n_rates, n_steps;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int32_t draw_token(struct bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((b->random >> 33) % (uint64_t)model_plan(b->session.model)->vocabulary);
}

/* A salt of its own for every sequence: nothing comes from the cache. */
static struct kv_seq *open_seq(struct bench *b, struct err *err)
{
    struct kv_seq *s = NULL;
    struct kv_match match;
    int32_t token = draw_token(b);
    kv_seq_open(b->session.cache, ++b->random, &token, 1, 0, &s, &match, err);
    return s;
}

#define ANY_VARIANT 0 /* of positions: all cost the same */

static int append(struct bench *b, struct kv_seq *s, int n, struct err *err)
{
    int batch_tokens = model_plan(b->session.model)->batch_tokens;
    int32_t *tokens = malloc((size_t)batch_tokens * sizeof *tokens);
    if (!tokens)
        return err_set(err, ERR_NOMEM, "no memory for a prompt");
    int rc = 0;
    while (n > 0 && rc == 0) {
        int m = n < batch_tokens ? n : batch_tokens, at = kv_seq_length(s);
        for (int i = 0; i < m; i++)
            tokens[i] = draw_token(b);
        rc = kv_seq_extend(s, tokens, m);
        if (rc) {
            err_set(
                err, rc,
                "the memory for keys and values is too small for this measurement; raise --memory");
            break;
        }
        const struct batch_item item = {s, tokens, m, at, ANY_VARIANT, .wanted = n == m};
        const struct batch batch = {.items = &item, .n_items = 1};
        model_step(b->session.model, &batch);
        kv_seq_commit(s, at + m);
        n -= m;
        if (n == 0)
            model_logits(b->session.model, (int[]){m - 1}, 1, b->logits);
    }
    free(tokens);
    return rc;
}

struct picking {
    const struct bench *b;
    int32_t *tokens;
};

/* A sampler that only takes the likeliest remembers nothing: all workers share it. */
static void pick_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    const struct picking *p = arg;
    int vocabulary = model_plan(p->b->session.model)->vocabulary;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        p->tokens[i] = sampler_pick(p->b->sampler, p->b->logits + (size_t)i * (size_t)vocabulary,
                                    vocabulary);
}

/* One token for each sequence, greedily chosen. */
static int decode_step(struct bench *b, struct kv_seq *const *seqs, int32_t *tokens, int n,
                       struct err *err)
{
    struct batch_item items[256];
    for (int i = 0; i < n; i++) {
        items[i] = (struct batch_item){seqs[i],     &tokens[i], 1, kv_seq_length(seqs[i]),
                                       ANY_VARIANT, .wanted = 1};
        int rc = kv_seq_extend(seqs[i], &tokens[i], 1);
        if (rc)
            return err_set(
                err, rc,
                "the memory for keys and values is too small for this measurement; raise --memory");
    }
    const struct batch batch = {.items = items, .n_items = n};
    model_step(b->session.model, &batch);
    for (int i = 0; i < n; i++)
        kv_seq_commit(seqs[i], items[i].position + 1);
    for (int at = 0; at < n; at += MODEL_LOGIT_ROWS) {
        int rows[MODEL_LOGIT_ROWS], m = n - at < MODEL_LOGIT_ROWS ? n - at : MODEL_LOGIT_ROWS;
        for (int i = 0; i < m; i++)
            rows[i] = at + i;
        model_logits(b->session.model, rows, m, b->logits);
        pool_run(b->session.pool, pick_tokens, &(struct picking){b, tokens + at}, m, 1);
    }
    return 0;
}

/* A run adds its rate, and its steps. */
static int measure_prefill(struct bench *b, const struct measurement *m, struct results *r,
                           struct err *err)
{
    struct kv_seq *s = open_seq(b, err);
    if (!s)
        return ERR_NOMEM;
    int rc = append(b, s, m->depth, err);
    double start = now();
    if (rc == 0)
        rc = append(b, s, m->tokens, err);
    r->rates[r->n_rates++] = m->tokens / (now() - start);
    kv_seq_close(s);
    return rc;
}

static int measure_decode(struct bench *b, const struct measurement *m, struct results *r,
                          struct err *err)
{
    struct kv_seq *seqs[256] = {0};
    int32_t tokens[256];
    int rc = 0;
    for (int i = 0; i < m->sequences && rc == 0; i++) {
        seqs[i] = open_seq(b, err);
        tokens[i] = draw_token(b);
        rc = seqs[i] ? append(b, seqs[i], m->depth, err) : ERR_NOMEM;
    }
    double start = now(), last = start;
    for (int i = 0; i < m->tokens && rc == 0; i++) {
        rc = decode_step(b, seqs, tokens, m->sequences, err);
        double at = now();
        r->steps[r->n_steps++] = at - last;
        last = at;
    }
    r->rates[r->n_rates++] = (double)m->tokens * m->sequences / (last - start);
    for (int i = 0; i < m->sequences; i++)
        kv_seq_close(seqs[i]);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted numbers; 0 when there are none. */
static double quantile(const double *x, int n, double q)
{
    return n ? x[(int)(q * (n - 1) + 0.5)] : 0;
}

static void report(struct bench *b, const struct measurement *m, const struct results *r)
{
    double median = quantile(r->rates, r->n_rates, 0.5), least = r->rates[0];
    double most = r->rates[r->n_rates - 1];
    double step = 1e3 * quantile(r->steps, r->n_steps, 0.5);
    double late = 1e3 * quantile(r->steps, r->n_steps, 0.99);
    if (b->settings->json) {
        json_array_append_new(
            b->rows,
            json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "kind", m->kind, "tokens",
                      m->tokens, "depth", m->depth, "sequences", m->sequences, "tokens_per_second",
                      median, "least", least, "most", most, "step_ms", step, "step_ms_p99", late));
        return;
    }
    printf("%-8s %8d %8d %10d %12.1f %10.1f %10.1f", m->kind, m->tokens, m->depth, m->sequences,
           median, least, most);
    if (r->n_steps)
        printf(" %9.2f %9.2f", step, late);
    putchar('\n');
    fflush(stdout);
}

static int measure(struct bench *b, const struct measurement *m, struct err *err)
{
    int runs = b->settings->repeat, rc = 0;
    bool prefill = !strcmp(m->kind, "prefill");
    struct results r = {
        .rates = calloc((size_t)runs, sizeof *r.rates),
        .steps = calloc((size_t)runs * (size_t)m->tokens, sizeof *r.steps),
    };
    if (!r.rates || !r.steps)
        rc = err_set(err, ERR_NOMEM, "no memory for %d runs", runs);
    for (int i = 0; i < runs && rc == 0; i++)
        rc = (prefill ? measure_prefill : measure_decode)(b, m, &r, err);
    if (rc == 0) {
        qsort(r.rates, (size_t)r.n_rates, sizeof *r.rates, compare);
        qsort(r.steps, (size_t)r.n_steps, sizeof *r.steps, compare);
        report(b, m, &r);
    }
    free(r.rates);
    free(r.steps);
    return rc;
}

static int warm_up(struct bench *b, struct err *err)
{
    double rate;
    struct results ignored = {.rates = &rate};
    return measure_prefill(b, &(struct measurement){"prefill", 16, 0, 1}, &ignored, err);
}

static int measure_all(struct bench *b, struct err *err)
{
    const struct settings *s = b->settings;
    int rc = warm_up(b, err);
    for (int d = 0; d < s->depths.n && rc == 0; d++) {
        for (int i = 0; i < s->prompt_sizes.n && rc == 0; i++)
            if (s->prompt_sizes.items[i])
                rc = measure(b,
                             &(struct measurement){"prefill", s->prompt_sizes.items[i],
                                                   s->depths.items[d], 1},
                             err);
        for (int n = 0; n < s->sequences.n && rc == 0; n++)
            for (int i = 0; i < s->generate_sizes.n && rc == 0; i++)
                if (s->generate_sizes.items[i])
                    rc = measure(b,
                                 &(struct measurement){"decode", s->generate_sizes.items[i],
                                                       s->depths.items[d], s->sequences.items[n]},
                                 err);
    }
    return rc;
}

/* ---- kernels ---- */

static double percent(double x, double of)
{
    return of > 0 ? 100 * x / of : 0;
}

static void keep_speed(void *arg, const struct model_speed *r)
{
    json_array_append_new(arg, json_pack("{s:s, s:i, s:f, s:f, s:f}", "format", r->format, "tokens",
                                         r->tokens, "weights", r->weights, "gops",
                                         r->operations * 1e-9, "gb_per_second", r->bytes * 1e-9));
}

static void print_speeds(const struct bench *b, const struct model_ceilings *best)
{
    size_t i;
    json_t *row;
    printf("%s, %d threads: at best %.0f GOP/s on registers, %.1f GB/s of weights read "
           "(a format whose matrices fit in the caches is read faster)\n%-8s %8s "
           "%10s %10s %6s %10s %6s\n",
           cpu_name(), b->session.threads, best->operations * 1e-9, best->bytes * 1e-9, "format",
           "tokens", "M weights", "GOP/s", "%", "GB/s", "%");
    json_array_foreach(b->rows, i, row)
    {
        double gops = json_real_value(json_object_get(row, "gops"));
        double gbs = json_real_value(json_object_get(row, "gb_per_second"));
        printf("%-8s %8d %10.1f %10.1f %6.0f %10.1f %6.0f\n",
               json_string_value(json_object_get(row, "format")),
               (int)json_integer_value(json_object_get(row, "tokens")),
               json_real_value(json_object_get(row, "weights")) * 1e-6, gops,
               percent(gops * 1e9, best->operations), gbs, percent(gbs * 1e9, best->bytes));
    }
}

static int measure_kernels(struct bench *b, struct err *err)
{
    struct model_ceilings best;
    int rc = model_measure(b->session.model, &best, keep_speed, b->rows, err);
    if (rc)
        return rc;
    if (!b->settings->json) {
        print_speeds(b, &best);
        return 0;
    }
    json_t *all = json_pack("{s:s, s:s, s:i, s:f, s:f, s:O}", "model",
                            model_plan(b->session.model)->name, "cpu", cpu_name(), "threads",
                            b->session.threads, "most_gops", best.operations * 1e-9,
                            "most_gb_per_second", best.bytes * 1e-9, "kernels", b->rows);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
    return 0;
}

/* ---- all ---- */

static void print_json(const struct bench *b)
{
    const struct settings *s = b->settings;
    json_t *all = json_pack("{s:s, s:s, s:i, s:s, s:s, s:O}", "model",
                            model_plan(b->session.model)->name, "cpu", cpu_name(), "threads",
                            b->session.threads, "kernels", s->kernels, "kv", s->kv, "rows",
                            b->rows);
    if (s->compare)
        json_object_set_new(all, "compared_with", json_string(s->compare));
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

static int measure_steps(struct bench *b, struct err *err)
{
    const struct model_plan *p = model_plan(b->session.model);
    b->logits = mem_alloc(MODEL_LOGIT_ROWS * (size_t)p->vocabulary, sizeof *b->logits);
    if (!b->logits)
        return err_set(err, ERR_NOMEM, "no memory for logits");
    struct sampler_params greedy = sampler_params_default;
    greedy.temperature = 0;
    int rc = sampler_create(&greedy, model_tokenizer(b->session.model), 0, &b->sampler, err);
    if (rc)
        return rc;
    if (!b->settings->json)
        printf("%s, %s, %d threads, kernels %s (%s), %d-bit activations, KV %s\n%-8s %8s %8s %10s "
               "%12s %10s %10s %9s %9s\n",
               p->name, p->architecture, b->session.threads, b->settings->kernels, cpu_name(),
               b->settings->activation_bits, b->settings->kv, "work", "tokens", "depth",
               "sequences", "median t/s", "least", "most", "step ms", "p99");
    return measure_all(b, err);
}

static int run(struct bench *b, struct err *err)
{
    const struct settings *s = b->settings;
    int rc = s->compare ? compare_create(s, &b->compare, err) : 0;
    if (rc == 0)
        rc = session_open(&b->session, s, err);
    if (rc == 0)
        rc = session_load(&b->session, 0, err);
    if (rc)
        return rc;
    if (s->kernels_only)
        return measure_kernels(b, err);
    rc = s->compare ? compare_run(b->compare, &b->session, b->rows, err) : measure_steps(b, err);
    if (rc == 0 && s->json)
        print_json(b);
    return rc;
}

int command_bench(const struct settings *s)
{
    struct err err;
    struct bench b = {.settings = s, .random = 1, .rows = json_array()};
    int rc = run(&b, &err);
    if (rc)
        fprintf(stderr, "ropewalk: %s\n", err.text);
    compare_destroy(b.compare);
    mem_free(b.logits);
    sampler_destroy(b.sampler);
    session_finish(&b.session);
    json_decref(b.rows);
    return rc != 0;
}
