#include "cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char *const names[ISA_COUNT] = {
#define ISA(id, name, needs) [id] = #name,
#include "isa.def"
#undef ISA
};

#if defined(ROPEWALK_PLAIN_C)
enum isa cpu_isa(void)
{
    return ISA_C;
}
#elif defined(__x86_64__)
#include <cpuid.h>
#include <stdbool.h>

/* Clang's __builtin_cpu_supports does not know this one. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

enum isa cpu_isa(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return ISA_C;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni"))
        return ISA_AVX512;
    return ISA_AVX2;
}
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

enum isa cpu_isa(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? ISA_NEON : ISA_C;
}
#else
enum isa cpu_isa(void)
{
    return ISA_C;
}
#endif

const char *isa_name(enum isa level)
{
    return names[level];
}

int isa_from_name(const char *name)
{
    for (int i = 0; i < ISA_COUNT; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

static char model_name[128] = "unknown CPU";

static void read_name(void)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) || !value)
            continue;
        snprintf(model_name, sizeof model_name, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    fclose(f);
}

const char *cpu_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_name);
    return model_name;
}
