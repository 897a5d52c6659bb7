#ifndef CONFIG_CPU_H
#define CONFIG_CPU_H

enum isa {
#define ISA(id, name, needs) id,
#include "isa.def"
#undef ISA
    ISA_COUNT
};

/* The best level this CPU and operating system can run. Constant after the first call. */
enum isa cpu_isa(void);

const char *isa_name(enum isa level);
/* -1 when no level has that name. */
int isa_from_name(const char *name);

/* The CPU's own name ("AMD EPYC ..."), for messages. */
const char *cpu_name(void);

#endif
