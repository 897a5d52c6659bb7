#include "kernels/vec_body.h"
#include "kernels/vec_levels.h"

const struct vec_ops *vec_ops_neon(void)
{
    return &table;
}
