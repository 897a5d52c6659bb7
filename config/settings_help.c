#include "settings_table.h"

#include <string.h>

#define FLAG_COLUMNS 30
#define LINE_COLUMNS 96

static bool shown(const struct setting *row, unsigned commands)
{
    return row->kind != KIND_HEADING && row->commands & commands;
}

/* If a heading has a row of these commands under it. */
static bool heading_shown(const struct setting *row, unsigned commands)
{
    const struct setting *end = settings_rows + SETTING_COUNT;
    for (row++; row < end && row->kind != KIND_HEADING; row++)
        if (shown(row, commands))
            return true;
    return false;
}

static void add_flag(struct strbuf *out, const struct setting *row)
{
    char flag[SETTING_NAME_MAX];
    char letter = setting_letter((enum setting_id)(row - settings_rows));
    setting_flag(row, flag);
    bool on = row->kind == KIND_BOOL && !strcmp(row->standard, "yes");
    if (letter)
        strbuf_addf(out, "-%c, ", letter);
    strbuf_addf(out, on ? "--no-%s" : "--%s", flag + 2);
    if (row->kind != KIND_BOOL)
        strbuf_addf(out, " %s", row->value);
}

/* Words of `text`, broken at the line's end; continued lines begin under the first. */
static void add_wrapped(struct strbuf *out, const char *text)
{
    size_t column = FLAG_COLUMNS;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column + n > LINE_COLUMNS) {
            strbuf_addf(out, "\n%*s", FLAG_COLUMNS, "");
            column = FLAG_COLUMNS;
        }
        strbuf_add(out, text, n);
        column += n + 1;
        text += n;
        if (*text == ' ')
            text++;
        strbuf_adds(out, *text && column + strcspn(text, " ") <= LINE_COLUMNS ? " " : "");
    }
}

static void add_row(struct strbuf *out, const struct setting *row)
{
    struct strbuf text = {0};
    strbuf_adds(out, "  ");
    size_t start = out->len - 2;
    add_flag(out, row);
    if (out->len - start < FLAG_COLUMNS - 1)
        strbuf_addf(out, "%*s", (int)(FLAG_COLUMNS - (out->len - start)), "");
    else
        strbuf_addf(out, "\n%*s", FLAG_COLUMNS, "");
    strbuf_addf(&text,
                row->kind == KIND_BOOL && !strcmp(row->standard, "yes") ? "without %s" : "%s",
                row->help);
    if (row->standard && row->kind != KIND_BOOL)
        strbuf_addf(&text, " (%s)", row->standard);
    add_wrapped(out, text.failed ? row->help : text.data);
    strbuf_addc(out, '\n');
    strbuf_finish(&text);
}

void settings_overview(struct strbuf *out)
{
    strbuf_adds(out, "Usage: ropewalk COMMAND [FILE] [settings]\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        const struct command *c = &settings_commands[i];
        strbuf_addf(out, "  %s %-*s%s\n", c->name, 16 - (int)strlen(c->name), c->follows, c->help);
    }
    strbuf_adds(out, "\n`ropewalk COMMAND --help` lists the settings of a command.\n");
}

void settings_help(enum settings_command command, struct strbuf *out)
{
    const struct command *c = &settings_commands[command];
    strbuf_addf(out, "Usage: ropewalk %s%s%s [settings]\n\n%s\n", c->name, *c->follows ? " " : "",
                c->follows, c->help);
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        if (row->kind == KIND_HEADING && heading_shown(row, 1u << command))
            strbuf_addf(out, "\n%s\n", row->name);
        else if (shown(row, 1u << command))
            add_row(out, row);
    }
    strbuf_adds(out,
                "\nDefaults are in brackets. Every --some-name is also ROPEWALK_SOME_NAME in the\n"
                "environment and \"some_name\" in the JSON file of --config; a flag counts before\n"
                "the environment, the environment before the file. SIZE and N take k, m and g\n"
                "(powers of 1024). LIST has commas between its items.\n");
}

static void add_cell(struct strbuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            strbuf_addc(out, '\\');
        strbuf_addc(out, *text);
    }
}

static void add_commands(struct strbuf *out, unsigned commands)
{
    const char *between = "";
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (!(commands & 1u << i))
            continue;
        strbuf_addf(out, "%s%s", between, settings_commands[i].name);
        between = ", ";
    }
}

static void add_markdown_row(struct strbuf *out, const struct setting *row)
{
    struct strbuf flag = {0};
    add_flag(&flag, row);
    strbuf_adds(out, "| `");
    add_cell(out, flag.failed ? row->name : flag.data);
    strbuf_adds(out, "` | ");
    if (row->standard && row->kind != KIND_BOOL)
        strbuf_addf(out, "`%s`", row->standard);
    strbuf_adds(out, " | ");
    add_commands(out, row->commands);
    strbuf_adds(out, " | ");
    if (row->kind == KIND_BOOL && !strcmp(row->standard, "yes"))
        strbuf_adds(out, "without ");
    add_cell(out, row->help);
    strbuf_adds(out, " |\n");
    strbuf_finish(&flag);
}

void settings_markdown(struct strbuf *out)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        if (row->kind != KIND_HEADING)
            add_markdown_row(out, row);
        else
            strbuf_addf(
                out, "%s**%s**\n\n| setting | default | command | meaning |\n|---|---|---|---|\n",
                i ? "\n" : "", row->name);
    }
}
