#ifndef CONFIG_NUMA_H
#define CONFIG_NUMA_H

#include <stdint.h>

/* Which of this process's CPUs are on which memory node. */

enum { NUMA_MOST_CPUS = 4096, NUMA_MOST_NODES = 64, NUMA_NOT_OURS = 255 };

struct numa {
    int nodes;                       /* that have CPUs of ours; 1 where nothing is known */
    int cpus[NUMA_MOST_NODES];       /* how many */
    uint8_t node_of[NUMA_MOST_CPUS]; /* by CPU number: 0 .. nodes - 1, or NUMA_NOT_OURS */
};

/* `root` is put before every path ("" for the real files). ours: a byte for each of NUMA_MOST_CPUS,
 * not 0 for those that this process may use; NULL: the affinity mask says. */
void numa_read(const char *root, const uint8_t *ours, struct numa *out);

/* Workers are dealt out in order, to each node as many as its CPUs are part of all. */
int numa_node(const struct numa *n, int worker, int threads);

#endif
