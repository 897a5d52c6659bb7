#include "program.h"

#include "commands.h"
#include "heap.h"
#include "log.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*const commands[COMMAND_COUNT])(const struct settings *) = {
    [COMMAND_SERVE] = command_serve,   [COMMAND_RUN] = command_run,
    [COMMAND_PLAN] = command_plan,     [COMMAND_BENCH] = command_bench,
    [COMMAND_HEALTH] = command_health,
};

static void show(void (*write)(struct strbuf *), FILE *to)
{
    struct strbuf text = {0};
    write(&text);
    if (text.data)
        fputs(text.data, to);
    strbuf_finish(&text);
}

static void set_log_level(const struct settings *s)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (s->log_level && !strcmp(s->log_level, names[i]))
            log_set_level((enum log_level)i);
}

/* OpenBLAS reads its variable when it is loaded: set it, and begin again. Once: the variable is set
 * then. */
static void fit_blas(const struct settings *s, char **argv)
{
    const char *core = s->kernels && !strcmp(s->kernels, "float") ? model_blas_core() : NULL;
    if (!core || setenv("OPENBLAS_CORETYPE", core, 1))
        return;
    log_info("OpenBLAS does not know this CPU: starting again with its %s kernels", core);
    execv("/proc/self/exe", argv);
    log_warning("could not start again: OpenBLAS will be slow");
}

static int run_command(enum settings_command command, int argc, char **argv)
{
    struct settings s;
    struct strbuf problems = {0};
    int code = 1;
    int rc = settings_read(&s, command, argc, argv, &problems);
    if (rc == SETTINGS_HELP) {
        struct strbuf help = {0};
        settings_help(command, &help);
        fputs(help.data ? help.data : "", stdout);
        strbuf_finish(&help);
        code = 0;
    } else if (rc) {
        fputs(problems.data ? problems.data : "out of memory\n", stderr);
    } else {
        set_log_level(&s);
        fit_blas(&s, argv - 2);
        code = commands[command](&s);
    }
    strbuf_finish(&problems);
    settings_finish(&s);
    return code;
}

int program_main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    heap_setup();
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        show(settings_overview, stdout);
        return 0;
    }
    if (!strcmp(name, "--version")) {
        puts("ropewalk " PROGRAM_VERSION);
        return 0;
    }
    if (!strcmp(name, "settings")) {
        show(settings_markdown, stdout);
        return 0;
    }
    int command = settings_command(name);
    if (command < 0) {
        fprintf(stderr, "ropewalk: there is no command \"%s\"; `ropewalk --help` lists them\n",
                name);
        return 1;
    }
    return run_command((enum settings_command)command, argc - 2, argv + 2);
}
