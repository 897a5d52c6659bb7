#include "testlib.h"

#include "formats/codec.h"
#include "matrix.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct record {
    char name[16];
    uint32_t values, bytes;
};

static int format_from_name(const char *name)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (!strcmp(format_infos[i].name, name))
            return i;
    return -1;
}

static void compare(const char *name, const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++) {
        float limit = 1e-6f * fmaxf(1, fabsf(want[i]));
        if (!(fabsf(got[i] - want[i]) <= limit))
            fail_msg("%s: value %d is %.9g, expected %.9g", name, i, (double)got[i],
                     (double)want[i]);
    }
}

static void unpacks_as_the_reference_does(void **state)
{
    (void)state;
    size_t bytes;
    char *data = test_read(TEST_DATA "/formats.bin", &bytes);
    assert_non_null(data);
    int seen = 0;
    for (size_t at = 0; at < bytes; seen++) {
        struct record r;
        memcpy(&r, data + at, sizeof r);
        const char *row = data + at + sizeof r;
        float *want = malloc(r.values * sizeof *want), *got = malloc(r.values * sizeof *got);
        assert_true(want && got);
        memcpy(want, row + r.bytes, r.values * sizeof *want);
        int format = format_from_name(r.name);
        assert_true(format >= 0 && format_known(format));
        format_unpack(format, row, (int)r.values, got);
        compare(r.name, got, want, (int)r.values);
        at += sizeof r + r.bytes + r.values * sizeof *want;
        free(want);
        free(got);
    }
    assert_true(seen >= 15);
    free(data);
}

static void halves_convert_exactly(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7c00; bits++) {
        int exponent = (int)(bits >> 10), fraction = bits & 1023;
        double want = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        assert_true((double)f16_to_float((uint16_t)bits) == want);
        assert_true((double)f16_to_float((uint16_t)(bits | 0x8000)) == -want);
    }
    assert_true(signbit(f16_to_float(0x8000)));
    assert_true(isinf(f16_to_float(0x7c00)) && f16_to_float(0xfc00) < 0);
    assert_true(isnan(f16_to_float(0x7c01)));
    assert_true(bf16_to_float(0x3f80) == 1 && bf16_to_float(0xc040) == -3);
}

/* Every known format says its size truly: no unpack reads past the end of a row. */
static void reads_only_its_row(void **state)
{
    (void)state;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        if (!format_known(f))
            continue;
        const struct format_info *info = &format_infos[f];
        void *row = calloc(1, (size_t)info->block_bytes); /* the sanitizer watches its end */
        float *out = malloc((size_t)info->block_values * sizeof *out);
        assert_true(row && out);
        format_unpack(f, row, info->block_values, out);
        free(row);
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacks_as_the_reference_does),
        cmocka_unit_test(halves_convert_exactly),
        cmocka_unit_test(reads_only_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
