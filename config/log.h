#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

/* Messages for the operator, one line each on stderr: "ropewalk: warning: ...". Thread-safe. */

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level most); /* messages above it are dropped; default LOG_INFO */
bool log_shows(enum log_level level);    /* for what is costly to say */
void log_at(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)   log_at(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_WARNING, __VA_ARGS__)
#define log_info(...)    log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_at(LOG_DEBUG, __VA_ARGS__)

#endif
