#include "plan.h"

#include "forward.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What plan.c reads from the file before it makes records. */
struct reader {
    struct plan *p;
    const struct weights *w;
    const struct model_options *options;
    bool *used; /* [tensors]: somebody read it */
    int heads, kv_heads, key_size, value_size;
    int window; /* 0: none */
    struct err *err;
};

/* ---- settings of the file ---- */

static const char *full_key(const struct reader *r, const char *key, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s.%s", r->p->arch->name, key);
    return buf;
}

/* `otherwise` < 0: the key is required. */
static int get_int(struct reader *r, const char *key, int otherwise, int *out)
{
    char name[160];
    int64_t v = otherwise;
    if (weights_array_size(r->w, full_key(r, key, name, sizeof name)))
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: %s differs from layer to layer, which is not supported yet",
                       weights_path(r->w), name);
    int rc = weights_int(r->w, name, &v, r->err);
    if (rc < 0)
        return rc;
    if (rc == 0 && otherwise < 0)
        return err_set(r->err, ERR_FORMAT, "%s: the setting %s is missing", weights_path(r->w),
                       name);
    if (v < 0 || v > INT32_MAX / 4)
        return err_set(r->err, ERR_FORMAT, "%s: %s is %" PRId64, weights_path(r->w), name, v);
    *out = (int)v;
    return 0;
}

static int get_float(struct reader *r, const char *key, float otherwise, float *out)
{
    char name[160];
    *out = otherwise;
    int rc = weights_float(r->w, full_key(r, key, name, sizeof name), out, r->err);
    if (rc < 0)
        return rc;
    if (!isfinite(*out))
        return err_set(r->err, ERR_FORMAT, "%s: %s is not a finite number", weights_path(r->w),
                       name);
    return 0;
}

struct int_row {
    const char *key;
    int otherwise;
    int *out;
};

static int get_ints(struct reader *r, const struct int_row *rows, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = get_int(r, rows[i].key, rows[i].otherwise, rows[i].out);
    return rc;
}

static int require(struct reader *r, bool ok, const char *what, long long found)
{
    if (ok)
        return 0;
    return err_set(r->err, ERR_FORMAT, "%s: %s (found %lld)", weights_path(r->w), what, found);
}

static int read_sizes(struct reader *r)
{
    struct plan *p = r->p;
    const struct int_row rows[] = {
        {"block_count", -1, &p->face.layers},
        {"embedding_length", -1, &p->width},
        {"feed_forward_length", -1, &p->ffn},
        {"attention.head_count", -1, &r->heads},
        {"context_length", -1, &p->face.trained_context},
    };
    int rc = get_ints(r, rows, sizeof rows / sizeof rows[0]);
    if (rc == 0)
        rc = require(r, r->heads > 0 && r->heads <= 4096, "the number of heads must be 1 to 4096",
                     r->heads);
    if (rc == 0)
        rc = require(r, p->face.layers > 0 && p->face.layers <= 4096,
                     "the number of layers must be 1 to 4096", p->face.layers);
    if (rc == 0)
        rc = require(r, p->width > 0 && p->width <= 1 << 20,
                     "the embedding must have 1 to 1048576 values", p->width);
    if (rc)
        return rc;
    const struct int_row head_rows[] = {
        {"attention.head_count_kv", r->heads, &r->kv_heads},
        {"attention.key_length", p->width / r->heads, &r->key_size},
        {"attention.value_length", p->width / r->heads, &r->value_size},
        {"attention.sliding_window", 0, &r->window},
    };
    rc = get_ints(r, head_rows, sizeof head_rows / sizeof head_rows[0]);
    if (rc == 0)
        rc = require(r, r->kv_heads > 0 && r->heads % r->kv_heads == 0,
                     "the number of heads must be a multiple of the number of KV heads",
                     r->kv_heads);
    if (rc == 0 && r->options->window >= 0)
        r->window = r->options->window;
    return rc;
}

