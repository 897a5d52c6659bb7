#include "plan_reader.h"

#include "blas.h"
#include "forward.h"
#include "selfcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- layers ---- */

/* Queries are multiplied by it where the file says nothing else. */
static float usual_scale(const struct reader *r)
{
    const struct plan *p = r->p;
    bool wide = p->face.layers == p->arch->wide_layers;
    return 1.0f / sqrtf(wide ? (float)p->width / (float)r->heads : (float)r->key_size);
}

static int read_attention_shape(struct reader *r, struct layer *l, bool local)
{
    l->attn = (struct attn_shape){
        .heads = r->heads,
        .kv_heads = r->kv_heads,
        .key_size = r->key_size,
        .value_size = r->value_size,
        .window = local ? r->window : 0,
    };
    l->attn.type = r->kv_types[l->attn.window > 0];
    int rc = reader_float(r, "attention.scale", usual_scale(r), &l->attn.scale);
    if (rc == 0)
        rc = reader_float(r, "attn_logit_softcapping", 0.0f, &l->attn.softcap);
    if (rc == 0) {
        rc = attn_check(&l->attn, r->err);
        if (rc)
            err_prefix(r->err, "%s", weights_path(r->w));
    }
    return rc;
}

/* The layer's group is the one of its window; its place in the block comes after the layers before
 * it. */
static int place_in_cache(struct reader *r, struct layer *l)
{
    struct kv_config *kv = &r->p->face.kv;
    int g = 0;
    while (g < kv->groups && kv->group[g].window != l->attn.window)
        g++;
    if (g == KV_MAX_GROUPS)
        return err_set(r->err, ERR_UNSUPPORTED, "%s: more than %d kinds of attention window",
                       weights_path(r->w), KV_MAX_GROUPS);
    if (g == kv->groups) {
        kv->group[g] = (struct kv_group_config){.name = kv_group_names[l->attn.window > 0],
                                                .window = l->attn.window};
        r->p->face.kv_types[g] = l->attn.type;
        kv->groups++;
    }
    l->group = g;
    r->p->face.group_layers[g]++;
    l->offset = kv->group[g].block_bytes;
    size_t bytes = attn_block_bytes(&l->attn);
    if (bytes == 0 || !mem_add(kv->group[g].block_bytes, bytes, &kv->group[g].block_bytes))
        return err_set(r->err, ERR_FORMAT, "%s: the keys and values of a block overflow",
                       weights_path(r->w));
    return 0;
}

static int read_attention(struct reader *r, int i, struct layer *l)
{
    char name[96];
    int width = r->p->width;
    const struct part qkv[] = {
        {&l->q, "attn_q", r->heads * r->key_size},
        {&l->k, "attn_k", r->kv_heads * r->key_size},
        {&l->v, "attn_v", r->kv_heads * r->value_size},
    };
    int rc = reader_norm(r, i, "attn_norm", true, &l->attn_norm);
    if (rc == 0)
        rc = reader_parts(r, i, "attn_qkv", width, qkv, 3);
    if (rc == 0)
        rc = reader_linear(r, i, "attn_output", r->heads * r->value_size, width, &l->o);
    if (rc == 0)
        rc = reader_vector(r, reader_layer_name(name, sizeof name, i, "attn_q_norm", "weight"),
                           r->key_size, &l->q_norm);
    if (rc == 0)
        rc = reader_vector(r, reader_layer_name(name, sizeof name, i, "attn_k_norm", "weight"),
                           r->key_size, &l->k_norm);
    if (rc == 0)
        rc = reader_norm(r, i, "post_attention_norm", false, &l->attn_post);
    return rc;
}

static int read_ffn(struct reader *r, int i, struct layer *l)
{
    struct plan *p = r->p;
    const struct part gate_up[] = {{&l->gate, "ffn_gate", p->ffn}, {&l->up, "ffn_up", p->ffn}};
    int rc = p->arch->parallel ? 0 : reader_norm(r, i, "ffn_norm", true, &l->ffn_norm);
    if (rc == 0)
        rc = reader_parts(r, i, "ffn_up", p->width, gate_up, 2);
    if (rc == 0)
        rc = reader_linear(r, i, "ffn_down", p->ffn, p->width, &l->down);
    if (rc == 0)
        rc = reader_norm(r, i, "post_ffw_norm", false, &l->ffn_post);
    return rc;
}

static int read_layer(struct reader *r, int i)
{
    struct plan *p = r->p;
    struct layer *l = &p->layers[i];
    char letter = p->arch->pattern[(size_t)i % strlen(p->arch->pattern)];
    bool local = letter == 'L' || letter == 'W';
    l->rope = letter == 'N' ? NO_ROPE : local && p->arch->local_rope ? 1 : 0;
    int rc = read_attention_shape(r, l, local);
    if (rc == 0)
        rc = place_in_cache(r, l);
    if (rc == 0)
        rc = read_attention(r, i, l);
    if (rc == 0)
        rc = read_ffn(r, i, l);
    return rc;
}

static int read_layers(struct reader *r)
{
    struct plan *p = r->p;
    if (strchr(p->arch->pattern, 'L') && !r->window && r->options->window < 0)
        return err_set(r->err, ERR_FORMAT, "%s: the setting %s.attention.sliding_window is missing",
                       weights_path(r->w), p->arch->name);
    p->layers = calloc((size_t)p->face.layers, sizeof *p->layers);
    if (!p->layers)
        return err_set(r->err, ERR_NOMEM, "no memory for %d layers", p->face.layers);
    int rc = 0;
    for (int i = 0; i < p->face.layers && rc == 0; i++)
        rc = read_layer(r, i);
    return rc;
}

