#include "sampler.h"

#include <math.h>
#include <string.h>

/* Four lanes of the compiler's portable vectors: every machine of today has them. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef double f64x2 __attribute__((vector_size(16)));

enum { BLOCK = 256 }; /* a sum is that of blocks, in order */

/* exp(x) for x <= 0: 2^n * exp(r), |r| <= ln(2)/2, by Taylor's series to the seventh power (error
 * below 1e-8). Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
static inline f32x4 exp4(f32x4 x)
{
    const f32x4 magic = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};
    f32x4 shifted = x * 0x1.715476p0f + magic;
    f32x4 n = shifted - magic;
    f32x4 r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    f32x4 p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    u32x4 power = ((u32x4)shifted + 127u) << 23;
    u32x4 live = (u32x4)(x > -87.0f);
    return (f32x4)((u32x4)(p * (f32x4)power) & live);
}

static inline f32x4 load4(const float *w, int n, float fill)
{
    f32x4 v = {fill, fill, fill, fill};
    if (n >= 4)
        memcpy(&v, w, sizeof v);
    else
        memcpy(&v, w, (size_t)n * sizeof *w);
    return v;
}

/* The larger of each lane; NaN in v is passed over. */
static inline f32x4 more4(f32x4 most, f32x4 v)
{
    u32x4 more = (u32x4)(v > most);
    return (f32x4)(((u32x4)v & more) | ((u32x4)most & ~more));
}

float floats_most(const float *w, int n)
{
    const f32x4 none = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    f32x4 most[4] = {none, none, none, none}, v;
    int i = 0;
    for (; n - i >= 16; i += 16)
        for (int j = 0; j < 4; j++) {
            memcpy(&v, w + i + 4 * j, sizeof v);
            most[j] = more4(most[j], v);
        }
    for (; i < n; i += 4)
        most[0] = more4(most[0], load4(w + i, n - i, -INFINITY));
    v = more4(more4(most[0], most[1]), more4(most[2], most[3]));
    float best = v[0];
    for (int j = 1; j < 4; j++)
        best = v[j] > best ? v[j] : best;
    return best;
}

/* exp4 makes nothing of NaN; infinity must be gone before. */
void weights_exp(float *w, int n, float most, float scale)
{
    f32x4 v;
    int i = 0;
    for (; n - i >= 4; i += 4) {
        memcpy(&v, w + i, sizeof v);
        v = exp4((v - most) * scale);
        memcpy(w + i, &v, sizeof v);
    }
    v = exp4((load4(w + i, n - i, -INFINITY) - most) * scale);
    memcpy(w + i, &v, (size_t)(n - i) * sizeof *w);
}

static inline void sum4(f64x2 sums[2], f32x4 v)
{
    sums[0] += (f64x2){v[0], v[1]};
    sums[1] += (f64x2){v[2], v[3]};
}

static double sums_total(const f64x2 sums[2])
{
    f64x2 pair = sums[0] + sums[1];
    return pair[0] + pair[1];
}

static double block_sum(const float *w, int n)
{
    f64x2 sums[2] = {{0, 0}, {0, 0}};
    for (int i = 0; i < n; i += 4)
        sum4(sums, load4(w + i, n - i, 0));
    return sums_total(sums);
}

double weights_sum(const float *w, int n)
{
    double total = 0;
    for (int i = 0; i < n; i += BLOCK)
        total += block_sum(w + i, n - i < BLOCK ? n - i : BLOCK);
    return total;
}

double logits_exp_sum(const float *logits, int n, float most)
{
    double total = 0;
    for (int i = 0; i < n; i += BLOCK) {
        f64x2 sums[2] = {{0, 0}, {0, 0}};
        int end = n - i < BLOCK ? n : i + BLOCK;
        for (int j = i; j < end; j += 4)
            sum4(sums, exp4(load4(logits + j, end - j, -INFINITY) - most));
        total += sums_total(sums);
    }
    return total;
}

int weights_find(const float *w, int n, double target)
{
    int start = 0, found = 0;
    double passed = 0;
    for (; start + BLOCK < n; start += BLOCK) {
        double next = passed + block_sum(w + start, BLOCK);
        if (next > target)
            break;
        passed = next;
    }
    /* Rounding may carry the search past the end of the block: then the last one that counts. */
    int end = n - start < BLOCK ? n : start + BLOCK;
    for (int i = start; i < end; i++) {
        if (w[i] <= 0)
            continue;
        found = i;
        passed += w[i];
        if (passed > target)
            return found;
    }
    for (int i = end; w[found] <= 0 && i-- > 0;)
        found = i;
    return found;
}

/* The same for floats, where 1e-7 is enough: m from the bits. */
float math_log_fast(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)((bits - 0x3F3504F3u) >> 23);
    e = e >= 256 ? e - 512 : e;
    bits -= (uint32_t)e << 23;
    float m;
    memcpy(&m, &bits, sizeof m);
    float s = (m - 1) / (m + 1), q = s * s;
    float sum = ((q * (1.0f / 9) + 1.0f / 7) * q + 1.0f / 5) * q + 1.0f / 3;
    return 2 * s * (sum * q + 1) + (float)e * 0x1.62e43p-1f;
}

/* x = m * 2^e, m in [sqrt(1/2), sqrt(2)); log(m) = 2 artanh((m - 1) / (m + 1)). */
double math_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752440) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2)
        sum = sum * square + 1.0 / k;
    return 2 * s * sum + e * 0.69314718055994530942;
}
