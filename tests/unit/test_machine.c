#include "testlib.h"

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A made-up root with the few files that machine_read looks at. */
struct file {
    const char *path, *text;
};

static char root[64];

static void make_parents(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
}

static void make_files(const struct file *files, int n)
{
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", root, files[i].path);
        make_parents(path);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i].text, f);
        fclose(f);
    }
}

static int begin(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/test_machine_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        execlp("rm", "rm", "-rf", root, (char *)NULL);
        _exit(127);
    }
    return waitpid(child, NULL, 0) == child ? 0 : -1;
}

#define READ(files, machine)                                                                       \
    do {                                                                                           \
        make_files(files, (int)(sizeof files / sizeof *files));                                    \
        machine_read(root, machine);                                                               \
    } while (0)

#define V2_MOUNT "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT(dir, names)                                                                       \
    "33 25 0:29 " dir " /sys/fs/cgroup/" names " rw shared:9 - cgroup cgroup rw," names "\n"
#define MEMINFO "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n"

static void without_groups_half_of_the_free_memory_is_ours(void **state)
{
    static const struct file files[] = {{"proc/meminfo", MEMINFO}};
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_true(m.cpus >= 1);
    assert_int_equal(m.memory_total, 16000000ull * 1024);
    assert_int_equal(m.memory_free, 8000000ull * 1024);
    assert_int_equal(m.memory_limit, 0);
    assert_true(m.cpu_quota == 0);
    assert_int_equal(machine_memory_budget(&m), 4000000ull * 1024);
    assert_int_equal(machine_threads(&m), m.cpus);
}

static void nothing_readable_is_unknown(void **state)
{
    struct machine m;
    (void)state;
    machine_read(root, &m);
    assert_int_equal(m.memory_free, 0);
    assert_int_equal(machine_memory_budget(&m), 0);
    assert_true(machine_threads(&m) >= 1);
}