static int read_scales(struct reader *r)
{
    struct plan *p = r->p;
    p->embed_scale = p->arch->scale_embedding ? sqrtf((float)p->width) : 1.0f;
    int rc = get_float(r,
                       p->arch->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                                 : "attention.layer_norm_epsilon",
                       1e-5f, &p->eps);
    if (rc == 0)
        rc = get_float(r, "logit_scale", 1.0f, &p->logit_scale);
    if (rc == 0)
        rc = get_float(r, "final_logit_softcapping", 0.0f, &p->logit_softcap);
    return rc;
}

/* ---- tensors ---- */

static const struct tensor *find(struct reader *r, const char *name)
{
    const struct tensor *t = weights_tensor(r->w, name);
    if (t)
        r->used[t - weights_tensor_at(r->w, 0)] = true;
    return t;
}

static int wrong_shape(struct reader *r, const struct tensor *t, int64_t cols, int64_t rows)
{
    return err_set(r->err, ERR_FORMAT,
                   "%s: tensor \"%s\" has shape [%lld, %lld]; [%lld, %lld] was expected",
                   weights_path(r->w), t->name, (long long)t->dim[0], (long long)t->dim[1],
                   (long long)cols, (long long)rows);
}

static int missing(struct reader *r, const char *name)
{
    return err_set(r->err, ERR_FORMAT,
                   "%s: the tensor \"%s\", which architecture \"%s\" needs, is missing",
                   weights_path(r->w), name, r->p->arch->name);
}

/* A vector of floats: used where it lies when it can be, converted otherwise. NULL when it is
 * absent. */
static int read_vector(struct reader *r, const char *name, int n, const float **out)
{
    const struct tensor *t = find(r, name);
    *out = NULL;
    if (!t)
        return 0;
    if (t->dim[0] != n || t->dim[1] != 1 || t->dim[2] != 1 || t->dim[3] != 1)
        return wrong_shape(r, t, n, 1);
    if (t->format == FORMAT_F32 && (uintptr_t)t->data % sizeof(float) == 0) {
        *out = t->data;
        return 0;
    }
    float *copy = mem_arena_alloc(&r->p->small, (size_t)n * sizeof *copy);
    if (!copy)
        return err_set(r->err, ERR_NOMEM, "no memory for tensor \"%s\"", name);
    if (!format_known(t->format))
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has the number format %s, which is not supported",
                       weights_path(r->w), name, format_infos[t->format].name);
    format_unpack(t->format, t->data, n, copy);
    *out = copy;
    return 0;
}

/* Rows [first, first + rows) of a matrix that must have `total` rows of `cols` values. */
struct view {
    const char *name;
    int cols, rows, first, total;
};

static int read_matrix(struct reader *r, const struct view *v, struct matrix *out)
{
    const struct tensor *t = find(r, v->name);
    if (!t)
        return missing(r, v->name);
    if (t->dim[0] != v->cols || t->dim[1] != v->total || t->dim[2] != 1 || t->dim[3] != 1)
        return wrong_shape(r, t, v->cols, v->total);
    size_t row_bytes = t->bytes / (size_t)t->dim[1];
    const uint8_t *rows = (const uint8_t *)t->data + row_bytes * (size_t)v->first;
    int rc = matrix_init(out, t->format, v->rows, v->cols, rows, r->p->how, r->err);
    if (rc)
        err_prefix(r->err, "%s: tensor \"%s\"", weights_path(r->w), v->name);
    return rc;
}

static const char *layer_name(char *buf, size_t bytes, int layer, const char *what,
                              const char *kind)
{
    snprintf(buf, bytes, "blk.%d.%s.%s", layer, what, kind);
    return buf;
}

/* A linear map of its own tensor, with its bias if there is one. */
static int read_linear(struct reader *r, int layer, const char *what, int cols, int rows,
                       struct linear *out)
{
    char name[96];
    const struct view v = {layer_name(name, sizeof name, layer, what, "weight"), cols, rows, 0,
                           rows};
    int rc = read_matrix(r, &v, &out->matrix);
    if (rc == 0)
        rc = read_vector(r, layer_name(name, sizeof name, layer, what, "bias"), rows, &out->bias);
    return rc;
}

