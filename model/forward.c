#include "forward_state.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* ---- a layer ---- */

/* The last tokens of every item are what is asked for: how many, of all items. */
static int wanted_tokens(const struct forward *f)
{
    int n = 0;
    for (int i = 0; i < f->batch->n_items; i++)
        n += f->batch->items[i].wanted;
    return n;
}

/* Spans of attention for all tokens, or for the wanted ones; returns how many. */
static int list_spans(struct forward *f, const struct layer *l, bool wanted_only)
{
    size_t q_width = (size_t)(l->attn.heads * l->attn.key_size),
           out_width = (size_t)(l->attn.heads * l->attn.value_size);
    size_t row = 0, out = 0;
    int spans = 0;
    for (int i = 0; i < f->batch->n_items; i++) {
        const struct batch_item *item = &f->batch->items[i];
        int n = wanted_only ? item->wanted : item->n;
        row += (size_t)item->n;
        if (n == 0)
            continue;
        f->spans[spans++] = (struct attn_span){
            .q = f->q + (row - (size_t)n) * q_width,
            .out = f->mixed + out * out_width,
            .q_stride = q_width,
            .out_stride = out_width,
            .n = n,
            .position = item->position + item->n - n,
            .blocks = kv_seq_blocks(item->seq, l->group),
            .offset = l->offset,
        };
        out += (size_t)n;
    }
    f->mid.tokens = (int)out;
    return spans;
}

/* In the last layer, once keys and values are stored: rows that nobody will ask for are left
 * behind, and those that stay move together. kept: where each has gone. */
static void keep_wanted(struct forward *f)
{
    size_t width = (size_t)f->p->width;
    int n = 0;
    for (int t = 0; t < f->tokens; t++) {
        const struct batch_item *item = &f->batch->items[f->rows[t].item];
        f->kept[t] = n;
        if (f->rows[t].token < item->n - item->wanted)
            continue;
        if (n < t)
            memcpy(f->x + (size_t)n * width, f->x + (size_t)t * width, width * sizeof *f->x);
        n++;
    }
    f->tokens = f->in.tokens = n;
}

/* f->in holds the layer's normed input before, and the next layer's (norm `next`) after; NULL: this
 * is the last one. */
static void run_layer(struct forward *f, const struct layer *l, const struct norm *next)
{
    struct joining after_attention = {&l->attn_post, &l->ffn_norm};
    struct joining after_ffn = {&l->ffn_post, next};
    bool wanted_only = !next && wanted_tokens(f) < f->tokens;
    attend(f, l, list_spans(f, l, wanted_only));
    if (wanted_only)
        keep_wanted(f);
    if (f->tokens == 0)
        return;
    if (f->p->arch->parallel) { /* the feed-forward reads the same input as the attention */
        after_attention.next = NULL;
        if (wanted_only)
            norm_tokens(f, &l->attn_norm, 0, f->tokens);
    }
    multiply(f, &f->mid, &l->o, f->y, &after_attention);
    multiply_gate(f, l);
    multiply(f, &f->wide, &l->down, f->y, &after_ffn);
}

/* ---- the step ---- */

static void list_rows(struct forward *f, const struct batch *batch)
{
    int t = 0;
    for (int i = 0; i < batch->n_items; i++) {
        assert(batch->items[i].variant >= 0 && batch->items[i].variant < f->p->n_variants);
        for (int j = 0; j < batch->items[i].n; j++) {
            assert(t < f->most_tokens);
            f->kept[t] = t;
            f->rows[t++] = (struct row){i, j, batch->items[i].position + j};
        }
    }
    f->batch = batch;
    f->tokens = f->in.tokens = t;
}

static void begin_tokens(void *arg, int worker, int64_t first, int64_t last)
{
    const struct forward *f = arg;
    (void)worker;
    embed_tokens(f, (int)first, (int)last);
    norm_tokens(f, &f->p->layers[0].attn_norm, (int)first, (int)last);
}

int forward_step(struct forward *f, const struct batch *batch)
{
    const struct plan *p = f->p;
    list_rows(f, batch);
    if (f->tokens == 0)
        return 0;
    pool_run(f->pool, begin_tokens, f, f->tokens, FEW_TOKENS);
    for (int i = 0; i < p->face.layers; i++) {
        if (batch->stop && atomic_load_explicit(batch->stop, memory_order_relaxed))
            return ERR_BUSY;
        run_layer(f, &p->layers[i], i + 1 < p->face.layers ? &p->layers[i + 1].attn_norm : NULL);
    }
    return 0;
}

void forward_logits(struct forward *f, const int *rows, int n, float *out)
{
    const struct plan *p = f->p;
    assert(n <= MODEL_LOGIT_ROWS);
    for (int i = 0; i < n; i++)
        norm_row(f, &p->output_norm, f->x + (size_t)f->kept[rows[i]] * (size_t)p->width,
                 f->normed + (size_t)i * (size_t)p->width);
    f->asked.tokens = n;
    pack_tokens(f, &f->asked, f->normed, 0, n);
    multiply(f, &f->asked, &p->output, out, NULL);
    for (int i = 0; i < n; i++) {
        float *row = out + (size_t)i * (size_t)p->face.vocabulary;
        if (p->logit_scale != 1.0f)
            f->vec->scale(row, p->logit_scale, p->face.vocabulary);
        if (p->logit_softcap > 0.0f)
            f->vec->softcap(row, p->logit_softcap, p->face.vocabulary);
    }
}
