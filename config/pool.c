#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Long enough to bridge the gap between two phases of a decode step, short enough that a thread
 * which waits for a descheduled one does not burn its time slice: with a busy neighbour, 60 us made
 * steps 10 % longer, and in peace none shorter. */
#define SPIN_NS 20000

/* A thread that has waited so long looks whether the one it waits for runs at all; chunks take 10
 * to 200 us. 50 us to 400 us: the same. */
#define PATIENCE_NS 100000
#define STILL_NS    10000

struct helper {
    struct pool *pool;
    int worker;
    pthread_t thread;
};

/* Who works as this worker, and where it began its chunk. */
struct holder {
    _Alignas(64) _Atomic bool holds;
    _Atomic pthread_t thread;
    _Atomic int cpu;
};

/* A ticket is phase << 32 | next chunk: claiming a chunk and checking that it belongs to the phase
 * whose job was read is one atomic step, so a late helper can never run a stale job. */
struct pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) struct latch end;       /* opens when the chunks of this phase are done */
    _Alignas(64) _Atomic uint32_t phase; /* futex: helpers sleep on it between phases */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    /* The job of the running phase. Written while no chunk can be claimed, read after a claim. */
    _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    _Atomic int64_t items, chunk;
    _Atomic uint32_t chunks;
    int threads, started, nice;
    struct helper *helpers;
    struct holder *holders; /* [threads] */
    _Atomic bool lending;   /* somebody moves threads: one at a time may */
    struct holder *guest;   /* on the caller's core; NULL: none */
    struct numa *numa;      /* NULL: threads run where they like */
    pthread_t placed;       /* the caller that is on its node, if any */
    bool has_placed;
};

/* False: `patience` nanoseconds have passed; 0: for ever. */
static bool futex_wait(_Atomic uint32_t *word, uint32_t expected, long patience)
{
    const struct timespec t = {.tv_nsec = patience};
    return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, patience ? &t : NULL, NULL, 0) ==
               0 ||
           errno != ETIMEDOUT;
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *word differs from `old` or the time is up. */
static bool spin_while_equal(_Atomic uint32_t *word, uint32_t old)
{
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old)
                return true;
            relax();
        }
    } while (now_ns() < end);
    return false;
}

/* ---- a chunk whose thread has lost its core ----
 *
 * With a busy neighbour a thread may wait for its core for some milliseconds with a chunk in its
 * hands, while the threads that wait for the chunk leave theirs idle, for times too short for the
 * kernel to move anything there. So a thread that has waited long lends its own core to the stuck
 * one; and since two of them on one core would stay there, the helper of the two takes the core
 * that is contested, with nothing in its hands. */

static void hold_chunk(struct pool *p, int worker)
{
    struct holder *h = &p->holders[worker];
    atomic_store(&h->cpu, sched_getcpu());
    atomic_store(&h->holds, true);
}

/* To that core, now: where the thread may run stays as it is. */
static void move_thread(pthread_t thread, int cpu)
{
    cpu_set_t old, one;
    CPU_ZERO(&one);
    if (pthread_getaffinity_np(thread, sizeof old, &old) || !CPU_ISSET(cpu, &old))
        return;
    CPU_SET(cpu, &one);
    if (pthread_setaffinity_np(thread, sizeof one, &one) == 0)
        pthread_setaffinity_np(thread, sizeof old, &old);
}

