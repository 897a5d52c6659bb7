#include "testlib.h"

#include "model/blas.h"

#include "config/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char core[32];

char *__wrap_openblas_get_corename(void);
char *__wrap_openblas_get_corename(void)
{
    return core;
}

static const char *better_than(const char *name)
{
    unsetenv("OPENBLAS_CORETYPE");
    snprintf(core, sizeof core, "%s", name);
    return blas_better_core();
}

static void old_kernels_are_replaced(void **state)
{
    (void)state;
    const char *level = isa_name(cpu_isa());
    if (strcmp(level, "avx2") && strcmp(level, "avx512"))
        skip();
    assert_string_equal(better_than("Prescott"), strcmp(level, "avx2") ? "SkylakeX" : "Haswell");
    setenv("OPENBLAS_CORETYPE", "Prescott", 1); /* somebody wants it so */
    assert_null(blas_better_core());
}

static void fit_kernels_stay(void **state)
{
    (void)state;
    assert_null(better_than("Haswell"));
    assert_null(better_than("Zen"));
    assert_null(better_than("SKYLAKEX"));
}

static void products_are_right_here(void **state)
{
    struct err err;
    (void)state;
    assert_int_equal(blas_check(&err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(old_kernels_are_replaced),
        cmocka_unit_test(fit_kernels_stay),
        cmocka_unit_test(products_are_right_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
