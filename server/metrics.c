#include "metrics.h"

#include "generation.h"
#include "json_out.h"
#include "room.h"
#include "routes.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- counting ---- */

enum bounds_id {
    BOUNDS_TTFT,
    BOUNDS_GAPS,
    BOUNDS_LONG,
    BOUNDS_TOKENS,
    BOUNDS_SMALL,
    BOUNDS_HTTP,
    BOUNDS_FINE,
    BOUNDS_STEPS,
};

/* Each list ends with 0. */
static const double bounds[][BUCKETS_BOUNDS] = {
    [BOUNDS_TTFT] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560},
    [BOUNDS_GAPS] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
                     80},
    [BOUNDS_LONG] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680},
    [BOUNDS_TOKENS] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000,
                       100000, 200000, 500000, 1000000},
    [BOUNDS_SMALL] = {1, 2, 5, 10, 20},
    [BOUNDS_HTTP] = {.1, .5, 1},
    [BOUNDS_STEPS] = ENGINE_STEP_BOUNDS,
    [BOUNDS_FINE] = {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                     2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60},
};

static const struct {
    const char *name, *help;
    enum bounds_id bounds;
} histograms[] = {
#define HISTOGRAM(id, name, help, bounds) {name, help, BOUNDS_##bounds},
#include "metrics.def"
#undef HISTOGRAM
};

static void observe_id(struct metrics *m, enum metrics_histogram_id id, double value)
{
    buckets_add(&m->histograms[id], bounds[histograms[id].bounds], value, 1);
}

void metrics_gap(struct metrics *m, double seconds, int n)
{
    buckets_add(&m->histograms[METRICS_ITL], bounds[BOUNDS_GAPS], seconds, (uint64_t)n);
}

double metrics_mean_answer(const struct metrics *m)
{
    return m->answers ? (double)m->answer_tokens / (double)m->answers : 0;
}

void metrics_exchange(struct metrics *m, const struct exchange *ex)
{
    struct metrics_route *r = &m->routes[ex->route ? ex->route - routes : routes_count];
    double seconds = (double)(front_now_ns() - ex->began) * 1e-9;
    int class = ex->status / 100 - 1;
    if (class < 0 || class > 4) /* the client left before there was an answer */
        return;
    r->by_class[class]++;
    r->bytes_in += ex->body_seen;
    r->bytes_out += ex->bytes_out;
    buckets_add(&r->seconds, bounds[BOUNDS_HTTP], seconds, 1);
    buckets_add(&m->http_seconds, bounds[BOUNDS_FINE], seconds, 1);
}

static double seconds_between(int64_t from, int64_t to)
{
    return from && to > from ? (double)(to - from) * 1e-9 : 0;
}

static void observe_times(struct metrics *m, const struct generation *g)
{
    const struct job_times *t = &g->job->times;
    int64_t began = g->exchange ? g->exchange->began : g->submitted_ns;
    double decode = seconds_between(t->first_token, t->finished);
    if (g->first_ns)
        observe_id(m, METRICS_TTFT, seconds_between(began, g->first_ns));
    observe_id(m, METRICS_E2E, seconds_between(began, front_now_ns()));
    observe_id(m, METRICS_QUEUE, seconds_between(t->submitted, t->started));
    observe_id(m, METRICS_PREFILL, seconds_between(t->started, t->first_token));
    observe_id(m, METRICS_DECODE, decode);
    observe_id(m, METRICS_INFERENCE, seconds_between(t->started, t->finished));
    if (g->n_choices == 1 && g->completion_tokens > 1) {
        observe_id(m, METRICS_TPOT, decode / (g->completion_tokens - 1));
        observe_id(m, METRICS_TPOT_OLD, decode / (g->completion_tokens - 1));
    }
}

