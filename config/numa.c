#define _GNU_SOURCE
#include "numa.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_mask(uint8_t ours[NUMA_MOST_CPUS])
{
    size_t bytes = CPU_ALLOC_SIZE(NUMA_MOST_CPUS);
    cpu_set_t *mask = CPU_ALLOC(NUMA_MOST_CPUS);
    memset(ours, 0, NUMA_MOST_CPUS);
    if (mask && sched_getaffinity(0, bytes, mask) == 0)
        for (int i = 0; i < NUMA_MOST_CPUS; i++)
            ours[i] = CPU_ISSET_S((size_t)i, bytes, mask) != 0;
    CPU_FREE(mask);
}

/* "0-3,8-11": those that are ours belong to `node`; how many. */
static int take_list(const char *list, const uint8_t *ours, uint8_t node, struct numa *out)
{
    int n = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < NUMA_MOST_CPUS; i++)
            if (ours[i] && out->node_of[i] == NUMA_NOT_OURS) {
                out->node_of[i] = node;
                n++;
            }
        list = end + (*end == ',');
    }
    return n;
}

/* The list of CPUs of node `i`; empty where there is none, or it has memory alone. */
static void read_list(const char *root, int i, char *list, int bytes)
{
    char path[512];
    *list = '\0';
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, i);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (!fgets(list, bytes, f))
        *list = '\0';
    fclose(f);
}

void numa_read(const char *root, const uint8_t *ours, struct numa *out)
{
    uint8_t mask[NUMA_MOST_CPUS];
    char list[8192];
    memset(out, 0, sizeof *out);
    memset(out->node_of, NUMA_NOT_OURS, sizeof out->node_of);
    if (!ours) {
        read_mask(mask);
        ours = mask;
    }
    for (int i = 0; i < NUMA_MOST_NODES; i++) { /* their numbers may have gaps */
        read_list(root, i, list, sizeof list);
        int n = take_list(list, ours, (uint8_t)out->nodes, out);
        if (n)
            out->cpus[out->nodes++] = n;
    }
    if (out->nodes == 0)
        out->nodes = 1;
}

int numa_node(const struct numa *n, int worker, int threads)
{
    int64_t all = 0, before = 0;
    for (int i = 0; i < n->nodes; i++)
        all += n->cpus[i];
    for (int i = 0; i < n->nodes; i++) {
        before += n->cpus[i];
        if ((2 * worker + 1) * all < 2 * before * threads)
            return i;
    }
    return n->nodes - 1;
}
