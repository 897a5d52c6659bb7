#ifndef CONFIG_HEAP_H
#define CONFIG_HEAP_H

#include <stddef.h>

/* The C library's heap (malloc), as far as a program with a memory budget must rule it. Big buffers
 * of known size (weights, scratch, keys and values) are not in it: see mem_alloc. */

/* Few arenas for all threads, large blocks mapped one by one, so that what is freed goes back to
 * the system soon. Call before there are other threads. */
void heap_setup(void);

/* Bytes in use now, of all threads; 0 where the C library does not tell. Costs some microseconds.
 * Any thread. */
size_t heap_bytes(void);

/* Gives free memory back when there is much of it. Any thread. */
void heap_trim(void);

#endif
