#include "attn_ops.h"

#include <pthread.h>

static struct attn_ops table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void (*const fill_level[ISA_COUNT])(struct attn_ops *) = {
#define ISA(id, name, needs) [id] = attn_ops_##name,
#include "isa.def"
#undef ISA
};

void attn_ops_fill(struct attn_ops *ops, enum isa most)
{
    enum isa best = cpu_isa() < most ? cpu_isa() : most;
    for (int level = ISA_C; level <= (int)best; level++)
        fill_level[level](ops);
}

static void fill_default(void)
{
    attn_ops_fill(&table, ISA_COUNT - 1);
}

const struct attn_ops *attn_ops(void)
{
    pthread_once(&once, fill_default);
    return &table;
}

void attn_set_isa(enum isa most)
{
    pthread_once(&once, fill_default);
    attn_ops_fill(&table, most);
}