/* ---- both ends ---- */

static int read_ends(struct reader *r)
{
    struct plan *p = r->p;
    const struct tensor *t = reader_tensor(r, "token_embd.weight");
    if (!t)
        return reader_missing(r, "token_embd.weight");
    p->face.vocabulary = (int)t->dim[1];
    struct view v = {"token_embd.weight", p->width, p->face.vocabulary, 0, p->face.vocabulary};
    int rc = reader_matrix(r, &v, &p->embedding);
    if (weights_tensor(r->w, "output.weight"))
        v.name = "output.weight";
    if (rc == 0)
        rc = reader_matrix(r, &v, &p->output.matrix);
    if (rc == 0)
        rc = reader_vector(r, "output.bias", p->face.vocabulary, &p->output.bias);
    if (rc == 0)
        rc = reader_norm(r, -1, "output_norm", true, &p->output_norm);
    return rc;
}

/* A tensor that nobody read would be left out of the answer silently. */
static int check_unused(struct reader *r)
{
    for (size_t i = 0; i < weights_tensors(r->w); i++)
        if (!r->used[i])
            return err_set(r->err, ERR_UNSUPPORTED,
                           "%s: the file holds the tensor \"%s\", which the program does not know "
                           "in architecture \"%s\"",
                           weights_path(r->w), weights_tensor_at(r->w, i)->name, r->p->arch->name);
    return 0;
}

/* ---- the face ---- */

static size_t source_bytes(const struct matrix *m)
{
    return m->source_stride * (size_t)m->rows;
}

/* The packed copy replaces the source, whose pages are let go after packing. */
static size_t resident_bytes(const struct matrix *m)
{
    return m->packed_bytes ? m->packed_bytes : source_bytes(m);
}

static size_t weight_bytes(const struct plan *p)
{
    size_t total = 0;
    for (int i = 0; i < p->face.layers; i++) {
        const struct layer *l = &p->layers[i];
        const struct linear *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            total += resident_bytes(&all[j]->matrix);
    }
    const struct matrix *output = &p->output.matrix;
    bool same = output->source == p->embedding.source && !output->packed_bytes;
    return total + resident_bytes(output) + (same ? 0 : source_bytes(&p->embedding));
}

static void fill_face(struct reader *r)
{
    struct plan *p = r->p;
    struct model_plan *f = &p->face;
    f->architecture = p->arch->name;
    f->width = p->width;
    f->heads = r->heads;
    f->kv_heads = r->kv_heads;
    f->key_size = r->key_size;
    f->value_size = r->value_size;
    for (size_t i = 0; i < weights_tensors(r->w); i++) {
        const struct tensor *t = weights_tensor_at(r->w, i);
        f->parameters += (uint64_t)(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]);
    }
    f->context = r->options->context ? r->options->context : f->trained_context;
    f->batch_tokens = r->options->batch_tokens ? r->options->batch_tokens : 512;
    f->threads = r->options->threads > 0 ? r->options->threads : 1;
    f->weight_bytes = weight_bytes(p) + r->vector_bytes + p->small.total_bytes;
    for (int g = 0; g < f->kv.groups; g++)
        f->kv_bytes_per_token += f->kv.group[g].block_bytes / KV_BLOCK_TOKENS;
    f->scratch_bytes = forward_scratch_bytes(p, r->options->threads);
}

static const char kernel_names[] = "auto, float"
#define ISA(id, name, needs) ", " #name
#include "isa.def"
#undef ISA
    ;

/* "auto", "float" (OpenBLAS) or the name of a SIMD level. */
static int read_kernels(const struct model_options *o, struct matrix_how *how, struct err *err)
{
    const char *name = o->kernels ? o->kernels : "auto";
    *how = (struct matrix_how){cpu_isa(), o->activation_bits == 16 ? MATRIX_INT16 : MATRIX_INT8};
    if (!strcmp(name, "auto"))
        return 0;
    if (!strcmp(name, "float")) {
        how->mode = MATRIX_FLOAT;
        return blas_check(err);
    }
    int level = isa_from_name(name);
    if (level < 0)
        return err_set(err, ERR_ARG,
                       "there are no kernels named \"%s\" for this kind of CPU; there are %s", name,
                       kernel_names);
    if (level > (int)how->isa)
        return err_set(err, ERR_UNSUPPORTED,
                       "this CPU (%s) cannot run the %s kernels; it can run %s", cpu_name(), name,
                       isa_name(how->isa));
    how->isa = (enum isa)level;
    return 0;
}

int plan_init(struct plan *p, const struct weights *w, const struct model_options *options,
              struct err *err)
{
    static int (*const steps[])(struct reader *) = {
        reader_arch, reader_model_name, reader_sizes, reader_scales, reader_kv_types,
        read_ends,   reader_ropes,      read_layers,  check_unused,
    };
    struct reader r = {.p = p, .w = w, .options = options, .err = err};
    int rc = read_kernels(options, &p->how, err);
    if (rc)
        return rc;
    p->how.isa = selfcheck_level(p->how.isa);
    r.used = calloc(weights_tensors(w) + 1, sizeof *r.used);
    if (!r.used)
        return err_set(err, ERR_NOMEM, "no memory for the plan of %s", weights_path(w));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && rc == 0; i++)
        rc = steps[i](&r);
    if (rc == 0)
        fill_face(&r);
    free(r.used);
    return rc;
}

void plan_finish(struct plan *p)
{
    for (int v = 0; v < VARIANTS; v++)
        for (int i = 0; i < MOST_ROPES; i++)
            rope_finish(&p->ropes[v][i]);
    free(p->layers);
    mem_arena_finish(&p->small);
    *p = (struct plan){0};
}
