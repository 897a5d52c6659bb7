#include "kernels/vec.h"

#include "kernels/vec_levels.h"

const struct vec_ops *vec_ops(enum isa level)
{
    static const struct vec_ops *(*const levels[ISA_COUNT])(void) = {
#define ISA(id, name, needs) [id] = vec_ops_##name,
#include "isa.def"
#undef ISA
    };
    return levels[level]();
}
