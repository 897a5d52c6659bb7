#ifndef CONFIG_SETTINGS_H
#define CONFIG_SETTINGS_H

#include "mem.h"
#include "strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Settings of every command, read from flags, the environment, a JSON file and defaults: the first
 * of these that has a value counts. settings.def is the list. */

enum settings_command {
#define COMMAND(id, name, follows, help) id,
#include "settings.def"
    COMMAND_COUNT
};

enum setting_id {
#define HEADING(id, title)       SETTING_##id,
#define SETTING(kind, name, ...) SETTING_##name,
#include "settings.def"
    SETTING_COUNT
};

enum setting_source { FROM_NOWHERE, FROM_DEFAULT, FROM_FILE, FROM_ENVIRONMENT, FROM_FLAG };

struct settings_texts {
    const char **items;
    int n;
};
struct settings_ints {
    int *items;
    int n;
};

#define SETTING_TYPE_TEXT  const char *
#define SETTING_TYPE_INT   int
#define SETTING_TYPE_INT64 int64_t
#define SETTING_TYPE_SIZE  size_t
#define SETTING_TYPE_REAL  double
#define SETTING_TYPE_BOOL  bool
#define SETTING_TYPE_TEXTS struct settings_texts
#define SETTING_TYPE_INTS  struct settings_ints

/* Field `port` is the setting --port, and so on. Texts without a value are NULL; texts with a list
 * of words to choose from hold one of these words. Everything lives as long as the structure. */
struct settings {
#define SETTING(kind, name, ...) SETTING_TYPE_##kind name;
#include "settings.def"
    unsigned char from[SETTING_COUNT]; /* enum setting_source, by enum setting_id */
    struct mem_arena arena;
};

/* The command of that name, or -1. */
int settings_command(const char *name);

#define SETTINGS_HELP 1 /* --help or -h was among the arguments: nothing else was looked at */

/* Reads the settings of a command. argv[0 .. argc) is what follows the command's name; it and the
 * environment are only read. Returns 0, SETTINGS_HELP, or ERR_ARG (ERR_NOMEM); then `problems`
 * has a sentence for everything that is wrong, each ending with a newline. Call settings_finish
 * whatever was returned. */
int settings_read(struct settings *out, enum settings_command command, int argc, char **argv,
                  struct strbuf *problems);
void settings_finish(struct settings *s);

/* What `ropewalk --help`, `ropewalk COMMAND --help` and the README say. */
void settings_overview(struct strbuf *out);
void settings_help(enum settings_command command, struct strbuf *out);
void settings_markdown(struct strbuf *out);

#endif
