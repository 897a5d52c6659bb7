#include "kernels/pick.h"

#include "kernels/pick_levels.h"

#include <stdatomic.h>

static _Atomic(const struct pick_ops *) in_use;

const struct pick_ops *pick_ops_of(enum isa level)
{
    static const struct pick_ops *(*const levels[ISA_COUNT])(void) = {
#define ISA(id, name, needs) [id] = pick_ops_##name,
#include "isa.def"
#undef ISA
    };
    return levels[level]();
}

void pick_set_isa(enum isa level)
{
    atomic_store(&in_use, pick_ops_of(level));
}

const struct pick_ops *pick_ops(void)
{
    const struct pick_ops *ops = atomic_load_explicit(&in_use, memory_order_acquire);
    if (ops)
        return ops;
    pick_set_isa(cpu_isa());
    return atomic_load(&in_use);
}
