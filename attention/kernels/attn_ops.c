#include "attn_ops.h"

#include <pthread.h>

static struct attn_ops table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void attn_ops_fill(struct attn_ops *ops, enum isa most)
{
    enum isa best = cpu_isa() < most ? cpu_isa() : most;
    attn_ops_c(ops);
#if defined(__x86_64__)
    if (best >= ISA_AVX2)
        attn_ops_avx2(ops);
    if (best >= ISA_AVX512)
        attn_ops_avx512(ops);
#else
    (void)best;
#endif
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
