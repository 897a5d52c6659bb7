#ifndef CONFIG_BUCKETS_H
#define CONFIG_BUCKETS_H

#include <stdint.h>

/* Counts of values by size. The bounds are a list that rises and ends with 0; a value counts below
 * the first bound that it does not exceed, or above all. */

#define BUCKETS_BOUNDS 24 /* at most, with the 0 */

struct buckets {
    uint64_t counts[BUCKETS_BOUNDS]; /* [i]: of bound i, those below the one before left out */
    uint64_t count;                  /* of all */
    double sum;
};

void buckets_add(struct buckets *h, const double *bounds, double value, uint64_t times);

#endif
