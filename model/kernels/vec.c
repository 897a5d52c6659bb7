#include "kernels/vec.h"

#include "kernels/vec_levels.h"

const struct vec_ops *vec_ops(enum isa level)
{
#if defined(__x86_64__)
    if (level == ISA_AVX512)
        return vec_ops_avx512();
    if (level == ISA_AVX2)
        return vec_ops_avx2();
#endif
    (void)level;
    return vec_ops_c();
}
