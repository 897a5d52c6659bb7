#include "arena.h"
#include "mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

/* The share of a slab that no block of some group can use, in 1/1024. */
static size_t slab_waste(const struct kv_arena *a, size_t slab_bytes)
{
    size_t worst = 0;
    for (int g = 0; g < a->groups; g++) {
        size_t waste = slab_bytes % a->group[g].block_bytes * 1024 / slab_bytes;
        worst = waste > worst ? waste : worst;
    }
    return worst;
}

/* A small multiple of the largest block that wastes least, as long as there are many slabs. */
static size_t slab_choose(const struct kv_arena *a, size_t arena_bytes)
{
    size_t largest = 0;
    for (int g = 0; g < a->groups; g++)
        largest = a->group[g].block_bytes > largest ? a->group[g].block_bytes : largest;
    size_t best = largest;
    for (size_t m = 2; m <= 8 && arena_bytes / (m * largest) >= 64; m++)
        if (slab_waste(a, m * largest) < slab_waste(a, best))
            best = m * largest;
    return best;
}

int kv_arena_plan(struct kv_arena *a, const struct kv_config *config, struct err *err)
{
    memset(a, 0, sizeof *a);
    if (config->groups < 1 || config->groups > KV_MAX_GROUPS)
        return err_set(err, ERR_ARG, "KV cache: %d layer groups, expected 1 to %d", config->groups,
                       KV_MAX_GROUPS);
    a->groups = config->groups;
    for (int g = 0; g < a->groups; g++) {
        size_t bytes = config->group[g].block_bytes;
        if (bytes == 0 || bytes > SIZE_MAX / 64)
            return err_set(err, ERR_ARG, "KV cache: a block of group %d has %zu bytes", g, bytes);
        a->group[g].block_bytes = mem_round_up(bytes, MEM_LINE);
    }
    a->slab_bytes = slab_choose(a, config->arena_bytes);
    size_t slabs = config->arena_bytes / a->slab_bytes;
    if (slabs < (size_t)a->groups)
        return err_set(err, ERR_ARG,
                       "KV cache: %zu bytes are not enough for one block of each of %d layer "
                       "groups; at least %zu are needed",
                       config->arena_bytes, a->groups, a->slab_bytes * (size_t)a->groups);
    for (int g = 0; g < a->groups; g++) {
        size_t fit = a->slab_bytes / a->group[g].block_bytes;
        if (slabs > INT32_MAX / (fit + 1))
            return err_set(err, ERR_LIMIT, "KV cache: too many blocks in %zu bytes",
                           config->arena_bytes);
        a->group[g].per_slab = (int)fit;
        a->stride = (int)fit > a->stride ? (int)fit : a->stride;
    }
    a->slabs = (int)slabs;
    return 0;
}

size_t kv_arena_overhead(const struct kv_arena *a)
{
    return (size_t)a->slabs * (sizeof *a->slab + (size_t)a->stride * sizeof(void *)) + 4 * MEM_LINE;
}

bool kv_arena_fits(const struct kv_arena *a, const int64_t *blocks)
{
    int64_t slabs = 0;
    for (int g = 0; g < a->groups; g++)
        slabs += (blocks[g] + a->group[g].per_slab - 1) / a->group[g].per_slab;
    return slabs <= a->slabs;
}

size_t kv_arena_free_blocks(const struct kv_arena *a, int group)
{
    const struct kv_arena_group *ag = &a->group[group];
    return (size_t)ag->holes + (size_t)a->free_slabs * (size_t)ag->per_slab;
}

/* ---- lists of slabs ---- */

static void slab_push(struct kv_arena *a, int *list, int slab)
{
    a->slab[slab].prev = -1;
    a->slab[slab].next = *list;
    if (*list >= 0)
        a->slab[*list].prev = slab;
    *list = slab;
}

static void slab_unlink(struct kv_arena *a, int *list, int slab)
{
    struct kv_slab *s = &a->slab[slab];
    if (s->prev >= 0)
        a->slab[s->prev].next = s->next;
    else
        *list = s->next;
    if (s->next >= 0)
        a->slab[s->next].prev = s->prev;
}

int kv_arena_init(struct kv_arena *a, struct err *err)
{
    a->bytes = mem_alloc((size_t)a->slabs, a->slab_bytes);
    a->slab = mem_alloc((size_t)a->slabs, sizeof *a->slab);
    a->owner = mem_alloc((size_t)a->slabs * (size_t)a->stride, sizeof *a->owner);
    if (!a->bytes || !a->slab || !a->owner)
        return err_set(err, ERR_NOMEM, "KV cache: %zu bytes could not be had",
                       (size_t)a->slabs * a->slab_bytes);
    a->first_free = -1;
    for (int g = 0; g < a->groups; g++)
        a->group[g].partial = -1;
    for (int i = a->slabs - 1; i >= 0; i--) { /* the lowest is taken first: pages stay untouched */
        a->slab[i].group = -1;
        slab_push(a, &a->first_free, i);
    }
    a->free_slabs = a->slabs;
    return 0;
}

