#ifndef MODEL_KERNELS_VEC_LEVELS_H
#define MODEL_KERNELS_VEC_LEVELS_H

#include "kernels/vec.h"

const struct vec_ops *vec_ops_c(void);
const struct vec_ops *vec_ops_avx2(void);
const struct vec_ops *vec_ops_avx512(void);

#endif
