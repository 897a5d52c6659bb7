#define LANES 16
#include "kernels/pick_body.h"
#include "kernels/pick_levels.h"

const struct pick_ops *pick_ops_avx512(void)
{
    return &table;
}
