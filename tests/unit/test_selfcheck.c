#include "testlib.h"

#include "model/kernels/vec.h"
#include "model/selfcheck.h"

#include <stdio.h>
#include <time.h>

static enum isa spoilt = ISA_COUNT;
static struct vec_ops table;

static void wrong_add(float *x, const float *y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] += y[i];
    x[n - 1] += 1e-3f;
}

const struct vec_ops *__real_vec_ops(enum isa level);
const struct vec_ops *__wrap_vec_ops(enum isa level);
const struct vec_ops *__wrap_vec_ops(enum isa level)
{
    if (level != spoilt)
        return __real_vec_ops(level);
    table = *__real_vec_ops(level);
    table.add = wrong_add;
    return &table;
}

static void a_level_that_errs_is_left_out(void **state)
{
    (void)state;
    if (cpu_isa() == ISA_C)
        skip();
    spoilt = cpu_isa();
    assert_int_equal(selfcheck_level(cpu_isa()), cpu_isa() - 1);
    spoilt = ISA_COUNT;
    assert_int_equal(selfcheck_level(cpu_isa()), cpu_isa() - 1); /* known now */
}

static void plain_c_is_always_right(void **state)
{
    (void)state;
    assert_int_equal(selfcheck_level(ISA_C), ISA_C);
}

static void good_levels_pass_in_no_time(void **state)
{
    struct timespec a, b;
    (void)state;
    if (cpu_isa() < ISA_C + 2)
        skip(); /* the best level is spoilt below */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_int_equal(selfcheck_level(cpu_isa() - 1), cpu_isa() - 1);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    printf("checked in %.2f ms\n",
           (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_levels_pass_in_no_time),
        cmocka_unit_test(a_level_that_errs_is_left_out),
        cmocka_unit_test(plain_c_is_always_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
