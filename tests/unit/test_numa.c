#define _GNU_SOURCE
#include "testlib.h"

#include "config/numa.h"
#include "config/pool.h"
#include "config/share.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a machine that is not there ---- */

static const char *const sys_dirs[] = {"/sys", "/sys/devices", "/sys/devices/system",
                                       "/sys/devices/system/node"};
enum { DIRS = sizeof sys_dirs / sizeof *sys_dirs };
static char root[64];

static void node_path(char *out, size_t bytes, int node, const char *file)
{
    snprintf(out, bytes, "%s%s/node%d%s", root, sys_dirs[DIRS - 1], node, file);
}

static int set_up(void **state)
{
    char path[256];
    (void)state;
    strcpy(root, "/tmp/test_numa-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    for (int i = 0; i < DIRS; i++) {
        snprintf(path, sizeof path, "%s%s", root, sys_dirs[i]);
        mkdir(path, 0700);
    }
    return 0;
}

static int tear_down(void **state)
{
    char path[256];
    (void)state;
    for (int i = 0; i < NUMA_MOST_NODES; i++) {
        node_path(path, sizeof path, i, "/cpulist");
        unlink(path);
        node_path(path, sizeof path, i, "");
        rmdir(path);
    }
    for (int i = DIRS - 1; i >= 0; i--) {
        snprintf(path, sizeof path, "%s%s", root, sys_dirs[i]);
        rmdir(path);
    }
    return rmdir(root);
}

static void add_node(int node, const char *cpus)
{
    char path[256];
    node_path(path, sizeof path, node, "");
    mkdir(path, 0700);
    node_path(path, sizeof path, node, "/cpulist");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(cpus, f);
    fclose(f);
}

static uint8_t ours[NUMA_MOST_CPUS];

static void own(int first, int last)
{
    memset(ours, 0, sizeof ours);
    memset(ours + first, 1, (size_t)(last - first + 1));
}

static void a_machine_without_nodes_has_one(void **state)
{
    (void)state;
    struct numa n;
    own(0, 7);
    numa_read("/nonexistent", ours, &n);
    assert_int_equal(n.nodes, 1);
    assert_int_equal(numa_node(&n, 0, 4), 0);
    assert_int_equal(numa_node(&n, 3, 4), 0);
}

static void cpus_have_their_nodes(void **state)
{
    (void)state;
    struct numa n;
    add_node(0, "0-3,8-11\n");
    add_node(1, "\n"); /* memory alone */
    add_node(5, "4-7,12-15\n");
    own(0, 15);
    numa_read(root, ours, &n);
    assert_int_equal(n.nodes, 2);
    assert_int_equal(n.cpus[0], 8);
    assert_int_equal(n.cpus[1], 8);
    assert_int_equal(n.node_of[9], 0);
    assert_int_equal(n.node_of[12], 1);
    assert_int_equal(n.node_of[16], NUMA_NOT_OURS);
    own(0, 3); /* as a mask or a container has it */
    numa_read(root, ours, &n);
    assert_int_equal(n.nodes, 1);
    assert_int_equal(n.cpus[0], 4);
    own(2, 4);
    numa_read(root, ours, &n);
    assert_int_equal(n.nodes, 2);
    assert_int_equal(n.cpus[0], 2);
    assert_int_equal(n.cpus[1], 1);
}

static void nonsense_is_no_node(void **state)
{
    (void)state;
    struct numa n;
    add_node(0, "zero to three");
    add_node(5, "4-99999999999999999999");
    own(0, 7);
    numa_read(root, ours, &n);
    assert_int_equal(n.nodes, 1);
    assert_int_equal(n.cpus[0], 4);
}

