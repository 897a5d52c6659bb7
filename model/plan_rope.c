#include "plan_reader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rotary positions: a file's settings and tensors to the plan's ropes. */

/* A factor without a type is linear; old files call it rope.scale_linear; 0 says none, too. */
static int read_factor(struct reader *r, struct rope_config *c)
{
    int rc = reader_float(r, "rope.scale_linear", 1.0f, &c->factor);
    if (rc == 0)
        rc = reader_float(r, "rope.scaling.factor", c->factor, &c->factor);
    if (c->factor == 0.0f)
        c->factor = 1.0f;
    return rc;
}

static bool has_long_factors(const struct reader *r)
{
    return weights_tensor(r->w, "rope_factors_long.weight") != NULL;
}

/* Most files with longrope name no type: their tensors tell. */
static const char *usual_type(const struct reader *r, const struct rope_config *c)
{
    if (has_long_factors(r))
        return rope_scaling_name(ROPE_LONGROPE);
    return rope_scaling_name(c->factor != 1.0f ? ROPE_LINEAR : ROPE_NONE);
}

static int read_scaling(struct reader *r, struct rope_config *c)
{
    char key[160];
    struct weights_shown shown;
    const char *usual = usual_type(r, c);
    struct weights_string type = {usual, strlen(usual)};
    int rc = weights_string(r->w, reader_key(r, "rope.scaling.type", key, sizeof key), &type,
                            r->err);
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
                   "%s: %s is \"%s\", a rotation scaling that is not supported", weights_path(r->w),
                   key, weights_show(type, &shown));
}

static int read_dimensions(struct reader *r, struct rope_config *c)
{
    const struct int_row rows[] = {
        {"rope.dimension_count", r->key_size, &c->dims},
        {"rope.scaling.original_context_length", r->p->face.trained_context, &c->original_context},
    };
    int rc = reader_ints(r, rows, 2);
    if (rc == 0 && (c->dims < 2 || c->dims > r->key_size))
        rc = err_set(r->err, ERR_FORMAT, "%s: %s.rope.dimension_count is %d; 2 to %d was expected",
                     weights_path(r->w), r->p->arch->name, c->dims, r->key_size);
    return rc;
}

/* GGUF's attn_factor is the whole magnitude, but for yarn: there it is on top of the paper's. A
 * longrope file that gives none has the paper's, which asks how far the context was stretched. */
static void settle_magnitude(struct reader *r, struct rope_config *c, float attn_factor)
{
    if (c->scaling == ROPE_LONGROPE && c->factor == 1.0f && c->original_context > 0)
        c->factor = (float)r->p->face.trained_context / (float)c->original_context;
    if (attn_factor <= 0.0f)
        return;
    c->attention_factor = attn_factor;
    if (c->scaling == ROPE_YARN && c->factor > 1.0f)
        c->attention_factor *= 0.1f * logf(c->factor) + 1.0f;
}

static int read_config(struct reader *r, struct rope_config *c)
{
    float attn_factor;
    *c = (struct rope_config){.neighbours = r->p->arch->rope_neighbours};
    const struct {
        const char *key;
        float otherwise, *out;
    } floats[] = {
        {"rope.freq_base", 10000.0f, &c->base},
        {"rope.scaling.attn_factor", 0.0f, &attn_factor},
        {"rope.scaling.yarn_ext_factor", 1.0f, &c->yarn_ext_factor},
        {"rope.scaling.yarn_beta_fast", 32.0f, &c->yarn_beta_fast},
        {"rope.scaling.yarn_beta_slow", 1.0f, &c->yarn_beta_slow},
    };
    int rc = read_dimensions(r, c);
    if (rc == 0)
        rc = read_factor(r, c);
    if (rc == 0)
        rc = read_scaling(r, c);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0] && rc == 0; i++)
        rc = reader_float(r, floats[i].key, floats[i].otherwise, floats[i].out);
    if (rc == 0)
        settle_magnitude(r, c, attn_factor);
    return rc;
}

/* ---- variants ---- */

static int read_divisors(struct reader *r, const char *name, bool required, struct rope_config *c)
{
    int rc = reader_vector(r, name, c->dims / 2, &c->divisors);
    if (rc == 0 && required && !c->divisors)
        rc = err_set(r->err, ERR_FORMAT,
                     "%s: the tensor \"%s\", which rotation scaling longrope needs, is missing",
                     weights_path(r->w), name);
    return rc;
}

/* ropes[0] serves all layers, or the full ones where local layers rotate differently (ropes[1]). */
static int make_variant(struct reader *r, const struct rope_config *c, int variant)
{
    struct rope *ropes = r->p->ropes[variant];
    int rc = rope_init(&ropes[0], c, r->err);
    if (rc || !r->p->arch->local_rope)
        return rc;
    struct rope_config local = *c;
    rc = reader_float(r, "rope.freq_base_swa", 10000.0f, &local.base);
    local.scaling = ROPE_NONE;
    local.attention_factor = 0.0f;
    local.divisors = NULL;
    return rc ? rc : rope_init(&ropes[1], &local, r->err);
}

int reader_ropes(struct reader *r)
{
    static const char *const longrope[VARIANTS] = {"rope_factors_short.weight",
                                                   "rope_factors_long.weight"};
    struct plan *p = r->p;
    struct rope_config c;
    int rc = read_config(r, &c);
    if (rc)
        return rc;
    bool varies = c.scaling == ROPE_LONGROPE;
    p->n_ropes = p->arch->local_rope ? 2 : 1;
    p->n_variants = varies ? VARIANTS : 1;
    p->face.variant_limit = varies ? c.original_context : 0;
    for (int v = 0; v < p->n_variants && rc == 0; v++) {
        rc = read_divisors(r, varies ? longrope[v] : "rope_freqs.weight", varies, &c);
        if (rc)
            return rc;
        rc = make_variant(r, &c, v);
    }
    if (rc)
        err_prefix(r->err, "%s", weights_path(r->w));
    return rc;
}
