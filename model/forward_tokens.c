#include "forward_state.h"

void norm_row(const struct forward *f, const struct norm *n, const float *x, float *out)
{
    const struct plan *p = f->p;
    if (p->arch->norm == NORM_RMS)
        f->vec->rms_norm(out, x, n->weight, p->width, p->eps);
    else
        f->vec->layer_norm(out, x, n->weight, n->bias, p->width, p->eps);
}

void pack_range(const struct forward *f, const struct packed *to, const float *from, size_t stride,
                const struct act_range *range)
{
    bool packed[ACT_KIND_COUNT] = {false};
    for (int i = 0; i < to->n_formats; i++) {
        enum act_kind kind = matrix_act_kind(to->formats[i], f->p->how, to->tokens);
        struct act_shape s = {kind, f->p->how.isa, to->cols, to->tokens};
        if (!packed[kind])
            act_pack_range(&s, to->act[kind], from, stride, range);
        packed[kind] = true;
    }
}

void pack_tokens(const struct forward *f, const struct packed *to, const float *from, int t0,
                 int t1)
{
    pack_range(f, to, from, (size_t)to->cols, &(struct act_range){t0, t1, 0, to->cols});
}

void norm_tokens(const struct forward *f, const struct norm *n, int t0, int t1)
{
    size_t width = (size_t)f->p->width;
    for (size_t t = (size_t)t0; t < (size_t)t1; t++)
        norm_row(f, n, f->x + t * width, f->normed + t * width);
    pack_tokens(f, &f->in, f->normed, t0, t1);
}

static void embed_token(const struct forward *f, size_t t)
{
    const struct plan *p = f->p;
    const struct row *r = &f->rows[t];
    float *x = f->x + t * (size_t)p->width;
    matrix_row(&p->embedding, f->batch->items[r->item].tokens[r->token], x);
    if (p->embed_scale != 1.0f)
        f->vec->scale(x, p->embed_scale, p->width);
    const struct rope *ropes = p->ropes[f->batch->items[r->item].variant];
    for (int i = 0; i < p->n_ropes; i++)
        rope_table(&ropes[i], r->position, f->tables[i] + t * (size_t)ropes[i].dims);
}

void embed_tokens(const struct forward *f, int t0, int t1)
{
    for (int t = t0; t < t1; t++)
        embed_token(f, (size_t)t);
}

void join_tokens(const struct forward *f, const struct joining *j, int t0, int t1)
{
    int width = f->p->width;
    for (size_t t = (size_t)t0; t < (size_t)t1; t++) {
        float *y = f->y + t * (size_t)width;
        if (j->post->weight)
            norm_row(f, j->post, y, y);
        f->vec->add(f->x + t * (size_t)width, y, width);
    }
    if (j->next)
        norm_tokens(f, j->next, t0, t1);
}

/* ---- queries and keys ---- */

/* Norms and rotates n heads at x. */
static void turn_heads(const struct forward *f, const struct layer *l, const float *norm, float *x,
                       int n, size_t t)
{
    int size = l->attn.key_size;
    for (int h = 0; norm && h < n; h++)
        f->vec->rms_norm(x + h * size, x + h * size, norm, size, f->p->eps);
    if (l->rope == NO_ROPE)
        return;
    const struct rope *rope = &f->p->ropes[0][l->rope];
    rope_apply(rope, f->tables[l->rope] + t * (size_t)rope->dims, x, n, size);
}

static void store_token(const struct forward *f, const struct layer *l, bool queries,
                        struct attn_heads heads, size_t t)
{
    const struct attn_shape *a = &l->attn;
    const struct row *r = &f->rows[t];
    int group = a->heads / a->kv_heads, n = heads.last - heads.first;
    float *q = f->q + t * (size_t)(a->heads * a->key_size);
    float *k = f->k + t * (size_t)(a->kv_heads * a->key_size);
    const float *v = f->v + t * (size_t)(a->kv_heads * a->value_size);
    if (queries)
        turn_heads(f, l, l->q_norm, q + heads.first * group * a->key_size, n * group, t);
    turn_heads(f, l, l->k_norm, k + heads.first * a->key_size, n, t);
    void *const *blocks = kv_seq_blocks(f->batch->items[r->item].seq, l->group);
    attn_store_heads(a, (char *)blocks[r->position / KV_BLOCK_TOKENS] + l->offset,
                     r->position % KV_BLOCK_TOKENS, k, v, heads);
}

void store_tokens(const struct forward *f, const struct layer *l, bool queries,
                  struct attn_heads heads, int t0, int t1)
{
    for (int t = t0; t < t1; t++)
        store_token(f, l, queries, heads, (size_t)t);
}
