/* One definition, compiled once per SIMD level with the compiler's portable vectors: LANES is how
 * many floats a vector of the level has. */

#include "kernels/pick.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef float four __attribute__((vector_size(16)));
typedef double sums4 __attribute__((vector_size(32)));

static inline floats all(float x)
{
    return x - (floats){0};
}

static inline floats load(const float *w)
{
    floats v;
    memcpy(&v, w, sizeof v);
    return v;
}

static inline floats load_tail(const float *w, int n, float fill)
{
    floats v = all(fill);
    memcpy(&v, w, (size_t)n * sizeof *w);
    return v;
}

/* ---- the largest ---- */

static inline floats more(floats a, floats b)
{
    words larger = (words)(b > a);
    return (floats)(((words)b & larger) | ((words)a & ~larger));
}

/* Of halves, down to four. */
static inline float most_lane(floats v)
{
#if LANES == 16
    v = more(v,
             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
#define SWAP_FOURS 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#elif LANES == 8
#define SWAP_FOURS 4, 5, 6, 7, 0, 1, 2, 3
#endif
#if LANES > 4
    v = more(v, __builtin_shufflevector(v, v, SWAP_FOURS));
#endif
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

static float most_of(const float *w, int n)
{
    enum { CHAINS = 4 };
    floats best[CHAINS];
    int i = 0;
    for (int j = 0; j < CHAINS; j++)
        best[j] = all(-INFINITY);
    for (; n - i >= CHAINS * LANES; i += CHAINS * LANES)
        for (int j = 0; j < CHAINS; j++)
            best[j] = more(best[j], load(w + i + j * LANES));
    for (; n - i >= LANES; i += LANES)
        best[0] = more(best[0], load(w + i));
    if (i < n)
        best[0] = more(best[0], load_tail(w + i, n - i, -INFINITY));
    return most_lane(more(more(best[0], best[1]), more(best[2], best[3])));
}

static void most(const float *w, int n, int size, float *out)
{
    for (int i = 0; i < n; i += size)
        *out++ = most_of(w + i, n - i < size ? n - i : size);
}

/* ---- exp ---- */

/* exp(x) for x <= 0: 2^n * exp(r), |r| <= ln(2)/2, by Taylor's series to the seventh power (error
 * below 1e-8). Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
static inline floats exp_of(floats x)
{
    floats shifted = x * 0x1.715476p0f + 0x1.8p23f;
    floats n = shifted - 0x1.8p23f;
    floats r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    floats p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    words power = ((words)shifted + 127u) << 23;
    words live = (words)(x > -87.0f);
    return (floats)((words)(p * (floats)power) & live);
}

static void exp_row(float *out, const float *w, int n, float largest, float scale)
{
    floats v;
    int i = 0;
    for (; n - i >= LANES; i += LANES) {
        v = exp_of((load(w + i) - largest) * scale);
        memcpy(out + i, &v, sizeof v);
    }
    v = exp_of((load_tail(w + i, n - i, -INFINITY) - largest) * scale);
    memcpy(out + i, &v, (size_t)(n - i) * sizeof *w);
}

/* ---- sums ---- */

/* By address: a vector that the level has no registers for has no way of being passed. */
static inline void sums_add(sums4 *s, const float *w)
{
    four v;
    memcpy(&v, w, sizeof v);
    *s += __builtin_convertvector(v, sums4);
}

static inline double sums_total(const sums4 *s)
{
    return ((*s)[0] + (*s)[2]) + ((*s)[1] + (*s)[3]);
}

/* Each sum is one chain of additions: several side by side. */
static void sum_blocks(const float *w, double *out)
{
    enum { CHAINS = 4 };
    sums4 s[CHAINS] = {{0}};
    for (int i = 0; i < PICK_BLOCK; i += 4)
        for (int j = 0; j < CHAINS; j++)
            sums_add(&s[j], w + j * PICK_BLOCK + i);
    for (int j = 0; j < CHAINS; j++)
        out[j] = sums_total(&s[j]);
}

static double sum_part(const float *w, int n)
{
    sums4 s = {0};
    float tail[4] = {0};
    int i = 0;
    for (; n - i >= 4; i += 4)
        sums_add(&s, w + i);
    memcpy(tail, w + i, (size_t)(n - i) * sizeof *w);
    sums_add(&s, tail);
    return sums_total(&s);
}

static void sums(const float *w, int n, double *out)
{
    for (; n >= 4 * PICK_BLOCK; n -= 4 * PICK_BLOCK, w += 4 * PICK_BLOCK, out += 4)
        sum_blocks(w, out);
    for (; n > 0; n -= PICK_BLOCK, w += PICK_BLOCK)
        *out++ = sum_part(w, n < PICK_BLOCK ? n : PICK_BLOCK);
}

static const struct pick_ops table = {.most = most, .exp = exp_row, .sums = sums};