struct part {
    struct linear *out;
    const char *own; /* name of the tensor of its own */
    int rows;
};

/* Linear maps that the file holds either one by one or fused, one after another, in a tensor
 * `fused`. */
static int read_parts(struct reader *r, int layer, const char *fused, int cols,
                      const struct part *parts, int n)
{
    char name[96];
    int total = 0, rc = 0;
    for (int i = 0; i < n; i++)
        total += parts[i].rows;
    layer_name(name, sizeof name, layer, fused, "weight");
    bool apart = weights_tensor(
                     r->w, layer_name(name, sizeof name, layer, parts[0].own, "weight")) != NULL;
    layer_name(name, sizeof name, layer, fused, "weight");
    const struct tensor *t = weights_tensor(r->w, name);
    if (!t || (apart && t->dim[1] != total)) {
        for (int i = 0; i < n && rc == 0; i++)
            rc = read_linear(r, layer, parts[i].own, cols, parts[i].rows, parts[i].out);
        return rc;
    }
    char bias_name[96];
    const float *bias;
    rc = read_vector(r, layer_name(bias_name, sizeof bias_name, layer, fused, "bias"), total,
                     &bias);
    for (int i = 0, first = 0; i < n && rc == 0; first += parts[i++].rows) {
        const struct view v = {name, cols, parts[i].rows, first, total};
        rc = read_matrix(r, &v, &parts[i].out->matrix);
        parts[i].out->bias = bias ? bias + first : NULL;
    }
    return rc;
}

static int read_norm(struct reader *r, int layer, const char *what, bool required, struct norm *out)
{
    char name[96];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", what);
    else
        layer_name(name, sizeof name, layer, what, "weight");
    int rc = read_vector(r, name, r->p->width, &out->weight);
    if (rc == 0 && required && !out->weight)
        return missing(r, name);
    if (layer < 0)
        snprintf(name, sizeof name, "%s.bias", what);
    else
        layer_name(name, sizeof name, layer, what, "bias");
    return rc ? rc : read_vector(r, name, r->p->width, &out->bias);
}

/* ---- rotation ---- */

static int read_scaling(struct reader *r, struct rope_config *c)
{
    char key[160];
    struct weights_string type = {"none", 4};
    int rc = weights_string(r->w, full_key(r, "rope.scaling.type", key, sizeof key), &type, r->err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < ROPE_SCALING_COUNT; i++) {
        const char *name = rope_scaling_name((enum rope_scaling)i);
        if (strlen(name) == type.bytes && !memcmp(name, type.s, type.bytes)) {
            c->scaling = (enum rope_scaling)i;
            return 0;
        }
    }
    return err_set(r->err, ERR_UNSUPPORTED,
                   "%s: %s is \"%.*s\", a rotation scaling that is not supported",
                   weights_path(r->w), key, (int)type.bytes, type.s);
}

