#ifndef CONFIG_POOL_H
#define CONFIG_POOL_H

#include "err.h"
#include "numa.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The worker pool: one caller and threads - 1 helpers claim chunks of a phase from one counter.
 * A phase ends when its chunks are done, so a helper that the kernel has taken off its core holds
 * up nobody unless it holds a chunk. Waiting spins for some microseconds, then sleeps: an idle
 * pool uses no CPU. One thread (the engine's) calls pool_run; never two at once. */
struct pool;

/* Works on items [first, last). `worker` is in [0, pool_threads) and belongs to one thread for the
 * whole phase: use it to pick scratch memory. */
typedef void pool_fn(void *arg, int worker, int64_t first, int64_t last);

/* nice: how much the helpers give way to other threads (setpriority); 0: not at all. */
int pool_create(int threads, int nice, struct pool **out, struct err *err);
void pool_destroy(struct pool *p); /* accepts NULL */
int pool_threads(const struct pool *p);
/* Where there are several memory nodes, every worker stays on the CPUs of its own (numa_node), the
 * thread that calls pool_run from its first call on. Before the first pool_run. */
void pool_place(struct pool *p, const struct numa *numa);
int pool_nodes(const struct pool *p); /* that its workers are kept on; 1: wherever they like */

/* Runs fn over [0, items) in chunks of at most `chunk` items, and returns when all are done. What
 * the workers wrote is visible to the caller and to the next phase. */
void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t items, int64_t chunk);

/* What a chunk waits for that others of the same phase do: open when all parts are done. Chunks are
 * claimed in order, so one may wait for those before it, and never for a later one. The latch must
 * live as long as the phase. Zeroed, it is open. */
struct latch {
    _Atomic uint32_t left;     /* futex */
    _Atomic uint32_t sleepers; /* on it */
};

/* Before the phase. */
void latch_set(struct latch *l, int parts);
/* So many parts are done; true: no more are left. What was written before is visible to who gets
 * true and to who waits. Any worker. */
bool latch_count(struct latch *l, int parts);
/* In a chunk, by the worker that runs it: spins for some microseconds, then sleeps. */
void pool_wait(struct pool *p, int worker, struct latch *l);

#endif