void kv_arena_finish(struct kv_arena *a)
{
    mem_free(a->bytes);
    mem_free(a->slab);
    mem_free(a->owner);
}

/* ---- take and give ---- */

/* Bytes of another group's layout could be read as infinities by masked lanes: wipe them. */
static void slab_assign(struct kv_arena *a, int group)
{
    int slab = a->first_free;
    struct kv_slab *s = &a->slab[slab];
    slab_unlink(a, &a->first_free, slab);
    a->free_slabs--;
    if (s->group >= 0 && s->group != group)
        memset(a->bytes + (size_t)slab * a->slab_bytes, 0, a->slab_bytes);
    s->group = group;
    slab_push(a, &a->group[group].partial, slab);
    a->group[group].holes += a->group[group].per_slab;
}

static uint32_t take_hole(struct kv_arena *a, int group, struct kv_node *owner)
{
    struct kv_arena_group *ag = &a->group[group];
    int slab = ag->partial;
    struct kv_slab *s = &a->slab[slab];
    uint32_t block = (uint32_t)slab * (uint32_t)a->stride;
    while (a->owner[block])
        block++;
    a->owner[block] = owner;
    ag->holes--;
    ag->blocks++;
    if (++s->used == ag->per_slab)
        slab_unlink(a, &ag->partial, slab);
    return block;
}

void kv_arena_give(struct kv_arena *a, int group, uint32_t block)
{
    struct kv_arena_group *ag = &a->group[group];
    int slab = (int)(block / (uint32_t)a->stride);
    struct kv_slab *s = &a->slab[slab];
    assert(a->owner[block] && s->group == group);
    a->owner[block] = NULL;
    ag->holes++;
    ag->blocks--;
    if (s->used-- == ag->per_slab)
        slab_push(a, &ag->partial, slab);
    if (s->used > 0)
        return;
    slab_unlink(a, &ag->partial, slab);
    ag->holes -= ag->per_slab;
    slab_push(a, &a->first_free, slab);
    a->free_slabs++;
}

static int emptiest_slab(const struct kv_arena *a, int group)
{
    int best = a->group[group].partial;
    for (int i = best; i >= 0; i = a->slab[i].next)
        if (a->slab[i].used < a->slab[best].used)
            best = i;
    return best;
}

/* Moves the blocks of the group's emptiest slab into holes of its other slabs. */
static void empty_slab(struct kv_arena *a, int group)
{
    struct kv_arena_group *ag = &a->group[group];
    int slab = emptiest_slab(a, group);
    uint32_t first = (uint32_t)slab * (uint32_t)a->stride;
    slab_unlink(a, &ag->partial, slab); /* so that its own holes are not taken */
    for (uint32_t from = first; from < first + (uint32_t)ag->per_slab; from++) {
        struct kv_node *owner = a->owner[from];
        if (!owner)
            continue;
        uint32_t to = take_hole(a, group, owner);
        memcpy(kv_arena_at(a, group, to), kv_arena_at(a, group, from), ag->block_bytes);
        a->moved(a->moved_arg, owner, group, to);
        a->owner[from] = NULL;
        ag->blocks--;
        a->slab[slab].used--;
        ag->holes++;
    }
    ag->holes -= ag->per_slab;
    slab_push(a, &a->first_free, slab);
    a->free_slabs++;
}

static bool make_free_slab(struct kv_arena *a)
{
    for (int g = 0; g < a->groups; g++)
        if (a->group[g].holes >= a->group[g].per_slab) {
            empty_slab(a, g);
            return true;
        }
    return false;
}

uint32_t kv_arena_take(struct kv_arena *a, int group, struct kv_node *owner)
{
    if (a->group[group].holes == 0) {
        if (a->free_slabs == 0 && !make_free_slab(a))
            return KV_NO_BLOCK;
        slab_assign(a, group);
    }
    return take_hole(a, group, owner);
}

void kv_arena_set_owner(struct kv_arena *a, uint32_t block, struct kv_node *owner)
{
    a->owner[block] = owner;
}

/* ---- check ---- */

static void require(bool holds)
{
    if (!holds)
        abort();
}

void kv_arena_check(const struct kv_arena *a)
{
    int holes[KV_MAX_GROUPS] = {0}, blocks[KV_MAX_GROUPS] = {0}, free_slabs = 0;
    for (int i = 0; i < a->slabs; i++) {
        const struct kv_slab *s = &a->slab[i];
        int used = 0;
        for (int slot = 0; slot < a->stride; slot++)
            used += a->owner[(size_t)i * (size_t)a->stride + (size_t)slot] != NULL;
        require(used == s->used);
        free_slabs += used == 0;
        if (used == 0)
            continue;
        blocks[s->group] += used;
        holes[s->group] += a->group[s->group].per_slab - used;
    }
    require(free_slabs == a->free_slabs);
    for (int g = 0; g < a->groups; g++)
        require(holes[g] == a->group[g].holes && blocks[g] == a->group[g].blocks);
}
