#include "blas.h"

#include "cpu.h"

#include <cblas.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Names of OpenBLAS's kernel sets that use AVX2 or AVX-512. */
static const char *const fit_cores[] = {
    "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids", "Excavator",
};

/* What to take where none of them is in use. Of other levels OpenBLAS is known to find its best. */
static const struct {
    const char *level, *core;
} better_cores[] = {{"avx2", "Haswell"}, {"avx512", "SkylakeX"}};

const char *blas_better_core(void)
{
    const char *core = openblas_get_corename();
    if (getenv("OPENBLAS_CORETYPE"))
        return NULL;
    for (size_t i = 0; i < sizeof fit_cores / sizeof fit_cores[0]; i++)
        if (!strcasecmp(core, fit_cores[i]))
            return NULL;
    for (size_t i = 0; i < sizeof better_cores / sizeof better_cores[0]; i++)
        if (!strcmp(isa_name(cpu_isa()), better_cores[i].level))
            return better_cores[i].core;
    return NULL;
}

#define M 37
#define N 29
#define K 131

int blas_check(struct err *err)
{
    static float a[M * K], b[N * K], c[M * N];
    uint32_t r = 1;
    for (int i = 0; i < M * K + N * K; i++) {
        r = r * 1664525u + 1013904223u;
        *(i < M * K ? &a[i] : &b[i - M * K]) = (float)(int32_t)r * 0x1p-31f;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, M, N, K, 1, a, K, b, K, 0, c, N);
    for (int i = 0; i < M * N; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += (double)a[i / N * K + k] * (double)b[i % N * K + k];
        if (!(fabs(sum - (double)c[i]) < 1e-4))
            return err_set(err, ERR_UNSUPPORTED,
                           "OpenBLAS computes wrong products on this CPU (%s) with its %s kernels; "
                           "set OPENBLAS_CORETYPE to "
                           "another, for example Haswell, or leave --kernels float",
                           cpu_name(), openblas_get_corename());
    }
    return 0;
}
