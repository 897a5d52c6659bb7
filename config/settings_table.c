#include "settings_table.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* The words of the `commands` column. */
enum {
    SERVE = 1 << COMMAND_SERVE,
    RUN = 1 << COMMAND_RUN,
    PLAN = 1 << COMMAND_PLAN,
    BENCH = 1 << COMMAND_BENCH,
    HEALTH = 1 << COMMAND_HEALTH,
    MODEL = SERVE | RUN | PLAN | BENCH
};

const struct command settings_commands[COMMAND_COUNT] = {
#define COMMAND(id, name, follows, help) [id] = {name, follows, help},
#include "settings.def"
};

const struct setting settings_rows[SETTING_COUNT] = {
#define HEADING(id, title) [SETTING_##id] = {.kind = KIND_HEADING, .name = title},
#define SETTING(kind, name, commands, standard, low, high, value, help)                            \
    [SETTING_##name] = {KIND_##kind, #name, commands,                                              \
                        standard,    low,   high,                                                  \
                        value,       help,  offsetof(struct settings, name)},
#include "settings.def"
};

int settings_command(const char *name)
{
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(name, settings_commands[i].name))
            return i;
    return -1;
}

void setting_flag(const struct setting *row, char out[SETTING_NAME_MAX])
{
    snprintf(out, SETTING_NAME_MAX, "--%s", row->name);
    for (char *c = out; *c; c++)
        if (*c == '_')
            *c = '-';
}

void setting_variable(const struct setting *row, char out[SETTING_NAME_MAX])
{
    snprintf(out, SETTING_NAME_MAX, "ROPEWALK_%s", row->name);
    for (char *c = out; *c; c++)
        *c = (char)toupper((unsigned char)*c);
}

char setting_letter(enum setting_id id)
{
    return id == SETTING_prompt ? 'p' : 0;
}

bool setting_is_list(const struct setting *row)
{
    return row->kind == KIND_TEXTS || row->kind == KIND_INTS;
}
