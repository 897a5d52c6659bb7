#ifndef CONFIG_MACHINE_H
#define CONFIG_MACHINE_H

#include <stddef.h>

/* What this process may use of the machine: not what the machine has, but what the affinity mask
 * and the cgroups (version 1, 2 or both; the smallest limit on the way up) leave of it. */

struct machine {
    int cpus;            /* in the affinity mask; at least 1 */
    double cpu_quota;    /* cores' worth of time that a cgroup allows; 0: no limit */
    size_t memory_limit; /* bytes that a cgroup allows, this process and its neighbours; 0: none */
    size_t memory_total, memory_free; /* bytes of the machine; 0: unknown */
};

/* `root` is put before every path ("" for the real files; tests have their own). What cannot be
 * read is unknown, never an error. */
void machine_read(const char *root, struct machine *out);

/* Threads that can run at once: the mask's CPUs, but no more than the quota rounded up. */
int machine_threads(const struct machine *m);

/* What a process should use when nobody says: 90 % of the cgroup's limit, or half of the free
 * memory where there is no limit. 0: unknown. */
size_t machine_memory_budget(const struct machine *m);

/* Bytes of this process in memory now (resident set); 0: unknown. */
size_t machine_resident_bytes(void);

#endif
