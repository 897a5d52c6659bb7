#ifndef TESTS_TESTLIB_H
#define TESTS_TESTLIB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The seed of this run: TEST_SEED from the environment, else the clock. Printed on first use. */
uint64_t test_seed(void);
/* splitmix64. */
uint64_t test_random(uint64_t *state);
/* Uniform in [-1, 1). */
float test_uniform(uint64_t *state);

/* Rounds of a test of random cases: `full`, or a sixth of them in the short form
 * (ROPEWALK_TEST_SHORT), which is for builds that run slowly. */
int test_rounds(int full);

/* A whole file (zero-terminated; free(3)), or NULL. */
char *test_read(const char *path, size_t *bytes);

/* The folder of published test data that is not part of the project ($ROPEWALK_CONFORMANCE, else
 * ../shared/conformance beside the project), or NULL when it is not there: print a line and exit
 * with TEST_SKIPPED then. */
const char *test_conformance(void);
#define TEST_SKIPPED 77

#endif