void metrics_generation(struct metrics *m, const struct generation *g)
{
    int64_t cached = 0;
    int longest = 0;
    for (int i = 0; i < g->job->request.n_prompts; i++)
        cached += g->prompts[i].cached_tokens;
    for (int i = 0; i < g->n_choices; i++)
        if (g->choices[i].completion_tokens > longest)
            longest = g->choices[i].completion_tokens;
    m->answers++;
    m->answer_tokens += (uint64_t)g->completion_tokens;
    observe_times(m, g);
    observe_id(m, METRICS_PROMPT, (double)g->options.prompt_tokens);
    observe_id(m, METRICS_ANSWER, g->completion_tokens);
    observe_id(m, METRICS_LONGEST, longest);
    observe_id(m, METRICS_COMPUTED, (double)(g->options.prompt_tokens - cached));
    observe_id(m, METRICS_PARAM_N, g->options.candidates_wanted);
    if (g->options.asked_tokens >= 0)
        observe_id(m, METRICS_PARAM_MAX, (double)g->options.asked_tokens);
}

/* ---- rendering ---- */

struct metrics_view {
    struct server *server;
    struct engine_stats engine;
    struct strbuf labels;           /* model_name="...",engine="0" */
    double lengths[BUCKETS_BOUNDS]; /* BOUNDS_TOKENS up to the context */
};

static void add_head(struct strbuf *out, const char *kind, const char *name, const char *help)
{
    strbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void add_sample(struct strbuf *out, const char *name, const char *labels, double value)
{
    strbuf_addf(out, labels && *labels ? "%s{%s} " : "%s%s ", name, labels ? labels : "");
    json_out_double(out, value);
    strbuf_addc(out, '\n');
}

static void add_one(struct strbuf *out, const char *kind, const char *name, const char *help,
                    const char *labels, double value)
{
    add_head(out, kind, name, help);
    add_sample(out, name, labels, value);
}

static void add_histogram(struct strbuf *out, const char *name, const char *labels,
                          const struct buckets *h, const double *le)
{
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    uint64_t sum = 0;
    for (int i = 0; le[i] != 0; i++) {
        sum += h->counts[i];
        strbuf_addf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, le[i],
                    (unsigned long long)sum);
    }
    strbuf_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma,
                (unsigned long long)h->count);
    strbuf_addf(out, "%s_count%s%s%s %llu\n%s_sum%s%s%s ", name, open, labels, close,
                (unsigned long long)h->count, name, open, labels, close);
    json_out_double(out, h->sum);
    strbuf_addc(out, '\n');
}

static void add_model_metrics(const struct metrics_view *v, struct strbuf *out)
{
    const char *labels = v->labels.data;
#define GAUGE(name, help, value)   add_one(out, "gauge", name, help, labels, (double)(value));
#define COUNTER(name, help, value) add_one(out, "counter", name, help, labels, (double)(value));
#include "metrics.def"
#undef GAUGE
#undef COUNTER
    for (int i = 0; i < METRICS_HISTOGRAMS; i++) {
        const double *le = histograms[i].bounds == BOUNDS_TOKENS ? v->lengths
                                                                 : bounds[histograms[i].bounds];
        add_head(out, "histogram", histograms[i].name, histograms[i].help);
        add_histogram(out, histograms[i].name, labels, &v->server->metrics.histograms[i], le);
    }
}

static void add_engine_histograms(const struct metrics_view *v, struct strbuf *out)
{
    const struct {
        const char *name, *help;
        const struct buckets *h;
        const double *le;
    } rows[] = {
        {"vllm:iteration_tokens_total", "Tokens of a step.", &v->engine.step_sizes,
         bounds[BOUNDS_STEPS]},
        {"vllm:kv_block_lifetime_seconds", "From the taking of a block to its eviction.",
         &v->engine.kv.ages.lifetime, kv_age_bounds},
        {"vllm:kv_block_idle_before_evict_seconds", "From its last use to its eviction.",
         &v->engine.kv.ages.idle, kv_age_bounds},
        {"vllm:kv_block_reuse_gap_seconds", "Between two uses, while it lay in the cache.",
         &v->engine.kv.ages.reuse, kv_age_bounds},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        add_head(out, "histogram", rows[i].name, rows[i].help);
        add_histogram(out, rows[i].name, v->labels.data, rows[i].h, rows[i].le);
    }
}

static void add_labelled(const struct metrics_view *v, struct strbuf *out, const char *name,
                         const char *label, const char *label_value, double value)
{
    struct strbuf labels = {0};
    strbuf_addf(&labels, "%s,%s=\"%s\"", v->labels.data, label, label_value);
    if (!labels.failed)
        add_sample(out, name, labels.data, value);
    strbuf_finish(&labels);
}

