#include "attention.h"

#include "kernels/attn_exp.h"
#include "kernels/attn_half.h"
#include "kernels/attn_ops.h"
#include "layout.h"
#include "mem.h"

#define MAX_SIZE 4096 /* of a head; so that sizes of pages cannot overflow */

static const struct {
    const char *name;
    int element_bytes; /* 0: groups with a scale */
} types[KV_TYPE_COUNT] = {
    [KV_F16] = {"f16", 2},
    [KV_BF16] = {"bf16", 2},
    [KV_F32] = {"f32", 4},
    [KV_Q8_0] = {"q8_0", 0},
};

const char *kv_type_name(enum kv_type t)
{
    return types[t].name;
}

int kv_type_from_name(const char *name)
{
    for (int i = 0; i < KV_TYPE_COUNT; i++)
        if (!strcmp(name, types[i].name))
            return i;
    return -1;
}

/* ---- shapes and sizes ---- */

static int check_sizes(const struct attn_shape *s, struct err *err)
{
    if (s->key_size < 1 || s->key_size > MAX_SIZE || s->value_size < 1 || s->value_size > MAX_SIZE)
        return err_set(err, ERR_UNSUPPORTED,
                       "attention with head sizes %d (keys) and %d (values): 1 to %d are supported",
                       s->key_size, s->value_size, MAX_SIZE);
    if ((unsigned)s->type >= KV_TYPE_COUNT)
        return err_set(err, ERR_UNSUPPORTED, "a cache of element type %d: there is no such type",
                       (int)s->type);
    return 0;
}

int attn_check(const struct attn_shape *s, struct err *err)
{
    if (s->kv_heads < 1 || s->heads < 1 || s->heads % s->kv_heads)
        return err_set(err, ERR_UNSUPPORTED,
                       "attention with %d query heads over %d kv heads: the first must be a "
                       "multiple of the second",
                       s->heads, s->kv_heads);
    if (s->window < 0)
        return err_set(err, ERR_UNSUPPORTED, "an attention window of %d positions", s->window);
    if (!isfinite(s->scale) || !isfinite(s->softcap) || s->softcap < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "attention with scores scaled by %g and capped at %g: both must be finite, "
                       "the cap not negative",
                       (double)s->scale, (double)s->softcap);
    return check_sizes(s, err);
}

struct attn_layout attn_layout(const struct attn_shape *s)
{
    size_t element = (size_t)types[s->type].element_bytes;
    size_t pad = mem_round_up((size_t)s->value_size, element ? 16 : ATTN_GROUP);
    struct attn_layout l = {.value_pad = (int)pad};
    size_t value_bytes;
    if (element) {
        l.key_bytes = (size_t)s->key_size * ATTN_LANES * element;
        value_bytes = pad * ATTN_LANES * element;
    } else {
        l.key_bytes = mem_round_up((size_t)s->key_size, ATTN_GROUP) / ATTN_GROUP * ATTN_GROUP_BYTES;
        value_bytes = pad / ATTN_GROUP * ATTN_GROUP_BYTES;
    }
    l.head_bytes = l.key_bytes + value_bytes;
    return l;
}

size_t attn_block_bytes(const struct attn_shape *s)
{
    size_t bytes;
    if (attn_check(s, NULL) || !mem_mul(attn_layout(s).head_bytes, (size_t)s->kv_heads, &bytes))
        return 0;
    return bytes;
}

/* ---- storing a position ---- */

/* Where one head's key or value of one position goes. */
struct slot {
    uint8_t *page;
    int lane;
    bool is_key;
    int size, pad;
};

/* The distance of neighbouring dimensions, and of the first from the page's start, in elements. */
static size_t slot_first(const struct slot *t)
{
    return t->is_key ? (size_t)t->lane : (size_t)t->lane * (size_t)t->pad;
}

static size_t slot_step(const struct slot *t)
{
    return t->is_key ? ATTN_LANES : 1;
}

