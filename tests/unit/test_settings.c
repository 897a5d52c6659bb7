#include "testlib.h"

#include "cpu.h"
#include "err.h"
#include "settings.h"
#include "settings_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

struct fixture {
    struct settings s;
    struct strbuf problems;
};

static int begin(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    for (int i = 0; i < SETTING_COUNT; i++) {
        char name[SETTING_NAME_MAX];
        if (settings_rows[i].kind == KIND_HEADING)
            continue;
        setting_variable(&settings_rows[i], name);
        unsetenv(name);
    }
    return *state ? 0 : -1;
}

static int end(void **state)
{
    struct fixture *f = *state;
    settings_finish(&f->s);
    strbuf_finish(&f->problems);
    free(f);
    return 0;
}

/* Reads the settings of a command from flags given as one text with spaces. */
static int read_line(struct fixture *f, enum settings_command command, const char *line)
{
    char *copy = strdup(line), *argv[64], *rest = copy;
    int argc = 0;
    for (char *word; (word = strtok_r(rest, " ", &rest));)
        argv[argc++] = word;
    settings_finish(&f->s);
    strbuf_clear(&f->problems);
    int rc = settings_read(&f->s, command, argc, argv, &f->problems);
    free(copy);
    return rc;
}

static void must_read(struct fixture *f, enum settings_command command, const char *line)
{
    int rc = read_line(f, command, line);
    if (rc)
        print_error("%s", f->problems.data ? f->problems.data : "no memory\n");
    assert_int_equal(rc, 0);
}

static void must_say(struct fixture *f, enum settings_command command, const char *line,
                     const char *sentence)
{
    assert_int_equal(read_line(f, command, line), ERR_ARG);
    if (!strstr(f->problems.data, sentence))
        fail_msg("%s\nsaid: %snot: %s", line, f->problems.data, sentence);
}

static char *write_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_settings_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return path;
}

static int read_json(struct fixture *f, enum settings_command command, const char *json)
{
    char line[128], *path = write_file(json);
    snprintf(line, sizeof line, "m --config %s", path);
    int rc = read_line(f, command, line);
    unlink(path);
    return rc;
}

static void every_default_is_within_its_own_limits(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        struct err err = {0};
        if (row->standard)
            assert_int_equal(setting_store_text(&f->s, row, row->standard, false, &err), 0);
        if (row->kind == KIND_BOOL)
            assert_non_null(row->standard);
        assert_true(row->kind == KIND_HEADING || (row->help && row->commands));
        assert_true(strlen(row->name) < SETTING_NAME_MAX - strlen("ROPEWALK_"));
    }
}

static void every_setting_is_read_from_every_source(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < SETTING_COUNT; i++) {
        const struct setting *row = &settings_rows[i];
        if (!row->standard || row->kind == KIND_HEADING)
            continue;
        enum settings_command command = (enum settings_command)__builtin_ctz(row->commands);
        char name[SETTING_NAME_MAX], line[256];
        setting_flag(row, name);
        snprintf(line, sizeof line, "%s %s=%s", command == COMMAND_HEALTH ? "" : "m", name,
                 row->standard);
        must_read(f, command, line);
        assert_int_equal(f->s.from[i], FROM_FLAG);
        setting_variable(row, name);
        setenv(name, row->standard, 1);
        must_read(f, command, command == COMMAND_HEALTH ? "" : "m");
        unsetenv(name);
        assert_int_equal(f->s.from[i], FROM_ENVIRONMENT);
        snprintf(line, sizeof line, "{\"%s\": \"%s\"}", row->name, row->standard);
        assert_int_equal(read_json(f, command, line), 0);
        assert_int_equal(f->s.from[i], FROM_FILE);
    }
}

static void defaults_hold_when_nothing_is_said(void **state)
{
    struct fixture *f = *state;
    must_read(f, COMMAND_SERVE, "model.gguf");
    assert_string_equal(f->s.model, "model.gguf");
    assert_string_equal(f->s.host, "127.0.0.1");
    assert_int_equal(f->s.port, 8080);
    assert_int_equal(f->s.window, -1);
    assert_int_equal(f->s.memory, 0);
    assert_string_equal(f->s.kv, "f16");
    assert_int_equal(f->s.body_limit, 0); /* auto */
    assert_true(f->s.page);
    assert_null(f->s.chat_template);
    assert_int_equal(f->s.api_key.n, 0);
    assert_int_equal(f->s.from[SETTING_api_key], FROM_NOWHERE);
}