static int64_t cpu_time(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool stands_still(pthread_t thread)
{
    clockid_t clock;
    if (pthread_getcpuclockid(thread, &clock))
        return false;
    int64_t before = cpu_time(clock), end = now_ns() + STILL_NS;
    while (now_ns() < end)
        relax();
    return cpu_time(clock) == before;
}

/* Lends the core of `worker`, who waits, to a holder that stands still elsewhere. */
static bool lend_to(struct pool *p, struct holder *h, int worker)
{
    pthread_t thread = atomic_load(&h->thread);
    int theirs = atomic_load(&h->cpu), ours = sched_getcpu();
    if (theirs < 0 || ours < 0 || theirs == ours || !stands_still(thread) ||
        !atomic_load(&h->holds))
        return false;
    move_thread(thread, ours);
    if (worker == 0)
        p->guest = h;
    else
        move_thread(pthread_self(), theirs);
    return true;
}

/* False: nobody holds a chunk. */
static bool lend_core(struct pool *p, int worker)
{
    bool held = false;
    if (atomic_exchange(&p->lending, true))
        return true;
    for (int i = 0; i < p->threads; i++) {
        if (!atomic_load(&p->holders[i].holds))
            continue;
        held = true;
        if (lend_to(p, &p->holders[i], worker))
            break;
    }
    atomic_store(&p->lending, false);
    return held;
}

/* The helper that the caller has lent its core to goes back to where it came from; not while it
 * is on its way by somebody else's hand, who would take its one core for all that it may have. */
static void send_home(struct pool *p)
{
    struct holder *guest = p->guest;
    p->guest = NULL;
    if (!guest || atomic_exchange(&p->lending, true))
        return;
    move_thread(atomic_load(&guest->thread), atomic_load(&guest->cpu));
    atomic_store(&p->lending, false);
}

/* ---- latches ---- */

void latch_set(struct latch *l, int parts)
{
    atomic_store(&l->left, (uint32_t)parts);
}

bool latch_count(struct latch *l, int parts)
{
    if (atomic_fetch_sub(&l->left, (uint32_t)parts) != (uint32_t)parts)
        return false;
    if (atomic_load(&l->sleepers))
        futex_wake(&l->left, INT_MAX);
    return true;
}

/* Sleeps until a part is done, or a little: both are looked at again. */
static void latch_sleep(struct pool *p, struct latch *l, int worker)
{
    atomic_fetch_add(&l->sleepers, 1);
    uint32_t left = atomic_load(&l->left);
    if (left != 0)
        while (!futex_wait(&l->left, left, PATIENCE_NS) && lend_core(p, worker))
            ;
    atomic_fetch_sub(&l->sleepers, 1);
}

static void wait_for(struct pool *p, struct latch *l, int worker)
{
    for (uint32_t left; (left = atomic_load(&l->left)) != 0;)
        if (!spin_while_equal(&l->left, left))
            latch_sleep(p, l, worker);
}

/* Claims and runs chunks of `phase` until none is left. */
static void work(struct pool *p, uint32_t phase, int worker)
{
    for (;;) {
        uint64_t ticket = atomic_load(&p->ticket);
        uint32_t chunks = atomic_load(&p->chunks);
        uint32_t next = (uint32_t)ticket;
        if ((uint32_t)(ticket >> 32) != phase || next >= chunks)
            return;
        if (!atomic_compare_exchange_weak(&p->ticket, &ticket, ticket + 1))
            continue;
        /* Ours: the phase cannot end before this chunk is done, so the job stays as it is. */
        int64_t size = atomic_load(&p->chunk), items = atomic_load(&p->items);
        int64_t first = (int64_t)next * size;
        int64_t last = first + size < items ? first + size : items;
        hold_chunk(p, worker);
        atomic_load (&p->fn)(atomic_load(&p->arg), worker, first, last);
        atomic_store(&p->holders[worker].holds, false);
        latch_count(&p->end, 1);
    }
}

static void *helper_main(void *data)
{
    struct helper *h = data;
    struct pool *p = h->pool;
    uint32_t seen = 0;
    atomic_store(&p->holders[h->worker].thread, pthread_self());
    if (p->nice)
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), p->nice);
    while (!atomic_load(&p->stop)) {
        if (!spin_while_equal(&p->phase, seen)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (!futex_wait(&p->phase, seen, PATIENCE_NS) && lend_core(p, h->worker))
                ;
            if (atomic_load(&p->phase) == seen)
                futex_wait(&p->phase, seen, 0);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        uint32_t phase = atomic_load(&p->phase);
        if (phase != seen && !atomic_load(&p->stop))
            work(p, phase, h->worker);
        seen = phase;
    }
    return NULL;
}

