#include "testlib.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t test_seed(void)
{
    static uint64_t seed;
    if (seed)
        return seed;
    const char *given = getenv("TEST_SEED");
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    seed += seed == 0;
    printf("TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

uint64_t test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float test_uniform(uint64_t *state)
{
    return (float)(test_random(state) >> 40) * 0x1p-23f - 1.0f;
}

void test_weights(uint8_t *weights, size_t bytes, float *x, size_t values, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i++)
        weights[i] = (uint8_t)(test_random(state) % 0x3c); /* high byte of an f16 below 1 */
    for (size_t i = 0; i < values; i++)
        x[i] = test_uniform(state);
}

void *test_buffer(size_t bytes)
{
    void *p = mem_alloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return p;
}

int test_rounds(int full)
{
    static int is_short = -1; /* asked in conditions of loops */
    if (is_short < 0)
        is_short = getenv("ROPEWALK_TEST_SHORT") != NULL;
    return is_short ? (full + 5) / 6 : full;
}

char *test_read(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    size_t cap = 1 << 16, n = 0, got;
    char *data = malloc(cap + 1);
    while (data && (got = fread(data + n, 1, cap - n, f)) > 0) {
        n += got;
        if (n == cap)
            data = realloc(data, (cap *= 2) + 1);
    }
    fclose(f);
    if (data)
        data[n] = '\0';
    if (bytes)
        *bytes = n;
    return data;
}

const char *test_conformance(void)
{
    const char *given = getenv("ROPEWALK_CONFORMANCE");
    const char *path = given ? given : PROJECT_DIR "/../shared/conformance";
    return access(path, R_OK) == 0 ? path : NULL;
}
