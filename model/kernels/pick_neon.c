#define LANES 4
#include "kernels/pick_body.h"
#include "kernels/pick_levels.h"

const struct pick_ops *pick_ops_neon(void)
{
    return &table;
}
