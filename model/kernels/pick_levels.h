#ifndef MODEL_KERNELS_PICK_LEVELS_H
#define MODEL_KERNELS_PICK_LEVELS_H

#include "kernels/pick.h"

#define ISA(id, name, needs) const struct pick_ops *pick_ops_##name(void);
#include "isa.def"
#undef ISA

#endif
