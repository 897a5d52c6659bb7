#ifndef SERVER_COMMANDS_H
#define SERVER_COMMANDS_H

#include "settings.h"

#define PROGRAM_VERSION "0.1.0"

/* One function per command of the program; each returns its exit code. */
int command_serve(const struct settings *s);
int command_run(const struct settings *s);
int command_plan(const struct settings *s);
int command_bench(const struct settings *s);
int command_health(const struct settings *s);

#endif
