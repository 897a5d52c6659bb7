#include "session.h"

#include "log.h"
#include "mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The program, its libraries, threads and small buffers; and each token of the tokenizer. Both
 * measured, with some room. */
#define PROCESS_BYTES ((size_t)20 << 20)
#define TOKEN_BYTES   ((size_t)96)

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
    };
    return model_open(&options, &s->model, err);
}

static size_t fixed_bytes(const struct budget *b)
{
    return b->weights + b->scratch + b->logits + b->process;
}

/* The cache's bookkeeping grows with its arena: take the whole rest first, then what the
 * bookkeeping of that costs. */
static void divide(struct session *s, size_t total)
{
    const struct model_plan *p = model_plan(s->model);
    struct budget *b = &s->budget;
    *b = (struct budget){
        .total = total,
        .weights = p->weight_bytes,
        .scratch = p->scratch_bytes,
        .logits = (MODEL_LOGIT_ROWS + 1) * (size_t)p->vocabulary * sizeof(float),
        .process = PROCESS_BYTES + TOKEN_BYTES * (size_t)p->vocabulary,
    };
    size_t fixed = fixed_bytes(b);
    if (total <= fixed)
        return;
    struct kv_config kv = p->kv;
    kv.arena_bytes = total - fixed;
    b->overhead = kv_overhead_bytes(&kv);
    b->arena = kv.arena_bytes > b->overhead ? kv.arena_bytes - b->overhead : 0;
}

int session_plan(struct session *s, const struct settings *settings, struct err *err)
{
    *s = (struct session){0};
    machine_read("", &s->machine);
    s->threads = settings->threads ? settings->threads : machine_threads(&s->machine);
    s->nice = settings->nice;
    int rc = open_model(s, settings, err);
    if (rc == 0)
        divide(s, settings->memory ? settings->memory : machine_memory_budget(&s->machine));
    return rc;
}

static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Two blocks of keys and values, and what must be there beside them. */
static size_t least_arena(const struct session *s)
{
    return model_kv_bytes(model_plan(s->model), 2 * KV_BLOCK_TOKENS);
}

/* divide() turned round: the bookkeeping is that of the arena and itself. */
size_t session_least(const struct session *s)
{
    struct kv_config kv = model_plan(s->model)->kv;
    size_t arena = least_arena(s), overhead;
    kv.arena_bytes = arena;
    while (overhead = kv_overhead_bytes(&kv), kv.arena_bytes < arena + overhead)
        kv.arena_bytes = arena + overhead;
    return fixed_bytes(&s->budget) + kv.arena_bytes;
}

bool session_fits(const struct session *s)
{
    return s->budget.arena >= least_arena(s);
}

int session_open(struct session *s, const struct settings *settings, struct err *err)
{
    int rc = session_plan(s, settings, err);
    if (rc || session_fits(s))
        return rc;
    const struct budget *b = &s->budget;
    size_t least = session_least(s);
    return err_set(err, ERR_LIMIT,
                   "%s does not fit: it needs %.1f MiB (weights %.1f, scratch %.1f, logits %.1f, "
                   "program %.1f, at least %.1f for keys and values), and the memory budget is "
                   "%.1f MiB; raise --memory or lower --batch-tokens or --ctx",
                   settings->model, mib(least), mib(b->weights), mib(b->scratch), mib(b->logits),
                   mib(b->process), mib(least - fixed_bytes(b)), mib(b->total));
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
        rc = model_load(s->model, s->pool, NULL, NULL, err);
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
