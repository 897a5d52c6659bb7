#ifndef MODEL_SELFCHECK_H
#define MODEL_SELFCHECK_H

#include "cpu.h"

/* The best SIMD level, `wanted` or below, all of whose kernels (matrices in every format and width
 * of activations, attention for every cache type, row operations) answer a small fixed problem with
 * the bits of plain C. A level that does not is left out with a warning that names the CPU. Some
 * milliseconds the first time, nothing after. Not while a model runs. */
enum isa selfcheck_level(enum isa wanted);

#endif
