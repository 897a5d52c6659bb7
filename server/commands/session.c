#include "session.h"

#include "log.h"
#include "mem.h"
#include "progress.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int read_file(const char *path, char **out, struct err *err)
{
    struct strbuf text = {0};
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        strbuf_add(&text, piece, n);
    bool broken = ferror(f);
    fclose(f);
    *out = strbuf_take(&text);
    if (broken || !*out)
        return err_set(err, ERR_IO, "cannot read %s", path);
    return 0;
}

static int open_model(struct session *s, const struct settings *settings, struct err *err)
{
    if (!settings->model)
        return err_set(err, ERR_ARG, "which model? Give the path of a GGUF file");
    int rc = settings->chat_template ? read_file(settings->chat_template, &s->chat_template, err)
                                     : 0;
    if (rc)
        return rc;
    bool keeps = settings->repack_cache && strcmp(settings->repack_cache, "off");
    const struct model_options options = {
        .path = settings->model,
        .window = settings->window,
        .kernels = settings->kernels,
        .kv = settings->kv,
        .context = settings->ctx,
        .batch_tokens = settings->batch_tokens,
        .activation_bits = settings->activation_bits,
        .threads = s->threads,
        .chat_template = s->chat_template,
        .repack_dir = keeps ? settings->repack_cache : NULL,
    };
    return model_open(&options, &s->model, err);
}

int session_plan(struct session *s, const struct settings *settings, struct err *err)
{
    *s = (struct session){.settings = settings};
    machine_read("", &s->machine);
    s->threads = settings->threads ? settings->threads : machine_threads(&s->machine);
    s->nice = settings->nice;
    int rc = open_model(s, settings, err);
    if (rc == 0)
        budget_make(&s->budget,
                    settings->memory ? settings->memory : machine_memory_budget(&s->machine),
                    model_plan(s->model), settings);
    return rc;
}

size_t session_least(const struct session *s)
{
    return budget_least(model_plan(s->model), s->settings);
}

bool session_fits(const struct session *s)
{
    return budget_fits(&s->budget, model_plan(s->model));
}

static int refuse(const struct session *s, struct err *err)
{
    const struct budget *b = &s->budget;
    struct budget_line lines[BUDGET_LINES];
    struct strbuf parts = {0};
    budget_lines(b, model_plan(s->model), lines);
    for (int i = 0; i < BUDGET_LINES; i++)
        if (lines[i].bytes != b->arena && lines[i].bytes != b->overhead)
            strbuf_addf(&parts, "%s %s, ", lines[i].name, size_text((double)lines[i].bytes).text);
    size_t least = session_least(s);
    err_set(err, ERR_LIMIT,
            "%s does not fit: it needs %s (%sat least %s for keys and values), and the memory "
            "budget is %s; raise --memory or lower --batch-tokens or --ctx",
            s->settings->model, size_text((double)least).text, parts.data ? parts.data : "",
            size_text((double)(least - budget_fixed(b))).text, size_text((double)b->total).text);
    strbuf_finish(&parts);
    return ERR_LIMIT;
}

int session_open(struct session *s, const struct settings *settings, struct err *err)
{
    int rc = session_plan(s, settings, err);
    if (rc || session_fits(s))
        return rc;
    return refuse(s, err);
}

static void place_workers(struct session *s)
{
    struct numa numa;
    numa_read("", NULL, &numa);
    pool_place(s->pool, &numa);
    if (pool_nodes(s->pool) > 1)
        log_info("%d memory nodes: every worker stays on its own", pool_nodes(s->pool));
}

static int load_weights(struct session *s, struct err *err)
{
    const char *slash = strrchr(s->settings->model, '/');
    struct strbuf what = {0};
    struct progress progress;
    strbuf_addf(&what, "reading %s", slash ? slash + 1 : s->settings->model);
    progress_begin(&progress, what.data ? what.data : "reading the model");
    int rc = model_load(s->model, s->pool, progress_show, &progress, err);
    s->load_seconds = progress_end(&progress);
    strbuf_finish(&what);
    return rc;
}

int session_load(struct session *s, size_t most_kv_bytes, struct err *err)
{
    const struct model_plan *p = model_plan(s->model);
    struct kv_config kv = p->kv;
    kv.share = true;
    kv.arena_bytes = s->budget.arena;
    if (most_kv_bytes && most_kv_bytes < kv.arena_bytes)
        kv.arena_bytes = most_kv_bytes;
    int rc = pool_create(s->threads, s->nice, &s->pool, err);
    if (rc == 0)
        place_workers(s);
    if (rc == 0)
        rc = load_weights(s, err);
    if (rc == 0)
        rc = kv_create(&kv, &s->cache, err);
    return rc;
}

void session_finish(struct session *s)
{
    kv_destroy(s->cache);
    model_destroy(s->model);
    pool_destroy(s->pool);
    free(s->chat_template);
    *s = (struct session){0};
}