static int read_rope_config(struct reader *r, struct rope_config *c)
{
    struct plan *p = r->p;
    float attn_factor;
    *c = (struct rope_config){.neighbours = p->arch->rope_neighbours};
    const struct int_row ints[] = {
        {"rope.dimension_count", r->key_size, &c->dims},
        {"rope.scaling.original_context_length", p->face.trained_context, &c->original_context},
    };
    int rc = get_ints(r, ints, 2);
    if (rc == 0)
        rc = read_scaling(r, c);
    const struct {
        const char *key;
        float otherwise, *out;
    } floats[] = {
        {"rope.freq_base", 10000.0f, &c->base},
        {"rope.scaling.factor", 1.0f, &c->factor},
        {"rope.scaling.attn_factor", 1.0f, &attn_factor},
        {"rope.scaling.yarn_ext_factor", 1.0f, &c->yarn_ext_factor},
        {"rope.scaling.yarn_beta_fast", 32.0f, &c->yarn_beta_fast},
        {"rope.scaling.yarn_beta_slow", 1.0f, &c->yarn_beta_slow},
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0] && rc == 0; i++)
        rc = get_float(r, floats[i].key, floats[i].otherwise, floats[i].out);
    /* In GGUF yarn's own factor is on top of the paper's. */
    if (rc == 0 && c->scaling == ROPE_YARN && attn_factor != 1.0f)
        c->attention_factor = attn_factor * (0.1f * logf(c->factor) + 1.0f);
    if (rc == 0)
        rc = read_vector(r, "rope_freqs.weight", c->dims / 2, &c->divisors);
    if (rc == 0 &&
        (weights_tensor(r->w, "rope_factors_long.weight") || c->scaling == ROPE_LONGROPE))
        rc = err_set(r->err, ERR_UNSUPPORTED,
                     "%s: rotation scaling \"longrope\" is not supported yet", weights_path(r->w));
    return rc;
}

/* ropes[0] serves all layers, or the full ones where local layers rotate differently (ropes[1]). */
static int read_ropes(struct reader *r)
{
    struct plan *p = r->p;
    struct rope_config c;
    int rc = read_rope_config(r, &c);
    if (rc == 0)
        rc = rope_init(&p->ropes[0], &c, r->err);
    if (rc == 0) {
        p->n_ropes = 1;
        if (!p->arch->local_rope)
            return 0;
        rc = get_float(r, "rope.freq_base_swa", 10000.0f, &c.base);
    }
    if (rc == 0) {
        c.scaling = ROPE_NONE;
        c.divisors = NULL;
        rc = rope_init(&p->ropes[1], &c, r->err);
    }
    if (rc == 0)
        p->n_ropes = 2;
    else
        err_prefix(r->err, "%s", weights_path(r->w));
    return rc;
}

/* ---- layers ---- */

static int read_attention_shape(struct reader *r, struct layer *l, bool local)
{
    l->attn = (struct attn_shape){
        .heads = r->heads,
        .kv_heads = r->kv_heads,
        .key_size = r->key_size,
        .value_size = r->value_size,
        .type = r->options->kv_type,
        .window = local ? r->window : 0,
    };
    int rc = get_float(r, "attention.scale", 1.0f / sqrtf((float)r->key_size), &l->attn.scale);
    if (rc == 0)
        rc = get_float(r, "attn_logit_softcapping", 0.0f, &l->attn.softcap);
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
        kv->group[g] = (struct kv_group_config){.name = l->attn.window ? "window" : "full",
                                                .window = l->attn.window};
        kv->groups++;
    }
    l->group = g;
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
    int rc = read_norm(r, i, "attn_norm", true, &l->attn_norm);
    if (rc == 0)
        rc = read_parts(r, i, "attn_qkv", width, qkv, 3);
    if (rc == 0)
        rc = read_linear(r, i, "attn_output", r->heads * r->value_size, width, &l->o);
    if (rc == 0)
        rc = read_vector(r, layer_name(name, sizeof name, i, "attn_q_norm", "weight"), r->key_size,
                         &l->q_norm);
    if (rc == 0)
        rc = read_vector(r, layer_name(name, sizeof name, i, "attn_k_norm", "weight"), r->key_size,
                         &l->k_norm);
    if (rc == 0)
        rc = read_norm(r, i, "post_attention_norm", false, &l->attn_post);
    return rc;
}

