#ifndef CONFIG_SETTINGS_TABLE_H
#define CONFIG_SETTINGS_TABLE_H

#include "err.h"
#include "settings.h"

/* The rows of settings.def as data, for the parts of settings.c. */

enum setting_kind {
    KIND_HEADING,
    KIND_TEXT,
    KIND_INT,
    KIND_INT64,
    KIND_SIZE,
    KIND_REAL,
    KIND_BOOL,
    KIND_TEXTS,
    KIND_INTS
};

struct setting {
    enum setting_kind kind;
    const char *name;  /* with underscores; a heading's title */
    unsigned commands; /* bit 1 << enum settings_command */
    const char *standard;
    double low, high;
    const char *value, *help;
    size_t offset; /* of the field in struct settings */
};

struct command {
    const char *name, *follows, *help;
};

extern const struct setting settings_rows[SETTING_COUNT];
extern const struct command settings_commands[COMMAND_COUNT];

/* --some-name; SOME_NAME with ROPEWALK_ in front. */
#define SETTING_NAME_MAX 64
void setting_flag(const struct setting *row, char out[SETTING_NAME_MAX]);
void setting_variable(const struct setting *row, char out[SETTING_NAME_MAX]);
char setting_letter(enum setting_id id); /* of the short flag -p, or 0 */
bool setting_is_list(const struct setting *row);

/* Stores n values (one, unless it is a list; a list grows when `append`). The error says only what
 * was expected. */
int setting_store(struct settings *s, const struct setting *row, const char *const *values, int n,
                  bool append, struct err *err);
/* As above from one text, in which commas part the values of a list. */
int setting_store_text(struct settings *s, const struct setting *row, const char *text, bool append,
                       struct err *err);

#endif
