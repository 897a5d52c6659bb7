#define _GNU_SOURCE
#include "machine.h"

#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* A number file of a control group: `controller` is NULL in version 2. */
struct limit_file {
    const char *controller, *name;
    void (*read)(FILE *f, const char *directory, struct machine *out);
};

static void lower(size_t *limit, double bytes)
{
    /* Version 1 says "no limit" with a number near 2^63. */
    if (bytes >= 1 && bytes < 0x1p60 && (*limit == 0 || (size_t)bytes < *limit))
        *limit = (size_t)bytes;
}

static void lower_quota(struct machine *out, double quota, double period)
{
    if (quota <= 0 || period <= 0)
        return;
    if (out->cpu_quota == 0 || quota / period < out->cpu_quota)
        out->cpu_quota = quota / period;
}

/* memory.max, memory.high, memory.limit_in_bytes: a number or "max". */
static void read_memory(FILE *f, const char *directory, struct machine *out)
{
    double bytes;
    (void)directory;
    if (fscanf(f, "%lf", &bytes) == 1)
        lower(&out->memory_limit, bytes);
}

/* cpu.max: "QUOTA PERIOD" or "max PERIOD", microseconds. */
static void read_cpu_max(FILE *f, const char *directory, struct machine *out)
{
    double quota, period;
    (void)directory;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2)
        lower_quota(out, quota, period);
}

static FILE *open_in(const char *directory, const char *name)
{
    char path[PATH_BYTES + 64];
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* cpu.cfs_quota_us (-1: none), whose period is in the file beside it. */
static void read_cfs_quota(FILE *f, const char *directory, struct machine *out)
{
    double quota, period;
    FILE *other = open_in(directory, "cpu.cfs_period_us");
    if (!other)
        return;
    if (fscanf(f, "%lf", &quota) == 1 && fscanf(other, "%lf", &period) == 1)
        lower_quota(out, quota, period);
    fclose(other);
}

static const struct limit_file limit_files[] = {
    {"memory", "memory.limit_in_bytes", read_memory},
    {"cpu", "cpu.cfs_quota_us", read_cfs_quota},
    {NULL, "memory.max", read_memory},
    {NULL, "memory.high", read_memory}, /* over it a process hardly runs */
    {NULL, "cpu.max", read_cpu_max},
};
#define LIMIT_FILES (sizeof limit_files / sizeof *limit_files)

/* If `word` is an item of a list with commas. */
static bool lists(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (!strncmp(p, word, n) && (p[n] == '\0' || p[n] == ','))
            return true;
    }
    return false;
}

/* The path of this process below a hierarchy, from /proc/self/cgroup: "4:cpu,cpuacct:/a/b", and
 * "0::/a/b" for version 2. */
static bool group_path(const char *root, const char *controller, char out[PATH_BYTES])
{
    FILE *f = open_in(root, "proc/self/cgroup");
    char line[PATH_BYTES + 256];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        list++;
        found = controller ? lists(list, controller) : !strncmp(line, "0:", 2) && !*list;
        if (found)
            snprintf(out, PATH_BYTES, "%s", path);
    }
    if (f)
        fclose(f);
    return found;
}

struct mount {
    char root[PATH_BYTES], point[PATH_BYTES]; /* what part of the hierarchy is mounted, and where */
};

/* A line of /proc/self/mountinfo: "id parent dev ROOT POINT options [tags] - TYPE source OPTIONS".
 */
static bool parse_mount(char *line, const char *controller, struct mount *out)
{
    char type[32], options[512];
    char *tail = strstr(line, " - ");
    if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", out->root, out->point) != 2 ||
        sscanf(tail, " - %31s %*s %511s", type, options) != 2)
        return false;
    if (!controller)
        return !strcmp(type, "cgroup2");
    return !strcmp(type, "cgroup") && lists(options, controller);
}

static bool find_mount(const char *root, const char *controller, struct mount *out)
{
    FILE *f = open_in(root, "proc/self/mountinfo");
    char line[3 * PATH_BYTES];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = parse_mount(line, controller, out);
    if (f)
        fclose(f);
    return found;
}

/* Our group's path below the mount point: without the part above what is mounted, and empty when
 * it lies outside (a container sees its own group as the mount's root then). */
static const char *below_mount(const struct mount *m, const char *path)
{
    size_t n = strcmp(m->root, "/") ? strlen(m->root) : 0;
    if (strncmp(path, m->root, n) || (path[n] && path[n] != '/') || strstr(path, "/.."))
        return "";
    return strcmp(path + n, "/") ? path + n : "";
}

/* Reads one kind of limit in our group and in every group above it. */
static void read_limits(const char *root, const struct limit_file *file, struct machine *out)
{
    struct mount m;
    char path[PATH_BYTES], directory[3 * PATH_BYTES];
    if (!group_path(root, file->controller, path) || !find_mount(root, file->controller, &m))
        return;
    int top = snprintf(directory, sizeof directory, "%s%s", root, m.point);
    snprintf(directory + top, sizeof directory - (size_t)top, "%s", below_mount(&m, path));
    for (;;) {
        FILE *f = strlen(directory) < PATH_BYTES ? open_in(directory, file->name) : NULL;
        if (f) {
            file->read(f, directory, out);
            fclose(f);
        }
        char *slash = strrchr(directory, '/');
        if (!slash || slash < directory + top)
            return;
        *slash = '\0';
    }
}

static void read_meminfo(const char *root, struct machine *out)
{
    FILE *f = open_in(root, "proc/meminfo");
    char line[256];
    unsigned long long kb;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu kB", &kb) == 1)
            out->memory_total = (size_t)kb * 1024;
        else if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            out->memory_free = (size_t)kb * 1024;
    }
    if (f)
        fclose(f);
}

/* The mask grows with the machine: the kernel refuses one that is too short for its CPUs. */
static int count_cpus(void)
{
    for (int most = 1024; most <= 1 << 20; most *= 2) {
        cpu_set_t *mask = CPU_ALLOC(most);
        if (!mask)
            break;
        size_t bytes = CPU_ALLOC_SIZE(most);
        int n = sched_getaffinity(0, bytes, mask) ? 0 : CPU_COUNT_S(bytes, mask);
        CPU_FREE(mask);
        if (n > 0)
            return n;
    }
    return 1;
}

void machine_read(const char *root, struct machine *out)
{
    memset(out, 0, sizeof *out);
    out->cpus = count_cpus();
    read_meminfo(root, out);
    for (size_t i = 0; i < LIMIT_FILES; i++)
        read_limits(root, &limit_files[i], out);
    if (out->memory_total && out->memory_limit >= out->memory_total)
        out->memory_limit = 0;
}

int machine_threads(const struct machine *m)
{
    int quota = m->cpu_quota > 0 && m->cpu_quota < m->cpus ? (int)ceil(m->cpu_quota) : m->cpus;
    return quota > 1 ? quota : 1;
}

size_t machine_memory_budget(const struct machine *m)
{
    return m->memory_limit ? m->memory_limit / 10 * 9 : m->memory_free / 2;
}

size_t machine_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;
    if (!f)
        return 0;
    if (fscanf(f, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}