static void flag_beats_environment_beats_file_beats_default(void **state)
{
    struct fixture *f = *state;
    char line[128];
    const char *path = write_file("{\"port\": 1, \"threads\": 2, \"parallel\": 3, \"kv\": null}");
    snprintf(line, sizeof line, "m --port 7 --config %s", path);
    setenv("ROPEWALK_PORT", "5", 1);
    setenv("ROPEWALK_THREADS", "6", 1);
    must_read(f, COMMAND_SERVE, line);
    assert_int_equal(f->s.port, 7);
    assert_int_equal(f->s.threads, 6);
    assert_int_equal(f->s.parallel, 3);
    assert_int_equal(f->s.ctx, 0);
    assert_string_equal(f->s.kv, "f16");
    unlink(path);
}

static void flags_take_their_values_in_either_form(void **state)
{
    struct fixture *f = *state;
    must_read(f, COMMAND_SERVE,
              "--port=9 --threads 3 m --max-logprobs -1 --no-page --open_metrics");
    assert_int_equal(f->s.port, 9);
    assert_int_equal(f->s.threads, 3);
    assert_int_equal(f->s.max_logprobs, -1);
    assert_false(f->s.page);
    assert_true(f->s.open_metrics);
    must_read(f, COMMAND_RUN, "m -p -hello --temperature 0.25 --seed 9000000000000000000");
    assert_string_equal(f->s.prompt, "-hello");
    assert_true(f->s.temperature == 0.25);
    assert_true(f->s.seed == 9000000000000000000);
    must_read(f, COMMAND_RUN, "--top-k 5 -- --odd");
    assert_string_equal(f->s.model, "--odd");
}

static void sizes_take_powers_of_1024(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
    } rows[] = {
        {"--memory=123", 123},       {"--memory=4k", 4096},         {"--memory=512m", 512u << 20},
        {"--memory=2G", 2ull << 30}, {"--memory=1.5g", 3ull << 29}, {"--memory=512Mi", 512u << 20},
        {"--memory=1KiB", 1024},     {"--memory=1mb", 1u << 20},    {"--memory=1t", 1ull << 40},
        {"--memory=auto", 0},
    };
    static const char *const wrong[] = {
        "--memory=",
        "--memory=x",
        "--memory=-1",
        "--memory=1q",
        "--memory=1..5g",
        "--memory=1e3",
        "--memory=9999999999999999999",
        "--memory=99999999t",
        "--memory=99999999.5t",
        "--memory=.",
        "--memory=1kk",
        "--memory=0x10",
    };
    char line[64];
    for (int i = 0; i < COUNT(rows); i++) {
        snprintf(line, sizeof line, "m %s", rows[i].text);
        must_read(*state, COMMAND_PLAN, line);
        assert_int_equal(((struct fixture *)*state)->s.memory, rows[i].bytes);
    }
    for (int i = 0; i < COUNT(wrong); i++) {
        snprintf(line, sizeof line, "m %s", wrong[i]);
        must_say(*state, COMMAND_PLAN, line, "--memory: expected bytes");
    }
}

