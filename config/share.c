#include "share.h"

#include <stdint.h>

void shares_set(struct share *shares, int threads, int chunks)
{
    for (int64_t i = 0; i < threads; i++) {
        atomic_init(&shares[i].next, (int)(chunks * i / threads));
        shares[i].last = (int)(chunks * (i + 1) / threads);
    }
}

int shares_take(struct share *shares, int threads, int worker)
{
    for (int i = worker;; i = (i + 1) % threads) {
        struct share *s = &shares[i];
        if (atomic_load_explicit(&s->next, memory_order_relaxed) >= s->last)
            continue;
        int chunk = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (chunk < s->last)
            return chunk;
    }
}
