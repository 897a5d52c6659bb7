#ifndef MODEL_CHECKSUM_H
#define MODEL_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* A number that tells bytes from others, at the speed of memory; against accidents, not against
 * people. Every change of one word changes it. */
uint64_t checksum(uint64_t seed, const void *bytes, size_t n);

#endif
