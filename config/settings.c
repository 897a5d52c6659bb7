#include "settings.h"

#include "log.h"
#include "settings_table.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reader {
    struct settings *out;
    enum settings_command command;
    struct strbuf *problems;
    bool no_memory;
};

/* ---- names ---- */

static bool takes(enum settings_command command, const struct setting *row)
{
    return row->commands & 1u << command;
}

/* The row of a name of n bytes, in which - is as good as _; or NULL. */
static const struct setting *find_row(const char *name, size_t n)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        size_t k = 0;
        while (k < n && row->name[k] && row->name[k] == (name[k] == '-' ? '_' : name[k]))
            k++;
        if (row->kind != KIND_HEADING && k == n && !row->name[k])
            return row;
    }
    return NULL;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* How many letters must be put in, taken out, replaced or swapped with the next to make b of a
 * (of n letters, at most SETTING_NAME_MAX). */
static int distance(const char *a, size_t n, const char *b)
{
    int d[SETTING_NAME_MAX + 1][SETTING_NAME_MAX + 1];
    size_t m = strlen(b);
    for (size_t i = 0; i <= n; i++)
        d[i][0] = (int)i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            char c = a[i - 1] == '-' ? '_' : a[i - 1];
            int put_or_take = least(d[i - 1][j], d[i][j - 1]) + 1;
            d[i][j] = least(put_or_take, d[i - 1][j - 1] + (c != b[j - 1]));
            if (i > 1 && j > 1 && c == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[n][m];
}

/* The setting that a wrong name may have meant, or NULL. */
static const struct setting *nearest_row(unsigned commands, const char *name, size_t n)
{
    const struct setting *best = NULL;
    int best_distance = 1 + (int)(n < 6 ? 2 : n / 3);
    if (n > SETTING_NAME_MAX)
        return NULL;
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        int d = row->commands & commands ? distance(name, n, row->name) : best_distance;
        if (d < best_distance) {
            best_distance = d;
            best = row;
        }
    }
    return best;
}

/* ---- one value ---- */

static void say_result(struct reader *r, int rc, const char *name, const char *file,
                       const struct err *err)
{
    if (rc == ERR_NOMEM)
        r->no_memory = true;
    else if (rc)
        strbuf_addf(r->problems, "%s%s%s: %s\n", file ? file : "", file ? ": " : "", name,
                    err->text);
}

/* Stores a text that was called `name` where it came from, unless a stronger source has spoken. */
static void set(struct reader *r, const struct setting *row, enum setting_source source,
                const char *name, const char *text)
{
    unsigned char *from = &r->out->from[row - settings_rows];
    if (*from > source)
        return;
    struct err err = {0};
    int rc = setting_store_text(r->out, row, text, *from == source, &err);
    *from = (unsigned char)source;
    say_result(r, rc, name, NULL, &err);
}

/* ---- flags ---- */

struct arguments {
    int argc, next;
    char **argv;
    bool only_plain; /* after -- */
};

/* Returns the setting that seems to be meant, or NULL. */
static const struct setting *say_unknown(struct reader *r, const char *flag)
{
    const char *name = flag + strspn(flag, "-");
    size_t n = strcspn(name, "=");
    const char *command = settings_commands[r->command].name;
    const struct setting *row = find_row(name, n);
    char right[SETTING_NAME_MAX];
    strbuf_add(r->problems, flag, strcspn(flag, "="));
    if (row && !takes(r->command, row)) {
        strbuf_addf(r->problems, ": `ropewalk %s` does not take this setting\n", command);
        return row;
    }
    if (!row)
        row = nearest_row(1u << r->command, name, n);
    if (row) {
        setting_flag(row, right);
        strbuf_addf(r->problems, ": unknown setting; did you mean %s?\n", right);
    } else {
        strbuf_addf(r->problems, ": unknown setting; `ropewalk %s --help` lists them\n", command);
    }
    return row;
}

/* The row that a flag names, what it says after '=' (else NULL), and if it began with --no-. */
static const struct setting *flag_row(const struct reader *r, const char *flag, const char **value,
                                      bool *negated)
{
    size_t n = strcspn(flag, "=");
    const struct setting *row = NULL;
    *value = flag[n] ? flag + n + 1 : NULL;
    *negated = false;
    if (!strncmp(flag, "--", 2)) {
        row = find_row(flag + 2, n - 2);
        if (!row && n > 5 && !strncmp(flag, "--no-", 5)) {
            row = find_row(flag + 5, n - 5);
            *negated = row && row->kind == KIND_BOOL;
            row = *negated ? row : NULL;
        }
    } else if (n == 2) {
        for (int i = 0; i < SETTING_COUNT; i++)
            if (setting_letter((enum setting_id)i) == flag[1])
                row = &settings_rows[i];
    }
    return row && takes(r->command, row) ? row : NULL;
}

