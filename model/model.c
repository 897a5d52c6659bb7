#include "model.h"

#include "blas.h"
#include "forward.h"
#include "kernels/pick.h"
#include "load.h"
#include "measure.h"
#include "plan.h"
#include "vocab.h"
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    struct weights *weights;
    struct plan plan;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct err chat_err; /* why there is no chat template */
    char *repack_dir;    /* or NULL */
    struct packed_weights packed;
    struct pool *pool; /* NULL: not loaded */
    struct forward *forward;
};

/* ---- opening ---- */

/* A file without a template, or with one that cannot be read, still serves completions. */
static void read_chat_template(struct model *m, const char *given)
{
    struct weights_string text = {NULL, 0};
    int rc = 0;
    if (given)
        text = (struct weights_string){given, strlen(given)};
    else
        rc = weights_string(m->weights, "tokenizer.chat_template", &text, &m->chat_err);
    if (rc < 0)
        return;
    if (!text.s)
        err_set(&m->chat_err, ERR_NOT_FOUND,
                "%s has no chat template; give one with --chat-template FILE",
                weights_path(m->weights));
    else if (chat_template_create(text.s, text.bytes, &m->chat, &m->chat_err))
        err_prefix(&m->chat_err, "the chat template of %s", weights_path(m->weights));
}

int model_open(const struct model_options *options, struct model **out, struct err *err)
{
    *out = NULL;
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, ERR_NOMEM, "no memory to open %s", options->path);
    int rc = 0;
    if (options->repack_dir && !(m->repack_dir = strdup(options->repack_dir)))
        rc = err_set(err, ERR_NOMEM, "no memory to open %s", options->path);
    if (rc == 0)
        rc = weights_open(options->path, &m->weights, err);
    if (rc == 0)
        rc = plan_init(&m->plan, m->weights, options, err);
    if (rc == 0)
        rc = vocab_create(m->weights, m->plan.face.vocabulary, &m->tokenizer, err);
    if (rc) {
        model_destroy(m);
        return rc;
    }
    read_chat_template(m, options->chat_template);
    *out = m;
    return 0;
}

void model_destroy(struct model *m)
{
    if (!m)
        return;
    forward_destroy(m->forward);
    packed_finish(&m->packed);
    free(m->repack_dir);
    chat_template_destroy(m->chat);
    tok_destroy(m->tokenizer);
    plan_finish(&m->plan);
    weights_close(m->weights);
    free(m);
}

const struct model_plan *model_plan(const struct model *m)
{
    return &m->plan.face;
}

const struct tokenizer *model_tokenizer(const struct model *m)
{
    return m->tokenizer;
}

const struct chat_template *model_chat_template(const struct model *m, struct err *err)
{
    if (!m->chat && err)
        *err = m->chat_err;
    return m->chat;
}

int model_variant(const struct model_plan *p, int length)
{
    return p->variant_limit && length > p->variant_limit;
}

size_t model_kv_bytes(const struct model_plan *p, int n)
{
    size_t total = 0;
    for (int g = 0; g < p->kv.groups; g++) {
        const struct kv_group_config *group = &p->kv.group[g];
        /* A window that ends anywhere in a block touches one block more than it fills. */
        int held = group->window && group->window + KV_BLOCK_TOKENS < n
                       ? group->window + KV_BLOCK_TOKENS
                       : n;
        total += (size_t)((held + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS) * group->block_bytes;
    }
    return total;
}

double model_attention_share(uint64_t parameters, int layers, int width, double context)
{
    double a = 4.0 * layers * width * context;
    return a / (2.0 * (double)parameters + a);
}

double model_plan_attention_share(const struct model_plan *p, int context)
{
    double seen = 0; /* positions, by all layers */
    for (int g = 0; g < p->kv.groups; g++) {
        const struct kv_group_config *group = &p->kv.group[g];
        int most = group->window && group->window < context ? group->window : context;
        seen += (double)p->group_layers[g] * most;
    }
    int width = p->heads * (p->key_size + p->value_size) / 2;
    return model_attention_share(p->parameters, p->layers, width, seen / p->layers);
}

const char *model_blas_core(void)
{
    return blas_better_core();
}

/* ---- loading ---- */

int model_load(struct model *m, struct pool *pool, void (*progress)(void *arg, double done),
               void *arg, struct err *err)
{
    const struct loading how = {pool, m->repack_dir, progress, arg};
    int rc = packed_load(&m->packed, &m->plan, m->weights, &how, err);
    if (rc)
        return rc;
    /* Its rows are used where they lie: that costs what the plan says from the start, and no first
     * prompt waits for the disk. */
    weights_read_in(m->plan.embedding.source,
                    m->plan.embedding.source_stride * (size_t)m->plan.embedding.rows);
    m->pool = pool;
    attn_set_isa(m->plan.how.isa);
    pick_set_isa(m->plan.how.isa);
    return forward_create(&m->plan, pool, &m->forward, err);
}

int model_step(struct model *m, const struct batch *batch)
{
    return forward_step(m->forward, batch);
}

void model_logits(struct model *m, const int *rows, int n, float *out)
{
    forward_logits(m->forward, rows, n, out);
}

/* ---- measuring ---- */

struct matrix_list {
    struct matrix **items;
    int n;
};

static void list_matrix(void *arg, struct matrix *m)
{
    struct matrix_list *list = arg;
    if (list->items)
        list->items[list->n] = m;
    list->n++;
}

int model_measure(struct model *m, struct model_ceilings *best, model_speed_fn *report, void *arg,
                  struct err *err)
{
    struct matrix_list list = {NULL, 0};
    const struct model_measuring how = {m->plan.how.isa, m->pool, m->packed.base,
                                        m->packed.bytes, report,  arg};
    visit_matrices(&m->plan, list_matrix, &list);
    list.items = calloc((size_t)list.n, sizeof *list.items);
    if (!list.items)
        return err_set(err, ERR_NOMEM, "no memory for a list of matrices");
    list.n = 0;
    visit_matrices(&m->plan, list_matrix, &list);
    int rc = measure_kernels(&how, list.items, list.n, best, err);
    free(list.items);
    return rc;
}
