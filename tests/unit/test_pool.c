#define _GNU_SOURCE
#include "testlib.h"

#include "mem.h"
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MOST_ITEMS   5000
#define MOST_WORKERS 8

/* What a phase must leave behind: every item done once, by a worker that nobody else is. The plain
 * (not atomic) fields are what the pool promises to order; a thread sanitizer checks that. */
struct phase {
    int64_t items, chunk;
    int done[MOST_ITEMS];
    int64_t worker_items[MOST_WORKERS];
    atomic_int busy[MOST_WORKERS];
    int64_t wrong; /* chunks that are empty, too long or outside; worker numbers shared */
    int threads;
};

static void do_items(void *arg, int worker, int64_t first, int64_t last)
{
    struct phase *p = arg;
    if (worker < 0 || worker >= p->threads || atomic_fetch_add(&p->busy[worker], 1) != 0) {
        __atomic_fetch_add(&p->wrong, 1, __ATOMIC_RELAXED);
        return;
    }
    if (first < 0 || first >= last || last > p->items || last - first > p->chunk)
        __atomic_fetch_add(&p->wrong, 1, __ATOMIC_RELAXED);
    for (int64_t i = first; i < last; i++)
        p->done[i]++;
    p->worker_items[worker] += last - first;
    atomic_fetch_sub(&p->busy[worker], 1);
}

static struct pool *must_create(int threads)
{
    struct pool *pool;
    struct err err = {0};
    if (pool_create(threads, 0, &pool, &err))
        fail_msg("%s", err.text);
    assert_int_equal(pool_threads(pool), threads);
    return pool;
}

static void run_phase(struct pool *pool, struct phase *p, int64_t items, int64_t chunk)
{
    p->items = items;
    p->chunk = chunk < 1 ? 1 : chunk;
    p->threads = pool_threads(pool);
    memset(p->done, 0, (size_t)items * sizeof *p->done);
    memset(p->worker_items, 0, sizeof p->worker_items);
    pool_run(pool, do_items, p, items, chunk);
    int64_t sum = 0;
    for (int w = 0; w < MOST_WORKERS; w++)
        sum += p->worker_items[w];
    assert_int_equal(p->wrong, 0);
    assert_int_equal(sum, items);
    for (int64_t i = 0; i < items; i++)
        assert_int_equal(p->done[i], 1);
}

static void every_item_is_done_once(void **state)
{
    static struct phase phase;
    uint64_t random = test_seed();
    (void)state;
    for (int threads = 1; threads <= MOST_WORKERS; threads++) {
        struct pool *pool = must_create(threads);
        for (int i = 0; i < 400; i++) {
            int64_t items = (int64_t)(test_random(&random) % MOST_ITEMS);
            int64_t chunk = (int64_t)(test_random(&random) % (i % 2 ? 8 : MOST_ITEMS));
            run_phase(pool, &phase, items, chunk);
        }
        pool_destroy(pool);
    }
}

/* The gaps are longer than a helper spins, so that it sleeps in some of them and not in others. */
static void sleeping_helpers_wake_up(void **state)
{
    static struct phase phase;
    uint64_t random = test_seed();
    struct pool *pool = must_create(4);
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct timespec gap = {.tv_nsec = (long)(test_random(&random) % 60000)};
        nanosleep(&gap, NULL);
        run_phase(pool, &phase, 1 + i % 64, 1);
    }
    pool_destroy(pool);
}

struct relay {
    int64_t value;
    int64_t copies[16];
};

static void copy_value(void *arg, int worker, int64_t first, int64_t last)
{
    struct relay *r = arg;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        r->copies[i] = r->value;
}

static void sum_copies(void *arg, int worker, int64_t first, int64_t last)
{
    struct relay *r = arg;
    (void)worker;
    (void)first;
    (void)last;
    r->value = 1;
    for (int i = 0; i < 16; i++)
        r->value += r->copies[i];
}

/* Thousands of phases back to back: what one wrote the next one reads, through any worker, and no
 * late helper runs an old job. */
static void phases_see_what_the_last_one_wrote(void **state)
{
    struct relay relay = {.value = 1};
    struct pool *pool = must_create(3);
    uint64_t expected = 1;
    (void)state;
    for (int i = 0; i < 5000; i++) {
        pool_run(pool, copy_value, &relay, 16, 1);
        pool_run(pool, sum_copies, &relay, 1, 1);
        expected = (expected * 16 + 1) & 0xffff;
        assert_int_equal(relay.value & 0xffff, expected);
        relay.value &= 0xffff;
    }
    pool_destroy(pool);
}

/* ---- latches ---- */

#define MOST_PARTS 64

/* The first n items do a part each and count; the next n wait, add all parts up and count for the
 * last n, which add up those sums. Plain fields: what a latch promises to order. */
struct chain {
    struct pool *pool;
    struct latch parts, sums;
    int n;
    int64_t part[MOST_PARTS], sum[MOST_PARTS], total[MOST_PARTS];
    atomic_int last_parts; /* how many were told that theirs was the last */
    long nap;              /* of the first item, ns */
};

static void do_links(void *arg, int worker, int64_t first, int64_t last)
{
    struct chain *c = arg;
    int i = (int)first % c->n;
    (void)last; /* chunks are of one item */
    if (first < c->n) {
        const struct timespec nap = {.tv_nsec = i == 0 ? c->nap : 0};
        nanosleep(&nap, NULL);
        c->part[i] = i + 1;
        if (latch_count(&c->parts, 1))
            atomic_fetch_add(&c->last_parts, 1);
    } else if (first < 2 * c->n) {
        pool_wait(c->pool, worker, &c->parts);
        c->sum[i] = 0;
        for (int j = 0; j < c->n; j++)
            c->sum[i] += c->part[j];
        latch_count(&c->sums, 2);
    } else {
        pool_wait(c->pool, worker, &c->sums);
        c->total[i] = 0;
        for (int j = 0; j < c->n; j++)
            c->total[i] += c->sum[j];
    }
}