static bool is_flag(const char *argument)
{
    return argument[0] == '-' && argument[1];
}

/* The argument after a flag, if it can be its value: what looks like another flag of ours is one,
 * since to miss a value is better than to swallow a setting. NULL: there is none. */
static const char *take_value(const struct reader *r, struct arguments *a)
{
    const char *text = a->next < a->argc ? a->argv[a->next] : NULL, *ignored;
    bool negated;
    if (!text || (is_flag(text) && flag_row(r, text, &ignored, &negated)))
        return NULL;
    a->next++;
    return text;
}

static void read_flag(struct reader *r, struct arguments *a, const char *flag)
{
    const char *value;
    bool negated;
    const struct setting *row = flag_row(r, flag, &value, &negated);
    char name[SETTING_NAME_MAX];
    if (!row) {
        row = say_unknown(r, flag);
        if (row && row->kind != KIND_BOOL && !value)
            take_value(r, a);
        return;
    }
    setting_flag(row, name);
    if (negated && value) {
        strbuf_addf(r->problems, "%s: takes no value\n", flag);
        return;
    }
    if (row->kind == KIND_BOOL)
        value = value ? value : negated ? "no" : "yes";
    else if (!value)
        value = take_value(r, a);
    if (value)
        set(r, row, FROM_FLAG, name, value);
    else
        strbuf_addf(r->problems, "%s: needs a value, %s: %s\n", name, row->value, row->help);
}

static void read_plain(struct reader *r, const char *text)
{
    const struct setting *row = &settings_rows[SETTING_model];
    const char *command = settings_commands[r->command].name;
    if (!takes(r->command, row))
        strbuf_addf(r->problems, "%s: `ropewalk %s` takes no file\n", text, command);
    else if (r->out->from[SETTING_model] == FROM_FLAG)
        strbuf_addf(r->problems, "%s: the model is %s already; `ropewalk %s` takes one file\n",
                    text, r->out->model ? r->out->model : "given", command);
    else
        set(r, row, FROM_FLAG, "FILE", text);
}

static void read_arguments(struct reader *r, int argc, char **argv)
{
    struct arguments a = {.argc = argc, .argv = argv};
    while (a.next < argc) {
        const char *text = argv[a.next++];
        if (a.only_plain || !is_flag(text))
            read_plain(r, text);
        else if (!strcmp(text, "--"))
            a.only_plain = true;
        else
            read_flag(r, &a, text);
    }
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return true;
    return false;
}

/* ---- environment ---- */

/* Beside a service called "ropewalk" Kubernetes sets ROPEWALK_PORT=tcp://10.0.0.1:80, which is not
 * meant for us. */
static bool is_service_link(const char *value)
{
    return !strncmp(value, "tcp://", 6) || !strncmp(value, "udp://", 6);
}

static void read_environment(struct reader *r)
{
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        char name[SETTING_NAME_MAX];
        if (!takes(r->command, row))
            continue;
        setting_variable(row, name);
        const char *value = getenv(name);
        if (value && *value && !is_service_link(value))
            set(r, row, FROM_ENVIRONMENT, name, value);
    }
}

/* Others may have their own ROPEWALK_ names (Kubernetes has), so a strange one is no error; one
 * letter from a setting it is worth a word. */
static void warn_of_variables(void)
{
    extern char **environ;
    static const char prefix[] = "ROPEWALK_";
    for (char **e = environ; e && *e; e++) {
        if (strncmp(*e, prefix, sizeof prefix - 1))
            continue;
        char name[SETTING_NAME_MAX];
        const char *given = *e + sizeof prefix - 1;
        size_t n = strcspn(given, "=");
        if (n >= sizeof name)
            continue;
        for (size_t i = 0; i < n; i++)
            name[i] = (char)(given[i] >= 'A' && given[i] <= 'Z' ? given[i] | 0x20 : given[i]);
        const struct setting *row = find_row(name, n) ? NULL : nearest_row(~0u, name, n);
        if (!row || distance(name, n, row->name) > 1)
            continue;
        setting_variable(row, name);
        log_warning("%.*s in the environment is no setting; did you mean %s?",
                    (int)strcspn(*e, "="), *e, name);
    }
}

/* ---- the JSON file ---- */

