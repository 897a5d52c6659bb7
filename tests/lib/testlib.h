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

/* Bytes of weights that suit every number format, whose scales come out small and finite, and
 * activations to go with them. */
void test_weights(uint8_t *weights, size_t bytes, float *x, size_t values, uint64_t *state);

/* mem_alloc, which must not fail; at least one byte (mem_free). */
void *test_buffer(size_t bytes);

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