static int start_helpers(struct pool *p, struct err *err)
{
    /* Signals belong to the loop thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (int i = 1; i < p->threads && rc == 0; i++) {
        struct helper *h = &p->helpers[i];
        *h = (struct helper){.pool = p, .worker = i};
        rc = pthread_create(&h->thread, NULL, helper_main, h);
        if (rc == 0)
            p->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set(err, ERR_IO, "cannot start worker thread %d of %d: %s", p->started + 1,
                       p->threads - 1, strerror(rc));
    return 0;
}

int pool_create(int threads, int nice, struct pool **out, struct err *err)
{
    *out = NULL;
    if (threads < 1 || threads > 1024)
        return err_set(err, ERR_ARG, "the worker pool needs 1 to 1024 threads, not %d", threads);
    struct pool *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for the worker pool");
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->nice = nice;
    p->helpers = calloc((size_t)threads, sizeof *p->helpers);
    p->holders = aligned_alloc(64, (size_t)threads * sizeof *p->holders);
    if (!p->helpers || !p->holders) {
        pool_destroy(p);
        return err_set(err, ERR_NOMEM, "no memory for the worker pool");
    }
    memset(p->holders, 0, (size_t)threads * sizeof *p->holders);
    int rc = start_helpers(p, err);
    if (rc) {
        pool_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->phase, 1);
    futex_wake(&p->phase, INT_MAX);
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    free(p->holders);
    free(p->numa);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

/* ---- memory nodes ---- */

/* If the system refuses, the thread runs where it likes, as on a machine with one node. */
static void place_thread(const struct pool *p, int worker, pthread_t thread)
{
    size_t bytes = CPU_ALLOC_SIZE(NUMA_MOST_CPUS);
    cpu_set_t *mask = CPU_ALLOC(NUMA_MOST_CPUS);
    int node = numa_node(p->numa, worker, p->threads);
    if (!mask)
        return;
    CPU_ZERO_S(bytes, mask);
    for (int i = 0; i < NUMA_MOST_CPUS; i++)
        if (p->numa->node_of[i] == node)
            CPU_SET_S((size_t)i, bytes, mask);
    pthread_setaffinity_np(thread, bytes, mask);
    CPU_FREE(mask);
}

void pool_place(struct pool *p, const struct numa *numa)
{
    if (numa->nodes < 2 || p->threads < 2 || p->numa || !(p->numa = malloc(sizeof *numa)))
        return;
    *p->numa = *numa;
    for (int i = 1; i <= p->started; i++)
        place_thread(p, i, p->helpers[i].thread);
}

int pool_nodes(const struct pool *p)
{
    return p->numa ? p->numa->nodes : 1;
}

/* The model is loaded by one thread and run by another. */
static void place_caller(struct pool *p)
{
    if (p->has_placed && pthread_equal(p->placed, pthread_self()))
        return;
    p->placed = pthread_self();
    p->has_placed = true;
    place_thread(p, 0, p->placed);
}

/* ---- a phase ---- */

void pool_wait(struct pool *p, int worker, struct latch *l)
{
    if (atomic_load(&l->left) == 0)
        return;
    /* Nobody need lend a core to who waits. */
    atomic_store(&p->holders[worker].holds, false);
    wait_for(p, l, worker);
    hold_chunk(p, worker);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t items, int64_t chunk)
{
    if (items <= 0)
        return;
    if (p->numa)
        place_caller(p);
    if (chunk < 1)
        chunk = 1;
    if ((items - 1) / chunk + 1 > UINT32_MAX / 2)
        chunk = items / (UINT32_MAX / 4) + 1;
    uint32_t chunks = (uint32_t)((items - 1) / chunk + 1);
    if (p->threads == 1 || chunks == 1) {
        for (int64_t first = 0; first < items; first += chunk)
            fn(arg, 0, first, first + chunk < items ? first + chunk : items);
        return;
    }
    uint32_t phase = atomic_load(&p->phase) + 1;
    atomic_store(&p->holders[0].thread, pthread_self());
    atomic_store(&p->fn, fn);
    atomic_store(&p->arg, arg);
    atomic_store(&p->items, items);
    atomic_store(&p->chunk, chunk);
    latch_set(&p->end, (int)chunks);
    /* A late helper of the last phase holds no chunk, and its phase number is stale: between these
     * two stores it can claim nothing. */
    atomic_store(&p->ticket, (uint64_t)phase << 32);
    atomic_store(&p->chunks, chunks);
    atomic_store(&p->phase, phase);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->phase, INT_MAX);
    work(p, phase, 0);
    wait_for(p, &p->end, 0);
    send_home(p);
}