static void run_chain(struct pool *pool, int n, long nap)
{
    struct chain c = {.pool = pool, .n = n, .nap = nap};
    latch_set(&c.parts, n);
    latch_set(&c.sums, 2 * n);
    pool_run(pool, do_links, &c, 3 * n, 1);
    int64_t sum = (int64_t)n * (n + 1) / 2;
    assert_int_equal(atomic_load(&c.last_parts), 1);
    for (int i = 0; i < n; i++)
        assert_int_equal(c.total[i], n * sum);
}

static void who_waits_for_a_latch_sees_what_was_done(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *pool = must_create(threads);
        for (int i = 0; i < 500; i++)
            run_chain(pool, 1 + i % MOST_PARTS, 0);
        pool_destroy(pool);
    }
}

/* Longer than a waiting worker spins, and longer than its patience. */
static void who_waits_long_for_a_latch_wakes_up(void **state)
{
    struct pool *pool = must_create(4);
    (void)state;
    for (int i = 0; i < 60; i++)
        run_chain(pool, 1 + i % 7, 15000L * i);
    pool_destroy(pool);
}

static void count_items(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    atomic_fetch_add((_Atomic int64_t *)arg, last - first);
}

static void huge_phases_are_cut_into_fewer_chunks(void **state)
{
    _Atomic int64_t count = 0;
    const int64_t items = (int64_t)1 << 40;
    struct pool *pool = must_create(2);
    (void)state;
    pool_run(pool, count_items, &count, items, items / 1000);
    assert_int_equal(count, items);
    pool_run(pool, count_items, &count, 0, 1);
    pool_run(pool, count_items, &count, -5, 1);
    assert_int_equal(count, items);
    pool_destroy(pool);
}

static void pools_come_and_go(void **state)
{
    _Atomic int64_t count = 0;
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct pool *pool = must_create(1 + i % 6);
        if (i % 3)
            pool_run(pool, count_items, &count, 10, 1);
        pool_destroy(pool);
    }
    assert_int_equal(count, 66 * 10);
    pool_destroy(NULL);
}

static void wrong_thread_counts_are_refused(void **state)
{
    static const int wrong[] = {0, -1, 1025};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err err = {0};
        struct pool *pool = (void *)&err;
        assert_int_equal(pool_create(wrong[i], 0, &pool, &err), ERR_ARG);
        assert_null(pool);
        assert_non_null(strstr(err.text, "1 to 1024"));
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void idle_pool_uses_no_cpu(void **state)
{
    _Atomic int64_t count = 0;
    struct pool *pool = must_create(4);
    struct timespec rest = {.tv_nsec = 200000000};
    (void)state;
    pool_run(pool, count_items, &count, 100, 1);
    double before = cpu_seconds();
    nanosleep(&rest, NULL); /* what is measured is the time itself */
    assert_true(cpu_seconds() - before < 0.02);
    pool_destroy(pool);
}

/* What a chunk finds: may its thread still run wherever the process may? */
struct wander {
    cpu_set_t allowed;
    _Atomic int64_t changed;
};

static void look_around(void *arg, int worker, int64_t first, int64_t last)
{
    struct wander *w = arg;
    cpu_set_t now;
    (void)worker;
    (void)first;
    (void)last;
    pthread_getaffinity_np(pthread_self(), sizeof now, &now);
    if (!CPU_EQUAL(&now, &w->allowed))
        atomic_fetch_add(&w->changed, 1);
}

/* Stands still with its chunk, as a thread does that has lost its core. */
static void stand_still(void *arg, int worker, int64_t first, int64_t last)
{
    struct wander *w = arg;
    struct timespec rest = {.tv_nsec = 1000000};
    look_around(w, worker, first, last);
    if (first % 7 == 0)
        nanosleep(&rest, NULL);
}

/* Those that wait for it lend it their core; where threads may run is as before. */
static void stuck_chunks_move_and_nothing_stays_changed(void **state)
{
    struct wander w = {0};
    struct pool *pool = must_create(4);
    (void)state;
    sched_getaffinity(0, sizeof w.allowed, &w.allowed);
    for (int i = 0; i < 200; i++)
        pool_run(pool, stand_still, &w, 9, 1);
    int64_t before, tries = 0;
    do { /* on a busy machine chunks may be stuck here too, or who moves a thread lose its core */
        const struct timespec rest = {.tv_nsec = 5000000};
        nanosleep(&rest, NULL);
        before = w.changed;
        pool_run(pool, look_around, &w, 100, 1);
    } while (w.changed != before && ++tries < 20);
    assert_int_equal(w.changed, before);
    cpu_set_t now;
    sched_getaffinity(0, sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &w.allowed));
    print_message("%d chunks ran while their thread was on its way\n", (int)w.changed);
    pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_done_once),
        cmocka_unit_test(sleeping_helpers_wake_up),
        cmocka_unit_test(phases_see_what_the_last_one_wrote),
        cmocka_unit_test(who_waits_for_a_latch_sees_what_was_done),
        cmocka_unit_test(who_waits_long_for_a_latch_wakes_up),
        cmocka_unit_test(huge_phases_are_cut_into_fewer_chunks),
        cmocka_unit_test(pools_come_and_go),
        cmocka_unit_test(wrong_thread_counts_are_refused),
        cmocka_unit_test(idle_pool_uses_no_cpu),
        cmocka_unit_test(stuck_chunks_move_and_nothing_stays_changed),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