typedef void convert_fn(const float *x, uint16_t *out, int n);

static void store_halves(const struct slot *t, const float *x, convert_fn *convert)
{
    uint16_t *to = (uint16_t *)t->page + slot_first(t), part[64];
    size_t step = slot_step(t);
    for (int d = 0; d < t->size; d += 64) {
        int n = t->size - d < 64 ? t->size - d : 64;
        convert(x + d, part, n);
        for (int i = 0; i < n; i++)
            to[(size_t)(d + i) * step] = part[i];
    }
    for (int d = t->size; d < t->pad; d++)
        to[(size_t)d * step] = 0;
}

static void store_f16(const struct slot *t, const float *x)
{
    store_halves(t, x, attn_ops()->to_f16);
}

static void store_bf16(const struct slot *t, const float *x)
{
    store_halves(t, x, attn_ops()->to_bf16);
}

static void store_f32(const struct slot *t, const float *x)
{
    float *to = (float *)t->page + slot_first(t);
    size_t step = slot_step(t);
    for (int d = 0; d < t->pad; d++)
        to[(size_t)d * step] = d < t->size ? x[d] : 0.0f;
}

/* The scale of n values: their greatest magnitude / 127, as f16 (the greatest f16 at most). */
static uint16_t group_scale(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most / 127.0f;
    return half_from_float(scale < 65504.0f ? scale : 65504.0f);
}

static int8_t quantise(float x, float scale)
{
    float q = x / scale;
    if (!(q > -127.0f))
        q = -127.0f;
    return (int8_t)lrintf(q < 127.0f ? q : 127.0f);
}

static void store_group(const struct slot *t, uint8_t *group, const float *x, int n)
{
    uint16_t half = n > 0 ? group_scale(x, n) : 0;
    float scale = half_to_float(half);
    memcpy(group + 2 * t->lane, &half, sizeof half);
    int8_t *to = (int8_t *)group + ATTN_LANES * 2;
    to += t->is_key ? t->lane : t->lane * ATTN_GROUP;
    for (int d = 0; d < ATTN_GROUP; d++)
        to[(size_t)d * slot_step(t)] = d < n && scale > 0 ? quantise(x[d], scale) : 0;
}

static void store_q8_0(const struct slot *t, const float *x)
{
    for (int d = 0; d < t->size; d += ATTN_GROUP) {
        int n = t->size - d < ATTN_GROUP ? t->size - d : ATTN_GROUP;
        store_group(t, t->page + (size_t)(d / ATTN_GROUP) * ATTN_GROUP_BYTES, x + d, n);
    }
}

static void (*const store[KV_TYPE_COUNT])(const struct slot *, const float *) = {
    [KV_F16] = store_f16,
    [KV_BF16] = store_bf16,
    [KV_F32] = store_f32,
    [KV_Q8_0] = store_q8_0,
};

void attn_store(const struct attn_shape *s, void *block, int slot, const float *k, const float *v)
{
    attn_store_heads(s, block, slot, k, v, (struct attn_heads){0, s->kv_heads});
}

void attn_store_heads(const struct attn_shape *s, void *block, int slot, const float *k,
                      const float *v, struct attn_heads heads)
{
    struct attn_layout l = attn_layout(s);
    for (int h = heads.first; h < heads.last; h++) {
        uint8_t *page = (uint8_t *)block + (size_t)h * l.head_bytes;
        struct slot key = {page, slot, true, s->key_size, s->key_size};
        struct slot value = {page + l.key_bytes, slot, false, s->value_size, l.value_pad};
        store[s->type](&key, k + (size_t)h * s->key_size);
        store[s->type](&value, v + (size_t)h * s->value_size);
    }
}

/* ---- exp ---- */

float attn_exp(float x)
{
    return exp_one(x);
}

void attn_exp_n(float *x, size_t n)
{
    attn_ops()->exp(x, n);
}
