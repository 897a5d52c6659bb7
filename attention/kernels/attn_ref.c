/* Plain C: the definition of right, and what runs where there is nothing better. */
#include "attn_exp.h"
#include "attn_half.h"
#include "attn_ops.h"

#define COLUMNS 16 /* of a value page, worked on at once */

/* How a type's elements become floats: the 32 keys of one dimension, 16 dimensions of one value. */
struct loader {
    void (*keys)(const struct attn_page *p, int dimension, float out[ATTN_LANES]);
    void (*values)(const struct attn_page *p, int lane, int column, float out[COLUMNS]);
};

#define PLAIN_LOADER(name, type, convert)                                                          \
    static void keys_##name(const struct attn_page *p, int dimension, float out[ATTN_LANES])       \
    {                                                                                              \
        const type *row = (const type *)p->key + (size_t)dimension * ATTN_LANES;                   \
        for (int i = 0; i < ATTN_LANES; i++)                                                       \
            out[i] = convert(row[i]);                                                              \
    }                                                                                              \
    static void values_##name(const struct attn_page *p, int lane, int column, float out[COLUMNS]) \
    {                                                                                              \
        const type *row = (const type *)p->value + (size_t)lane * p->value_pad + column;           \
        for (int i = 0; i < COLUMNS; i++)                                                          \
            out[i] = convert(row[i]);                                                              \
    }

PLAIN_LOADER(f16, uint16_t, half_to_float)
PLAIN_LOADER(bf16, uint16_t, bfloat_to_float)
PLAIN_LOADER(f32, float, )

static const uint8_t *group_of(const void *page, int dimension)
{
    return (const uint8_t *)page + (size_t)(dimension / ATTN_GROUP) * ATTN_GROUP_BYTES;
}

static void keys_q8_0(const struct attn_page *p, int dimension, float out[ATTN_LANES])
{
    const uint8_t *group = group_of(p->key, dimension);
    const uint16_t *scales = (const uint16_t *)group;
    const int8_t *row = (const int8_t *)(scales + ATTN_LANES) + dimension % ATTN_GROUP * ATTN_LANES;
    for (int i = 0; i < ATTN_LANES; i++)
        out[i] = (float)row[i] * half_to_float(scales[i]);
}

static void values_q8_0(const struct attn_page *p, int lane, int column, float out[COLUMNS])
{
    const uint8_t *group = group_of(p->value, column);
    const uint16_t *scales = (const uint16_t *)group;
    const int8_t *row = (const int8_t *)(scales + ATTN_LANES) + lane * ATTN_GROUP +
                        column % ATTN_GROUP;
    for (int i = 0; i < COLUMNS; i++)
        out[i] = (float)row[i] * half_to_float(scales[lane]);
}

static void scores(const struct loader *l, const struct attn_page *p, const struct attn_rows *r)
{
    memset(r->weight, 0, (size_t)r->n * ATTN_LANES * sizeof(float));
    for (int d = 0; d < p->key_size; d++) {
        float key[ATTN_LANES];
        l->keys(p, d, key);
        for (int i = 0; i < r->n; i++) {
            float q = r->query[(size_t)i * p->key_size + d];
            float *score = r->weight + (size_t)i * ATTN_LANES;
            for (int j = 0; j < ATTN_LANES; j++)
                score[j] = fmaf(q, key[j], score[j]);
        }
    }
}

static void mix_columns(const struct loader *l, const struct attn_page *p,
                        const struct attn_rows *r, int column)
{
    for (int i = 0; i < r->n; i++)
        for (int c = 0; c < COLUMNS; c++)
            r->mix[(size_t)i * p->value_pad + column + c] *= r->rescale[i];
    for (int lane = p->first; lane < p->last; lane++) {
        float value[COLUMNS];
        l->values(p, lane, column, value);
        for (int i = 0; i < r->n; i++) {
            float w = r->weight[(size_t)i * ATTN_LANES + lane];
            float *mix = r->mix + (size_t)i * p->value_pad + column;
            for (int c = 0; c < COLUMNS; c++)
                mix[c] = fmaf(w, value[c], mix[c]);
        }
    }
}

static void mix(const struct loader *l, const struct attn_page *p, const struct attn_rows *r)
{
    for (int column = 0; column < p->value_pad; column += COLUMNS)
        mix_columns(l, p, r, column);
}

#define TYPE(name)                                                                                 \
    static const struct loader loader_##name = {keys_##name, values_##name};                       \
    static void scores_##name(const struct attn_page *p, const struct attn_rows *r)                \
    {                                                                                              \
        scores(&loader_##name, p, r);                                                              \
    }                                                                                              \
    static void mix_##name(const struct attn_page *p, const struct attn_rows *r)                   \
    {                                                                                              \
        mix(&loader_##name, p, r);                                                                 \
    }

TYPE(f16)
TYPE(bf16)
TYPE(f32)
TYPE(q8_0)

static float tree_sum(const float *x)
{
    float t[ATTN_LANES];
    memcpy(t, x, sizeof t);
    for (int n = ATTN_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            t[i] = t[i] + t[i + n];
    return t[0];
}

static float shaped_score(const struct attn_page *p, const struct attn_rows *r, int i, int lane)
{
    float x = r->weight[(size_t)i * ATTN_LANES + lane];
    if (p->cap > 0)
        x = p->cap * tanh_one(x * p->inv_cap);
    if (r->slope)
        x = fmaf(r->slope[i], (float)(p->position + lane - r->position[i]), x);
    return x;
}

static void softmax_row(const struct attn_page *p, const struct attn_rows *r, int i)
{
    float x[ATTN_LANES] = {0}, top = r->top[i];
    for (int j = p->first; j < p->last; j++) {
        x[j] = shaped_score(p, r, i, j);
        top = x[j] > top ? x[j] : top;
    }
    for (int j = p->first; j < p->last; j++)
        x[j] = exp_one(x[j] - top);
    r->rescale[i] = exp_one(r->top[i] - top);
    r->sum[i] = fmaf(r->sum[i], r->rescale[i], tree_sum(x));
    r->top[i] = top;
    memcpy(r->weight + (size_t)i * ATTN_LANES, x, sizeof x);
}

static void softmax(const struct attn_page *p, const struct attn_rows *r)
{
    for (int i = 0; i < r->n; i++)
        softmax_row(p, r, i);
}

static void merge(float *a, const float *b, float scale_a, float scale_b, int n)
{
    for (int i = 0; i < n; i++)
        a[i] = fmaf(b[i], scale_b, a[i] * scale_a);
}

static void exp_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = exp_one(x[i]);
}

static void to_f16(const float *x, uint16_t *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = half_from_float(x[i]);
}

static void to_bf16(const float *x, uint16_t *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = bfloat_from_float(x[i]);
}

void attn_ops_c(struct attn_ops *ops)
{
    *ops = (struct attn_ops)ATTN_OPS;
}
