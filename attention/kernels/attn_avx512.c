#include "attn_ops.h"
void attn_ops_avx512(struct attn_ops *ops)
{
    (void)ops;
}
