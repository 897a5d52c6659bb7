#include "jinja_str.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return mix(h);
}

/* Numbers that are equal hash alike, whatever their type. */
static uint64_t hash_number(struct jj_value v)
{
    int64_t i;
    if (jj_as_int(v, &i))
        return mix((uint64_t)i);
    double d = v.real;
    if (d >= -0x1p63 && d < 0x1p63 && d == floor(d))
        return mix((uint64_t)(int64_t)d);
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return mix(bits);
}

static bool hash_tuple(const struct jj_seq *s, uint64_t *hash)
{
    uint64_t h = 7;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t one;
        /* A tuple within a tuple is no key: that bounds the recursion, and nobody needs it. */
        if (s->items[i].type == JJ_SEQ || !jj_hash(s->items[i], &one))
            return false;
        h = mix(h + one);
    }
    *hash = h;
    return true;
}

bool jj_hash(struct jj_value v, uint64_t *hash)
{
    switch (v.type) {
    case JJ_STR:
        *hash = hash_bytes(v.str->bytes, v.str->n);
        return true;
    case JJ_BOOL:
    case JJ_INT:
    case JJ_FLOAT:
        *hash = hash_number(v);
        return true;
    case JJ_SEQ:
        return v.seq->kind == JJ_TUPLE && hash_tuple(v.seq, hash);
    case JJ_DICT:
        return false;
    default:
        *hash = mix(v.type);
        return true;
    }
}

struct jj_dict *jj_dict_new(struct jj_rt *rt)
{
    static const struct jj_dict none; /* never written: setting does nothing after a failure */
    struct jj_dict *d = jj_alloc(rt, 1, sizeof *d);
    return d ? d : (struct jj_dict *)&none;
}

static void index_put(struct jj_dict *d, size_t entry)
{
    size_t slot = d->entries[entry].hash & (d->slots - 1);
    while (d->index[slot])
        slot = (slot + 1) & (d->slots - 1);
    d->index[slot] = (uint32_t)entry + 1;
}

static void index_rebuild(struct jj_dict *d)
{
    memset(d->index, 0, d->slots * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
}

static bool dict_grow(struct jj_rt *rt, struct jj_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct jj_entry *entries = jj_alloc(rt, cap, sizeof *entries);
    uint32_t *index = jj_alloc(rt, cap * 2, sizeof *index);
    if (!entries || !index)
        return false;
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    *d = (struct jj_dict){
        .entries = entries, .n = d->n, .cap = cap, .index = index, .slots = cap * 2};
    index_rebuild(d);
    return true;
}

/* The slot of the key in index, or of the empty place where it would be. Probes count as steps, so
 * that keys made to collide cannot stall a render. */
static bool dict_slot(struct jj_rt *rt, const struct jj_dict *d, struct jj_value key, uint64_t hash,
                      size_t *slot)
{
    *slot = hash & (d->slots - 1);
    while (d->index[*slot] && jj_step(rt, 1)) {
        const struct jj_entry *e = &d->entries[d->index[*slot] - 1];
        if (e->hash == hash && jj_equal(rt, e->key, key))
            return true;
        *slot = (*slot + 1) & (d->slots - 1);
    }
    return false;
}

static bool key_hash(struct jj_rt *rt, struct jj_value key, uint64_t *hash)
{
    if (jj_hash(key, hash))
        return !rt->failed;
    jj_fail(rt, ERR_ARG, "unhashable type: '%s'", jj_type_name(key));
    return false;
}

struct jj_value *jj_dict_find(struct jj_rt *rt, const struct jj_dict *d, struct jj_value key)
{
    uint64_t hash;
    size_t slot;
    if (!key_hash(rt, key, &hash) || !d->n || !dict_slot(rt, d, key, hash, &slot))
        return NULL;
    return &d->entries[d->index[slot] - 1].value;
}

struct jj_value *jj_dict_find_name(struct jj_rt *rt, const struct jj_dict *d, const char *name)
{
    struct jj_str s = {.bytes = name, .n = strlen(name)};
    return jj_dict_find(rt, d, jj_string(&s));
}

void jj_dict_set(struct jj_rt *rt, struct jj_dict *d, struct jj_value key, struct jj_value value)
{
    uint64_t hash;
    size_t slot;
    if (!key_hash(rt, key, &hash) || !jj_step(rt, 1))
        return;
    if (d->n == d->cap && !dict_grow(rt, d))
        return;
    if (dict_slot(rt, d, key, hash, &slot)) {
        d->entries[d->index[slot] - 1].value = value;
        return;
    }
    if (rt->failed)
        return;
    d->entries[d->n] = (struct jj_entry){.key = key, .value = value, .hash = hash};
    d->index[slot] = (uint32_t)++d->n;
}

bool jj_dict_remove(struct jj_rt *rt, struct jj_dict *d, struct jj_value key,
                    struct jj_value *value)
{
    struct jj_value *found = jj_dict_find(rt, d, key);
    if (!found || !jj_step(rt, d->n))
        return false;
    *value = *found;
    struct jj_entry *e = (struct jj_entry *)((char *)found - offsetof(struct jj_entry, value));
    size_t at = (size_t)(e - d->entries);
    memmove(e, e + 1, (d->n - at - 1) * sizeof *e);
    d->n--;
    index_rebuild(d);
    return true;
}

struct jj_dict *jj_dict_copy(struct jj_rt *rt, const struct jj_dict *d)
{
    struct jj_dict *copy = jj_dict_new(rt);
    for (size_t i = 0; i < d->n; i++)
        jj_dict_set(rt, copy, d->entries[i].key, d->entries[i].value);
    return copy;
}

static struct jj_value view_item(struct jj_rt *rt, const struct jj_entry *e, enum jj_seq_kind kind)
{
    if (kind == JJ_KEYS)
        return e->key;
    return kind == JJ_VALUES ? e->value : jj_pair(rt, e->key, e->value);
}

struct jj_seq *jj_dict_view(struct jj_rt *rt, const struct jj_dict *d, enum jj_seq_kind kind)
{
    struct jj_seq *view = jj_seq_new(rt, kind);
    for (size_t i = 0; i < d->n; i++)
        jj_seq_add(rt, view, view_item(rt, &d->entries[i], kind));
    return view;
}
