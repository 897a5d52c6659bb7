#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_int limit = LOG_INFO;

void log_set_level(enum log_level most)
{
    atomic_store(&limit, (int)most);
}

bool log_shows(enum log_level level)
{
    return (int)level <= atomic_load(&limit);
}

void log_at(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    if (!log_shows(level))
        return;
    char line[2048];
    int n = snprintf(line, sizeof line, "ropewalk: %s", names[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    if (m < 0)
        return;
    size_t len = (size_t)n + (size_t)m;
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    line[len++] = '\n';
    /* One write, so that lines of several threads do not mix. */
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}