/* A number or boolean as one would write it on the command line, if the setting may be one. */
static bool scalar_text(const struct setting *row, const json_t *value, struct strbuf *out)
{
    bool text = row->kind == KIND_TEXT || row->kind == KIND_TEXTS;
    if (json_is_boolean(value) && row->kind == KIND_BOOL)
        strbuf_adds(out, json_is_true(value) ? "yes" : "no");
    else if (json_is_integer(value) && !text)
        strbuf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value) && !text)
        strbuf_addf(out, "%.17g", json_real_value(value));
    return out->len > 0;
}

static int store_scalar(struct reader *r, const struct setting *row, const json_t *value,
                        struct err *err)
{
    struct strbuf text = {0};
    int rc = err_set(err, ERR_ARG, "expected %s", setting_is_list(row) ? "a list" : row->value);
    if (scalar_text(row, value, &text))
        rc = text.failed ? ERR_NOMEM : setting_store_text(r->out, row, text.data, false, err);
    strbuf_finish(&text);
    return rc;
}

/* A string is what one would write on the command line, commas and all; the items of an array are
 * taken as they are, one by one. */
static int store_json(struct reader *r, const struct setting *row, const json_t *value,
                      struct err *err)
{
    if (json_is_string(value))
        return setting_store_text(r->out, row, json_string_value(value), false, err);
    if (!json_is_array(value) || !setting_is_list(row))
        return store_scalar(r, row, value, err);
    int rc = setting_store(r->out, row, NULL, 0, false, err);
    for (size_t i = 0; i < json_array_size(value) && rc == 0; i++) {
        const json_t *item = json_array_get(value, i);
        struct strbuf text = {0};
        const char *string = json_string_value(item);
        if (!string && scalar_text(row, item, &text))
            string = text.data;
        rc = string ? setting_store(r->out, row, &string, 1, true, err)
                    : err_set(err, ERR_ARG, "item %zu of the list is of a wrong type", i + 1);
        strbuf_finish(&text);
    }
    return rc;
}

static void read_key(struct reader *r, const char *path, const char *key, const json_t *value)
{
    const struct setting *row = find_row(key, strlen(key));
    if (!row) {
        const struct setting *near = nearest_row(~0u, key, strlen(key));
        strbuf_addf(r->problems, "%s: %s: unknown setting%s%s%s\n", path, key,
                    near ? "; did you mean " : "", near ? near->name : "", near ? "?" : "");
        return;
    }
    unsigned char *from = &r->out->from[row - settings_rows];
    if (json_is_null(value) || !takes(r->command, row) || *from > FROM_FILE)
        return;
    struct err err = {0};
    int rc = store_json(r, row, value, &err);
    *from = FROM_FILE;
    say_result(r, rc, key, path, &err);
}

static void read_file(struct reader *r, const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        strbuf_addf(r->problems, "%s: cannot read the settings: %s", path, error.text);
        strbuf_addf(r->problems, error.line > 0 ? " (line %d)\n" : "\n", error.line);
        return;
    }
    if (!json_is_object(root))
        strbuf_addf(r->problems, "%s: expected one JSON object with settings\n", path);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) read_key(r, path, key, value);
    json_decref(root);
}

/* ---- all of them ---- */

static void read_defaults(struct reader *r)
{
    for (int i = 0; i < SETTING_COUNT; i++)
        if (settings_rows[i].standard)
            set(r, &settings_rows[i], FROM_DEFAULT, settings_rows[i].name,
                settings_rows[i].standard);
}

static void require_model(struct reader *r)
{
    if (takes(r->command, &settings_rows[SETTING_model]) && !r->out->model)
        strbuf_addf(r->problems, "which model? Name a GGUF file: ropewalk %s FILE\n",
                    settings_commands[r->command].name);
}

int settings_read(struct settings *out, enum settings_command command, int argc, char **argv,
                  struct strbuf *problems)
{
    struct reader r = {.out = out, .command = command, .problems = problems};
    size_t before = problems->len;
    memset(out, 0, sizeof *out);
    if (wants_help(argc, argv))
        return SETTINGS_HELP;
    read_arguments(&r, argc, argv);
    read_environment(&r);
    warn_of_variables();
    if (out->config)
        read_file(&r, out->config);
    read_defaults(&r);
    require_model(&r);
    if (r.no_memory || problems->failed)
        return ERR_NOMEM;
    return problems->len > before ? ERR_ARG : 0;
}

void settings_finish(struct settings *s)
{
    mem_arena_finish(&s->arena);
}