static void version_2_takes_the_least_on_the_way_up(void **state)
{
    static const struct file files[] = {
        {"proc/meminfo", MEMINFO},
        {"proc/self/cgroup", "0::/pods/one/app\n"},
        {"proc/self/mountinfo", V2_MOUNT},
        {"sys/fs/cgroup/pods/one/app/memory.max", "max\n"},
        {"sys/fs/cgroup/pods/one/app/cpu.max", "max 100000\n"},
        {"sys/fs/cgroup/pods/one/memory.max", "1073741824\n"},
        {"sys/fs/cgroup/pods/one/cpu.max", "150000 100000\n"},
        {"sys/fs/cgroup/pods/memory.max", "2147483648\n"},
        {"sys/fs/cgroup/pods/cpu.max", "50000 100000\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 1073741824);
    assert_true(m.cpu_quota == 0.5);
    assert_int_equal(machine_threads(&m), 1);
    assert_int_equal(machine_memory_budget(&m), 1073741824 / 10 * 9);
}

static void version_2_counts_the_throttle_too(void **state)
{
    static const struct file files[] = {
        {"proc/self/cgroup", "0::/\n"},
        {"proc/self/mountinfo", V2_MOUNT},
        {"sys/fs/cgroup/memory.max", "4096000\n"},
        {"sys/fs/cgroup/memory.high", "1024000\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 1024000);
}

static void version_1_takes_the_least_on_the_way_up(void **state)
{
    static const struct file files[] = {
        {"proc/meminfo", MEMINFO},
        {"proc/self/cgroup", "7:memory:/a/b\n5:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/other\n"},
        {"proc/self/mountinfo", V1_MOUNT("/", "memory") V1_MOUNT("/", "cpu,cpuacct")},
        {"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n"},
        {"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 536870912);
    assert_true(m.cpu_quota == 0.5);
}

/* A container of version 1 sees its own group as the mount's root, under its outer name. */
static void container_sees_its_group_as_the_root(void **state)
{
    static const struct file files[] = {
        {"proc/self/cgroup", "7:memory:/docker/c0ffee\n5:cpu:/docker/c0ffee/inner\n"},
        {"proc/self/mountinfo",
         V1_MOUNT("/docker/c0ffee", "memory") V1_MOUNT("/docker/c0ffee", "cpu")},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"},
        {"sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "200000\n"},
        {"sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 268435456);
    assert_true(m.cpu_quota == 2.0);
}

static void group_outside_the_mount_reads_the_mount(void **state)
{
    static const struct file files[] = {
        {"proc/self/cgroup", "0::/../../system\n"},
        {"proc/self/mountinfo", V2_MOUNT},
        {"sys/fs/cgroup/memory.max", "7340032\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 7340032);
}

static void hybrid_layout_reads_both_versions(void **state)
{
    static const struct file files[] = {
        {"proc/meminfo", MEMINFO},
        {"proc/self/cgroup", "4:memory:/job\n0::/job\n"},
        {"proc/self/mountinfo",
         V1_MOUNT("/", "memory") "34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
        {"sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000\n"},
        {"sys/fs/cgroup/unified/job/cpu.max", "300000 100000\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 1000000);
    assert_true(m.cpu_quota == 3.0);
}

static void limit_above_the_machine_is_none(void **state)
{
    static const struct file files[] = {
        {"proc/meminfo", MEMINFO},
        {"proc/self/cgroup", "0::/\n"},
        {"proc/self/mountinfo", V2_MOUNT},
        {"sys/fs/cgroup/memory.max", "99999999999999\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 0);
}

static void nonsense_files_are_no_limits(void **state)
{
    static const struct file files[] = {
        {"proc/meminfo", "MemTotal\nMemAvailable: many kB\n"},
        {"proc/self/cgroup", "\n:\n0\n0::\n0::/\n"},
        {"proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n" V2_MOUNT},
        {"sys/fs/cgroup/memory.max", "-5\n"},
        {"sys/fs/cgroup/memory.high", "\n"},
        {"sys/fs/cgroup/cpu.max", "100 0\n"},
    };
    struct machine m;
    (void)state;
    READ(files, &m);
    assert_int_equal(m.memory_limit, 0);
    assert_true(m.cpu_quota == 0);
}

static void quota_is_rounded_up_to_threads(void **state)
{
    (void)state;
    assert_int_equal(machine_threads(&(struct machine){.cpus = 8, .cpu_quota = 0.1}), 1);
    assert_int_equal(machine_threads(&(struct machine){.cpus = 8, .cpu_quota = 1.5}), 2);
    assert_int_equal(machine_threads(&(struct machine){.cpus = 8, .cpu_quota = 3}), 3);
    assert_int_equal(machine_threads(&(struct machine){.cpus = 8, .cpu_quota = 64}), 8);
    assert_int_equal(machine_threads(&(struct machine){.cpus = 8}), 8);
}

static void this_machine_is_read(void **state)
{
    struct machine m;
    (void)state;
    machine_read("", &m);
    assert_true(m.cpus >= 1 && m.cpus <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(m.memory_total > 0 && m.memory_free <= m.memory_total);
    assert_true(machine_memory_budget(&m) > 0);
    assert_true(machine_resident_bytes() > 100000);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(without_groups_half_of_the_free_memory_is_ours),
        TEST(nothing_readable_is_unknown),
        TEST(version_2_takes_the_least_on_the_way_up),
        TEST(version_2_counts_the_throttle_too),
        TEST(version_1_takes_the_least_on_the_way_up),
        TEST(container_sees_its_group_as_the_root),
        TEST(group_outside_the_mount_reads_the_mount),
        TEST(hybrid_layout_reads_both_versions),
        TEST(limit_above_the_machine_is_none),
        TEST(nonsense_files_are_no_limits),
        TEST(quota_is_rounded_up_to_threads),
        TEST(this_machine_is_read),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
