#include "buckets.h"

void buckets_add(struct buckets *h, const double *bounds, double value, uint64_t times)
{
    int i = 0;
    while (bounds[i] != 0 && value > bounds[i])
        i++;
    h->counts[i] += times;
    h->count += times;
    h->sum += value * (double)times;
}
