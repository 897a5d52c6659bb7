/* One definition, compiled once per SIMD level: the loops over 32 lanes and over elements are what
 * the compiler's vectoriser is good at, and their order of operations is fixed by the source. */

#include "attention.h"
#include "kernels/vec.h"

#include <math.h>
#include <string.h>

#define LANES 32
#define PIECE 256 /* elements of a temporary on the stack */

static float halve(float *lane)
{
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    return lane[0];
}

/* Elements [i, n) padded with zeros to a whole row of lanes. */
static void load_tail(float *to, const float *x, int i, int n)
{
    memset(to, 0, LANES * sizeof *to);
    memcpy(to, x + i, (size_t)(n - i) * sizeof *to);
}

static void add_lanes(float *restrict lane, const float *restrict x)
{
    for (int j = 0; j < LANES; j++)
        lane[j] += x[j];
}

/* lane += (x - shift)^2 */
static void add_squares(float *restrict lane, const float *restrict x, float shift)
{
    for (int j = 0; j < LANES; j++) {
        float d = x[j] - shift;
        lane[j] = fmaf(d, d, lane[j]);
    }
}

static float sum(const float *x, int n)
{
    float lane[LANES] = {0}, tail[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        add_lanes(lane, x + i);
    if (i < n) {
        load_tail(tail, x, i, n);
        add_lanes(lane, tail);
    }
    return halve(lane);
}

static float sum_squares(const float *x, int n, float shift)
{
    float lane[LANES] = {0}, tail[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        add_squares(lane, x + i, shift);
    if (i < n) {
        load_tail(tail, x, i, n);
        for (int j = n - i; j < LANES; j++)
            tail[j] = shift;
        add_squares(lane, tail, shift);
    }
    return halve(lane);
}

static void rms_norm(float *out, const float *x, const float *weight, int n, float eps)
{
    float r = 1.0f / sqrtf(sum_squares(x, n, 0.0f) / (float)n + eps);
    if (!weight) {
        for (int i = 0; i < n; i++)
            out[i] = x[i] * r;
        return;
    }
    for (int i = 0; i < n; i++)
        out[i] = x[i] * r * weight[i];
}

static void layer_norm(float *out, const float *x, const float *weight, const float *bias, int n,
                       float eps)
{
    float mean = sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(sum_squares(x, n, mean) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = (x[i] - mean) * r;
    if (weight)
        for (int i = 0; i < n; i++)
            out[i] *= weight[i];
    if (bias)
        for (int i = 0; i < n; i++)
            out[i] += bias[i];
}

static void add(float *restrict x, const float *restrict y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] += y[i];
}

static void scale(float *x, float factor, int n)
{
    for (int i = 0; i < n; i++)
        x[i] *= factor;
}

/* A piece of each of the following: e first holds what exp is taken of, then the result. Loops over
 * plain arrays that cannot overlap: the compiler makes vectors of nothing else. */

static void negate(float *restrict e, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        e[i] = -x[i];
}

/* -2u */
static void gelu_exponent(float *restrict e, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        e[i] = -1.5957691216f * x[i] * fmaf(0.044715f * x[i], x[i], 1.0f);
}

/* x = x / (1 + e) * y */
static void gate(float *restrict x, const float *restrict e, const float *restrict y, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + e[i]) * y[i];
}

/* x = x / (1 + exp(-x)) * y */
static void silu_mul(float *x, const float *y, int n)
{
    float e[PIECE];
    for (int m; n > 0; x += m, y += m, n -= m) {
        m = n < PIECE ? n : PIECE;
        negate(e, x, m);
        attn_exp_n(e, (size_t)m);
        gate(x, e, y, m);
    }
}

/* gelu(x) = x/2 (1 + tanh u) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3). */
static void gelu_mul(float *x, const float *y, int n)
{
    float e[PIECE];
    for (int m; n > 0; x += m, y += m, n -= m) {
        m = n < PIECE ? n : PIECE;
        gelu_exponent(e, x, m);
        attn_exp_n(e, (size_t)m);
        gate(x, e, y, m);
    }
}

static void double_of(float *restrict e, const float *restrict x, float cap, int n)
{
    for (int i = 0; i < n; i++)
        e[i] = 2.0f * (x[i] / cap);
}

static void cap_tanh(float *restrict x, const float *restrict e, float cap, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = cap * (1.0f - 2.0f / (e[i] + 1.0f));
}

/* tanh(t) = 1 - 2 / (exp(2t) + 1) */
static void softcap(float *x, float cap, int n)
{
    float e[PIECE];
    for (int m; n > 0; x += m, n -= m) {
        m = n < PIECE ? n : PIECE;
        double_of(e, x, cap, m);
        attn_exp_n(e, (size_t)m);
        cap_tanh(x, e, cap, m);
    }
}

static const struct vec_ops table = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add,
    .scale = scale,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
};
