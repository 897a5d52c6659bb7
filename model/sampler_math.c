#include "sampler.h"

#include <math.h>
#include <string.h>

/* Rows are worked on in pieces that stay in the first level of cache. */
enum { PIECE_BLOCKS = 16, PIECE = PIECE_BLOCKS * PICK_BLOCK };

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Sums follow one another: that of a row is the same whatever piece it is taken in. */
static double piece_sum(double total, const float *w, int n)
{
    double sums[PIECE_BLOCKS];
    pick_ops()->sums(w, n, sums);
    for (int i = 0; i * PICK_BLOCK < n; i++)
        total += sums[i];
    return total;
}

double weights_exp(float *w, int n, const struct weighing *how)
{
    double total = 0;
    for (int i = 0, m; i < n; i += m) {
        m = min_int(n - i, PIECE);
        pick_ops()->exp(w + i, w + i, m, how->most, how->scale);
        total = piece_sum(total, w + i, m);
    }
    return total;
}

double logits_exp_sum(const float *logits, int n, const struct weighing *how)
{
    float piece[PIECE];
    double total = 0;
    for (int i = 0, m; i < n; i += m) {
        m = min_int(n - i, PIECE);
        pick_ops()->exp(piece, logits + i, m, how->most, how->scale);
        total = piece_sum(total, piece, m);
    }
    return total;
}

double weights_sum(const float *w, int n)
{
    double total = 0;
    for (int i = 0; i < n; i += PIECE)
        total = piece_sum(total, w + i, min_int(n - i, PIECE));
    return total;
}

/* The block in which the running sum passes `target`, and the sum before it; the last one if it
 * never does. */
static int block_find(const float *w, int n, double target, double *passed)
{
    double sums[PIECE_BLOCKS];
    int last = n > 0 ? (n - 1) / PICK_BLOCK : 0;
    *passed = 0;
    for (int block = 0; block < last; block++) {
        int start = block * PICK_BLOCK;
        if (block % PIECE_BLOCKS == 0)
            pick_ops()->sums(w + start, min_int(n - start, PIECE), sums);
        double next = *passed + sums[block % PIECE_BLOCKS];
        if (next > target)
            return start;
        *passed = next;
    }
    return last * PICK_BLOCK;
}

int weights_find(const float *w, int n, double target)
{
    double passed;
    int start = block_find(w, n, target, &passed), found = 0;
    /* Rounding may carry the search past the end of the block: then the last one that counts. */
    int end = min_int(n, start + PICK_BLOCK);
    for (int i = start; i < end; i++) {
        if (w[i] <= 0)
            continue;
        found = i;
        passed += (double)w[i];
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