static void workers_are_dealt_out_in_order(void **state)
{
    (void)state;
    static const struct {
        int cpus[3], threads;
        const char *nodes; /* of worker 0, 1, ... */
    } cases[] = {
        {{4, 4, 0}, 8, "00001111"}, {{4, 4, 0}, 4, "0011"},  {{6, 2, 0}, 8, "00000011"},
        {{6, 2, 0}, 4, "0001"},     {{2, 2, 2}, 3, "012"},   {{4, 4, 4}, 1, "1"},
        {{1, 1, 0}, 2, "01"},       {{8, 8, 0}, 5, "00111"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct numa n = {0};
        for (int k = 0; k < 3 && cases[i].cpus[k]; k++)
            n.cpus[n.nodes++] = cases[i].cpus[k];
        for (int w = 0; w < cases[i].threads; w++)
            assert_int_equal(numa_node(&n, w, cases[i].threads), cases[i].nodes[w] - '0');
    }
}

/* ---- threads that stay where they are put ---- */

struct places {
    const struct numa *numa;
    int threads;
    atomic_int wrong, done;
};

static void check_place(void *arg, int worker, int64_t first, int64_t last)
{
    struct places *p = arg;
    cpu_set_t mask;
    sched_getaffinity(0, sizeof mask, &mask);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &mask) && p->numa->node_of[i] != numa_node(p->numa, worker, p->threads))
            atomic_fetch_add(&p->wrong, 1);
    atomic_fetch_add(&p->done, (int)(last - first));
}

/* This machine's CPUs, each taken for a node. */
static void workers_stay_on_their_nodes(void **state)
{
    (void)state;
    struct numa n;
    struct pool *pool;
    struct err err;
    cpu_set_t before;
    numa_read("/nonexistent", NULL, &n);
    sched_getaffinity(0, sizeof before, &before);
    n.nodes = 0;
    for (int i = 0; i < CPU_SETSIZE && n.nodes < 2; i++)
        if (CPU_ISSET(i, &before)) {
            n.node_of[i] = (uint8_t)n.nodes;
            n.cpus[n.nodes++] = 1;
        }
    if (n.nodes < 2)
        skip();
    assert_int_equal(pool_create(2, 0, &pool, &err), 0);
    pool_place(pool, &n);
    struct places p = {.numa = &n, .threads = 2};
    for (int i = 0; i < 20; i++)
        pool_run(pool, check_place, &p, 64, 1);
    pool_destroy(pool);
    assert_int_equal(p.done, 20 * 64);
    assert_int_equal(p.wrong, 0);
    sched_setaffinity(0, sizeof before, &before);
}

static void one_node_changes_nothing(void **state)
{
    (void)state;
    struct numa n;
    struct pool *pool;
    struct err err;
    cpu_set_t before, after;
    numa_read("/nonexistent", NULL, &n);
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(pool_create(2, 0, &pool, &err), 0);
    pool_place(pool, &n);
    assert_int_equal(pool_nodes(pool), 1);
    struct places p = {.numa = &n, .threads = 2};
    pool_run(pool, check_place, &p, 8, 1);
    pool_destroy(pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
}

/* ---- shares ---- */

static void a_worker_begins_with_its_own(void **state)
{
    (void)state;
    struct share shares[3];
    shares_set(shares, 3, 10);   /* 0-2, 3-5, 6-9 */
    for (int i = 0; i < 10; i++) /* then the next one's, then the first one's */
        assert_int_equal(shares_take(shares, 3, 1), (3 + i) % 10);
}

static void shares_leave_nothing_and_repeat_nothing(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 200; round++) {
        struct share shares[7];
        int threads = 1 + (int)(test_random(&seed) % 7), chunks = (int)(test_random(&seed) % 60);
        int taken[60] = {0};
        shares_set(shares, threads, chunks);
        for (int i = 0; i < chunks; i++)
            taken[shares_take(shares, threads, (int)(test_random(&seed) % (uint64_t)threads))]++;
        for (int i = 0; i < chunks; i++)
            assert_int_equal(taken[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_nodes_has_one),
        cmocka_unit_test(cpus_have_their_nodes),
        cmocka_unit_test(nonsense_is_no_node),
        cmocka_unit_test(workers_are_dealt_out_in_order),
        cmocka_unit_test(workers_stay_on_their_nodes),
        cmocka_unit_test(one_node_changes_nothing),
        cmocka_unit_test(a_worker_begins_with_its_own),
        cmocka_unit_test(shares_leave_nothing_and_repeat_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
