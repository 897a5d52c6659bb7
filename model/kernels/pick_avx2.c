#define LANES 8
#include "kernels/pick_body.h"
#include "kernels/pick_levels.h"

const struct pick_ops *pick_ops_avx2(void)
{
    return &table;
}
