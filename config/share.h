#ifndef CONFIG_SHARE_H
#define CONFIG_SHARE_H

#include "mem.h"

#include <stdatomic.h>

/* Chunks of a phase that each worker begins with: one run of them, so that what it reads lies
 * together, and is what it read (or wrote first) the last time. Who is through helps the others,
 * the next worker first. The pool counts chunks; which one comes next is decided here. */
struct share {
    _Alignas(MEM_LINE) atomic_int next;
    int last;
};

/* Before the phase. shares: [threads]. */
void shares_set(struct share *shares, int threads, int chunks);
/* The next chunk for this worker. There is one: as many are taken as there are. */
int shares_take(struct share *shares, int threads, int worker);

#endif
