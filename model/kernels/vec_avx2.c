#include "kernels/vec_body.h"
#include "kernels/vec_levels.h"

const struct vec_ops *vec_ops_avx2(void)
{
    return &table;
}