static int read_ffn(struct reader *r, int i, struct layer *l)
{
    struct plan *p = r->p;
    const struct part gate_up[] = {{&l->gate, "ffn_gate", p->ffn}, {&l->up, "ffn_up", p->ffn}};
    int rc = read_norm(r, i, "ffn_norm", !p->arch->parallel, &l->ffn_norm);
    if (rc == 0)
        rc = read_parts(r, i, "ffn_up", p->width, gate_up, 2);
    if (rc == 0)
        rc = read_linear(r, i, "ffn_down", p->ffn, p->width, &l->down);
    if (rc == 0)
        rc = read_norm(r, i, "post_ffw_norm", false, &l->ffn_post);
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
    const struct tensor *t = find(r, "token_embd.weight");
    if (!t)
        return missing(r, "token_embd.weight");
    p->face.vocabulary = (int)t->dim[1];
    struct view v = {"token_embd.weight", p->width, p->face.vocabulary, 0, p->face.vocabulary};
    int rc = read_matrix(r, &v, &p->embedding);
    if (weights_tensor(r->w, "output.weight"))
        v.name = "output.weight";
    if (rc == 0)
        rc = read_matrix(r, &v, &p->output.matrix);
    if (rc == 0)
        rc = read_vector(r, "output.bias", p->face.vocabulary, &p->output.bias);
    if (rc == 0)
        rc = read_norm(r, -1, "output_norm", true, &p->output_norm);
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
    size_t total = p->small.total_bytes;
    for (int i = 0; i < p->face.layers; i++) {
        const struct layer *l = &p->layers[i];
        const struct linear *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++)
            total += resident_bytes(&all[j]->matrix);
    }
    return total + resident_bytes(&p->output.matrix) + source_bytes(&p->embedding);
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
    f->weight_bytes = weight_bytes(p);
    for (int g = 0; g < f->kv.groups; g++)
        f->kv_bytes_per_token += f->kv.group[g].block_bytes / KV_BLOCK_TOKENS;
    f->scratch_bytes = forward_scratch_bytes(p, r->options->threads);
}

static int read_name(struct reader *r)
{
    struct weights_string name = {NULL, 0};
    int rc = weights_string(r->w, "general.name", &name, r->err);
    if (rc < 0)
        return rc;
    const char *path = weights_path(r->w), *slash = strrchr(path, '/');
    if (!name.bytes) {
        name.s = slash ? slash + 1 : path;
        name.bytes = strlen(name.s);
    }
    r->p->face.name = mem_arena_strndup(&r->p->small, name.s, name.bytes);
    return r->p->face.name ? 0 : err_set(r->err, ERR_NOMEM, "no memory for the model's name");
}

static int read_arch(struct reader *r)
{
    struct weights_string name = {"", 0};
    int rc = weights_string(r->w, "general.architecture", &name, r->err);
    if (rc < 0)
        return rc;
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)name.bytes, name.s);
    r->p->arch = arch_find(text);
    if (!r->p->arch)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: general.architecture is \"%s\"; supported are: %s", weights_path(r->w),
                       text, arch_names());
    return 0;
}

/* "auto", "float" (OpenBLAS) or the name of a SIMD level. */
static int read_kernels(const struct model_options *o, struct matrix_how *how, struct err *err)
{
    const char *name = o->kernels ? o->kernels : "auto";
    *how = (struct matrix_how){cpu_isa(), o->activation_bits == 16 ? MATRIX_INT16 : MATRIX_INT8};
    if (!strcmp(name, "auto"))
        return 0;
    if (!strcmp(name, "float")) {
        how->mode = MATRIX_FLOAT;
        return 0;
    }
    int level = isa_from_name(name);
    if (level < 0)
        return err_set(err, ERR_ARG,
                       "there are no kernels named \"%s\": use auto, float, c, avx2 or avx512",
                       name);
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
        read_arch, read_name,  read_sizes,  read_scales,
        read_ends, read_ropes, read_layers, check_unused,
    };
    struct reader r = {.p = p, .w = w, .options = options, .err = err};
    int rc = read_kernels(options, &p->how, err);
    if (rc)
        return rc;
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
    for (int i = 0; i < p->n_ropes; i++)
        rope_finish(&p->ropes[i]);
    free(p->layers);
    mem_arena_finish(&p->small);
    *p = (struct plan){0};
}
