#include "attention.h"

#include <math.h>
#include <stdlib.h>

void alibi_slopes(int heads, float max_bias, float *out)
{
    int power = 1;
    while (power <= heads / 2)
        power *= 2;
    double step = (double)max_bias / power;
    for (int h = 0; h < heads; h++) {
        double exponent = h < power ? step * (h + 1) : step / 2 * (2 * (h - power) + 1);
        out[h] = (float)exp2(-exponent);
    }
}

void sinusoid(int64_t position, int width, bool interleaved, float *out)
{
    int half = width / 2;
    for (int i = 0; i < (width + 1) / 2; i++) {
        double angle = (double)position * pow(10000.0, -2.0 * i / width);
        int sine = interleaved ? 2 * i : i, cosine = interleaved ? 2 * i + 1 : half + i;
        /* An odd width has one sine more than cosines, and it comes last. */
        out[i < half ? sine : width - 1] = (float)sin(angle);
        if (i < half)
            out[cosine] = (float)cos(angle);
    }
}

int relative_clipped(int i, int j, int most)
{
    int64_t distance = (int64_t)j - i;
    if (distance > most)
        return most;
    return distance < -most ? -most : (int)distance;
}

int relative_bucket(int i, int j, bool bidirectional, int buckets, int max_distance)
{
    int64_t back = (int64_t)i - j;
    int first = 0;
    if (bidirectional) {
        buckets /= 2;
        first = back < 0 ? buckets : 0;
        back = llabs(back);
    } else if (back < 0) {
        back = 0; /* later positions share the bucket of the own one */
    }
    /* The first half of the buckets holds one distance each, the rest grow like a logarithm. Single
     * precision decides at the edges, as in the published implementation. */
    int exact = buckets / 2;
    if (back < exact)
        return first + (int)back;
    float share = logf((float)back / (float)exact) / (float)log((double)max_distance / exact);
    if (!(share < 1.0f)) /* at max_distance and beyond */
        return first + buckets - 1;
    int bucket = exact + (int)(share * (float)(buckets - exact));
    return first + (bucket < buckets - 1 ? bucket : buckets - 1);
}