static void add_split_metrics(const struct metrics_view *v, struct strbuf *out)
{
    static const char *const reasons[] = {
        [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "abort"};
    const char *name = "vllm:request_success_total";
    add_head(out, "counter", name, "Requests by how they ended.");
    for (int i = FINISH_STOP; i <= FINISH_CANCELLED; i++)
        add_labelled(v, out, name, "finished_reason", reasons[i], (double)v->engine.finished[i]);
    name = "vllm:num_requests_waiting_by_reason";
    add_head(out, "gauge", name, "Requests that wait, by what they wait for.");
    add_labelled(v, out, name, "reason", "capacity", v->engine.waiting);
    add_labelled(v, out, name, "reason", "deferred", 0);
    name = "vllm:prompt_tokens_by_source_total";
    add_head(out, "counter", name, "Prompt tokens by where their keys and values came from.");
    add_labelled(v, out, name, "source", "local_compute", (double)v->engine.prompt_computed_tokens);
    add_labelled(v, out, name, "source", "local_cache_hit", (double)v->engine.prompt_cached_tokens);
    name = "ropewalk:prefix_cache_misses_total";
    add_head(out, "counter", name, "Prompts by the reason why no more of them was cached.");
    for (int i = KV_MISS_NONE + 1; i < KV_MISS_COUNT; i++)
        add_labelled(v, out, name, "reason", kv_miss_name((enum kv_miss)i),
                     (double)v->engine.misses[i]);
    name = "vllm:admission_rejections_total";
    add_head(out, "counter", name, "Requests refused before the engine.");
    add_labelled(v, out, name, "reason", "queue_full", (double)v->server->metrics.rejected_full);
    add_labelled(v, out, name, "reason", "memory", (double)atomic_load(&v->server->room_refused));
}

static void add_facts(const struct metrics_view *v, struct strbuf *out)
{
    char blocks[64];
    const char *name = "vllm:cache_config_info";
    const struct kv_config *kv = &model_plan(v->server->config->model)->kv;
    size_t block = 0;
    for (int i = 0; i < kv->groups; i++)
        block += kv->group[i].block_bytes;
    snprintf(blocks, sizeof blocks, "%d\",num_gpu_blocks=\"%zu", KV_BLOCK_TOKENS,
             block ? v->engine.kv.block_bytes_total / block : 0);
    add_head(out, "gauge", name, "Shape of the KV cache.");
    add_labelled(v, out, name, "block_size", blocks, 1);
    name = "vllm:lora_requests_info";
    add_head(out, "gauge", name, "Adapters in use, at a Unix time.");
    add_labelled(v, out, name, "max_lora",
                 "0\",running_lora_adapters=\"\",waiting_lora_adapters=\"", (double)time(NULL));
}

/* Free ones are counted for each group as if the others wanted none of them. */
static void add_blocks(const struct metrics_view *v, struct strbuf *out)
{
    static const char *const states[] = {"free", "held", "shared", "cached"};
    const char *name = "ropewalk:kv_blocks";
    const struct kv_config *kv = &model_plan(v->server->config->model)->kv;
    const struct kv_stats *st = &v->engine.kv;
    add_head(out, "gauge", name, "Blocks of the KV cache by layer group and state.");
    for (int g = 0; g < kv->groups; g++) {
        const size_t blocks[] = {st->blocks_free[g], st->blocks_held[g], st->blocks_shared[g],
                                 st->blocks_cached[g]};
        char labels[80];
        for (int i = 0; i < 4; i++) {
            snprintf(labels, sizeof labels, "%s\",state=\"%s", kv->group[g].name, states[i]);
            add_labelled(v, out, name, "group", labels, (double)blocks[i]);
        }
    }
}

/* ---- HTTP ---- */

static void route_labels(int i, char *out, size_t bytes)
{
    snprintf(out, bytes, "handler=\"%s\",method=\"%s\"", i < routes_count ? routes[i].path : "none",
             i < routes_count ? routes[i].method : "any");
}

static void add_http_metrics(const struct server *s, struct strbuf *out)
{
    const struct metrics *m = &s->metrics;
    char labels[160], with_class[192];
    add_head(out, "counter", "http_requests_total", "Requests by route and status.");
    for (int i = 0; i <= routes_count; i++)
        for (int class = 0; class < 5; class ++) {
            if (!m->routes[i].by_class[class])
                continue;
            route_labels(i, labels, sizeof labels);
            snprintf(with_class, sizeof with_class, "%s,status=\"%dxx\"", labels, class + 1);
            add_sample(out, "http_requests_total", with_class,
                       (double)m->routes[i].by_class[class]);
        }
    add_head(out, "histogram", "http_request_duration_seconds", "Time to answer, by route.");
    for (int i = 0; i <= routes_count; i++) {
        route_labels(i, labels, sizeof labels);
        if (m->routes[i].seconds.count)
            add_histogram(out, "http_request_duration_seconds", labels, &m->routes[i].seconds,
                          bounds[BOUNDS_HTTP]);
    }
    add_head(out, "histogram", "http_request_duration_highr_seconds", "Time to answer, finely.");
    add_histogram(out, "http_request_duration_highr_seconds", "", &m->http_seconds,
                  bounds[BOUNDS_FINE]);
}

static void add_http_sizes(const struct server *s, struct strbuf *out)
{
    static const char *const names[] = {"http_request_size_bytes", "http_response_size_bytes"};
    char labels[160], name[64];
    for (int way = 0; way < 2; way++) {
        add_head(out, "summary", names[way],
                 way ? "Bytes of answers." : "Bytes of request bodies.");
        for (int i = 0; i <= routes_count; i++) {
            const struct metrics_route *r = &s->metrics.routes[i];
            if (!r->seconds.count)
                continue;
            route_labels(i, labels, sizeof labels);
            snprintf(name, sizeof name, "%s_count", names[way]);
            add_sample(out, name, labels, (double)r->seconds.count);
            snprintf(name, sizeof name, "%s_sum", names[way]);
            add_sample(out, name, labels, (double)(way ? r->bytes_out : r->bytes_in));
        }
    }
}

/* ---- the process ---- */

static int count_open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", ".." and the directory itself */
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return d ? n : 0;
}

