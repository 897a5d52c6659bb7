#ifndef MODEL_BLAS_H
#define MODEL_BLAS_H

#include "err.h"

/* OpenBLAS, which only --kernels float uses, picks its kernels by the name of the CPU when it is
 * loaded. Older builds do not know newer CPUs: they fall back to kernels of twenty years ago, or
 * compute wrong results. */

/* The value that OPENBLAS_CORETYPE should have for a program on this CPU, or NULL when the kernels
 * in use are fit for it (or somebody has set the variable already). */
const char *blas_better_core(void);

/* ERR_UNSUPPORTED when a small product comes out wrong. */
int blas_check(struct err *err);

#endif
