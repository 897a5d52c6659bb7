#ifndef SERVER_SIPHASH_H
#define SERVER_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* SipHash-2-4 (Aumasson, Bernstein 2012): a keyed hash, so that nobody can choose what collides. */
uint64_t siphash(const uint64_t key[2], const void *data, size_t bytes);

#endif
