#ifndef MODEL_KERNELS_VEC_LEVELS_H
#define MODEL_KERNELS_VEC_LEVELS_H

#include "kernels/vec.h"

#define ISA(id, name, needs) const struct vec_ops *vec_ops_##name(void);
#include "isa.def"
#undef ISA

#endif