static void lists_are_parted_at_commas_and_grow_with_each_flag(void **state)
{
    struct fixture *f = *state;
    setenv("ROPEWALK_API_KEY", "never", 1);
    must_read(f, COMMAND_SERVE, "m --api-key a,b,,c --api-key d");
    assert_int_equal(f->s.api_key.n, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(f->s.api_key.items[i][0], 'a' + i);
    must_read(f, COMMAND_PLAN, "m --users 1,2 --users=3 --contexts 4k,128k");
    assert_int_equal(f->s.users.n, 3);
    assert_int_equal(f->s.users.items[2], 3);
    assert_int_equal(f->s.contexts.items[1], 131072);
    must_say(f, COMMAND_PLAN, "m --users 1,two", "found \"two\"");
    must_say(f, COMMAND_PLAN, "m --users 0", "each from 1 to");
}

static void all_wrong_settings_are_reported_at_once(void **state)
{
    struct fixture *f = *state;
    static const char *const sentences[] = {
        "--prot: unknown setting; did you mean --port?\n",
        "--activation-bits: expected one of 8, 16, found \"f8\"\n",
        "--users: `ropewalk serve` does not take this setting\n",
        "--max-queue: expected a whole number from 0 to 16777216, found \"-2\"\n",
        "--zzzzzzzzz: unknown setting; `ropewalk serve --help` lists them\n",
        "two: the model is one already; `ropewalk serve` takes one file\n",
        "--page: expected yes or no, found \"maybe\"\n",
        "--host: needs a value, ADDRESS: address to listen on\n",
        "ROPEWALK_THREADS: expected a whole number from 0 to 1024 or auto, found \"many\"\n",
    };
    setenv("ROPEWALK_THREADS", "many", 1);
    int rc = read_line(
        f, COMMAND_SERVE,
        "--prot 1 --activation-bits=f8 --users 3 --max-queue -2 --zzzzzzzzz=1 one two --page=maybe "
        "--host --no-open-metrics");
    assert_int_equal(rc, ERR_ARG);
    int lines = 0;
    for (const char *p = f->problems.data; (p = strchr(p, '\n')); p++)
        lines++;
    for (int i = 0; i < COUNT(sentences); i++)
        if (!strstr(f->problems.data, sentences[i]))
            fail_msg("%s\nis not in:\n%s", sentences[i], f->problems.data);
    assert_int_equal(lines, COUNT(sentences));
}

static void commands_take_only_their_own(void **state)
{
    must_say(*state, COMMAND_HEALTH, "file", "`ropewalk health` takes no file");
    must_say(*state, COMMAND_RUN, "", "which model?");
    must_say(*state, COMMAND_RUN, "m --port 1", "`ropewalk run` does not take this setting");
    must_say(*state, COMMAND_SERVE, "m --activation-bits 12", "expected one of 8, 16");
    must_say(*state, COMMAND_SERVE, "m -x", "-x: unknown setting");
    must_say(*state, COMMAND_SERVE, "m --no-port 1", "--no-port: unknown setting");
    must_say(*state, COMMAND_RUN, "m --top-p 1.01", "expected a number from 0 to 1");
    must_say(*state, COMMAND_RUN, "m --temperature nan", "expected a number from 0 to 100");
    /* The environment and the file serve all commands: what one does not take is for another. */
    setenv("ROPEWALK_PORT", "nonsense", 1);
    must_read(*state, COMMAND_RUN, "m");
    assert_int_equal(read_json(*state, COMMAND_RUN, "{\"port\": 1}"), 0);
}

static void service_links_of_kubernetes_are_not_ours(void **state)
{
    setenv("ROPEWALK_PORT", "tcp://10.0.0.7:80", 1);
    setenv("ROPEWALK_HOST", "", 1);
    must_read(*state, COMMAND_SERVE, "m");
    assert_int_equal(((struct fixture *)*state)->s.port, 8080);
    assert_string_equal(((struct fixture *)*state)->s.host, "127.0.0.1");
}

static void files_give_json_types(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(read_json(f, COMMAND_SERVE,
                               "{\"port\": 1, \"page\": false, \"api_key\": [\"a,b\", \"c\"],"
                               "\"served_model_name\": \"x, y\", \"memory\": \"1g\","
                               "\"drain_seconds\": 0.5, \"api-key-file\": \"k\"}"),
                     0);
    assert_int_equal(f->s.port, 1);
    assert_false(f->s.page);
    assert_int_equal(f->s.api_key.n, 2);
    assert_string_equal(f->s.api_key.items[0], "a,b");
    assert_int_equal(f->s.memory, 1 << 30);
    assert_true(f->s.drain_seconds == 0.5);
    assert_string_equal(f->s.api_key_file, "k");
    assert_int_equal(f->s.served_model_name.n, 2);
    assert_string_equal(f->s.served_model_name.items[1], "y");
    assert_int_equal(read_json(f, COMMAND_SERVE, "{\"api_key\": []}"), 0);
    assert_int_equal(f->s.api_key.n, 0);
}

static void wrong_files_are_explained(void **state)
{
    static const struct {
        const char *json, *sentence;
    } rows[] = {
        {"{\"prot\": 1}", ": prot: unknown setting; did you mean port?\n"},
        {"{\"port\": [1]}", ": port: expected N\n"},
        {"{\"port\": 1.5}", "found \"1.5\""},
        {"{\"port\": true}", ": port: expected N\n"},
        {"{\"host\": 3}", ": host: expected ADDRESS\n"},
        {"{\"api_key\": [3]}", ": api_key: item 1 of the list is of a wrong type\n"},
        {"{\"port\": 70000, \"kv\": \"x\"}", "70000"},
        {"{\"api_key\": 3}", ": api_key: expected a list\n"},
        {"[1]", "expected one JSON object"},
        {"{\"port\": 1, \"port\": 2}", "cannot read the settings"},
        {"{", "(line 1)"},
    };
    struct fixture *f = *state;
    for (int i = 0; i < COUNT(rows); i++) {
        assert_int_equal(read_json(f, COMMAND_SERVE, rows[i].json), ERR_ARG);
        if (!strstr(f->problems.data, rows[i].sentence))
            fail_msg("%s said %s", rows[i].json, f->problems.data);
    }
    must_say(f, COMMAND_SERVE, "m --config /no/such/file", "/no/such/file: cannot read");
}

static void help_lists_what_the_command_takes(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(read_line(f, COMMAND_SERVE, "--nonsense --help"), SETTINGS_HELP);
    assert_int_equal(read_line(f, COMMAND_SERVE, "-h"), SETTINGS_HELP);
    for (int c = 0; c < COMMAND_COUNT; c++) {
        struct strbuf help = {0};
        settings_help((enum settings_command)c, &help);
        assert_non_null(help.data);
        for (int i = 0; i < SETTING_COUNT; i++) {
            const struct setting *row = &settings_rows[i];
            char flag[SETTING_NAME_MAX];
            setting_flag(row, flag);
            const char *at = strstr(help.data, row->kind == KIND_BOOL ? flag + 2 : flag);
            if (row->kind != KIND_HEADING && row->commands & 1u << c)
                assert_non_null(at);
        }
        strbuf_finish(&help);
        assert_int_equal(settings_command(settings_commands[c].name), c);
    }
    assert_int_equal(settings_command("no"), -1);
}

/* The list names the levels of every kind of CPU. */
static void kernels_are_the_levels_there_are(void **state)
{
    (void)state;
    for (int i = 0; i < ISA_COUNT; i++) {
        char word[32];
        snprintf(word, sizeof word, "|%s", isa_name((enum isa)i));
        assert_non_null(strstr(settings_rows[SETTING_kernels].value, word));
    }
}

static void readme_has_the_table(void **state)
{
    struct strbuf table = {0};
    size_t bytes;
    char *readme = test_read(PROJECT_DIR "/README.md", &bytes);
    (void)state;
    assert_non_null(readme);
    strbuf_adds(&table, "<!-- settings -->\n");
    settings_markdown(&table);
    strbuf_adds(&table, "<!-- /settings -->\n");
    assert_false(table.failed);
    if (!strstr(readme, table.data))
        fail_msg("README.md has another table of settings than settings.def: ./dev readme");
    strbuf_finish(&table);
    free(readme);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(every_default_is_within_its_own_limits),
        TEST(every_setting_is_read_from_every_source),
        TEST(defaults_hold_when_nothing_is_said),
        TEST(flag_beats_environment_beats_file_beats_default),
        TEST(flags_take_their_values_in_either_form),
        TEST(sizes_take_powers_of_1024),
        TEST(lists_are_parted_at_commas_and_grow_with_each_flag),
        TEST(all_wrong_settings_are_reported_at_once),
        TEST(commands_take_only_their_own),
        TEST(service_links_of_kubernetes_are_not_ours),
        TEST(files_give_json_types),
        TEST(wrong_files_are_explained),
        TEST(help_lists_what_the_command_takes),
        TEST(kernels_are_the_levels_there_are),
        TEST(readme_has_the_table),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