static void memory_pages(unsigned long long *all, unsigned long long *resident)
{
    FILE *f = fopen("/proc/self/statm", "r");
    *all = *resident = 0;
    if (f && fscanf(f, "%llu %llu", all, resident) != 2)
        *all = *resident = 0;
    if (f)
        fclose(f);
}

static void add_process_metrics(const struct server *s, struct strbuf *out)
{
    struct rlimit files = {0};
    struct timespec cpu = {0};
    unsigned long long all, resident;
    double page = (double)sysconf(_SC_PAGESIZE);
    getrlimit(RLIMIT_NOFILE, &files);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    memory_pages(&all, &resident);
    add_one(out, "counter", "process_cpu_seconds_total", "User and system time.", "",
            (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
    add_one(out, "gauge", "process_resident_memory_bytes", "Resident memory.", "",
            (double)resident * page);
    add_one(out, "gauge", "process_virtual_memory_bytes", "Virtual memory.", "",
            (double)all * page);
    add_one(out, "gauge", "process_open_fds", "Open file descriptors.", "", count_open_files());
    add_one(out, "gauge", "process_max_fds", "Most file descriptors.", "", (double)files.rlim_cur);
    add_one(out, "gauge", "process_start_time_seconds", "Since 1970.", "", (double)s->created);
}

void metrics_render(struct server *s, struct strbuf *out)
{
    struct metrics_view v = {.server = s};
    engine_stats(s->engine, &v.engine);
    for (int i = 0;
         bounds[BOUNDS_TOKENS][i] != 0 && bounds[BOUNDS_TOKENS][i] <= engine_context(s->engine);
         i++)
        v.lengths[i] = bounds[BOUNDS_TOKENS][i];
    strbuf_adds(&v.labels, "model_name=");
    json_out_text(&v.labels, front_model_name(s));
    strbuf_adds(&v.labels, ",engine=\"0\"");
    if (v.labels.failed) {
        out->failed = true;
    } else {
        add_model_metrics(&v, out);
        add_engine_histograms(&v, out);
        add_split_metrics(&v, out);
        add_blocks(&v, out);
        add_facts(&v, out);
        add_http_metrics(s, out);
        add_http_sizes(s, out);
        add_process_metrics(s, out);
    }
    strbuf_finish(&v.labels);
}
