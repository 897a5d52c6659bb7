#include "model.h"
#include "testlib.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every published template with every scenario, byte for byte as transformers renders them. */

static char folder[512];
static json_t *scenarios;
static int64_t now;

static char *path_text(const char *name, const char *end, size_t *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, end);
    return test_read(path, bytes);
}

static json_t *path_json(const char *name)
{
    size_t bytes = 0;
    char *text = path_text(name, ".json", &bytes);
    json_t *json = text ? json_loadb(text, bytes, 0, NULL) : NULL;
    free(text);
    return json;
}

/* The variables that transformers gives to a template besides those of the scenario. */
static json_t *make_context(const json_t *scenario)
{
    json_t *context = json_deep_copy(scenario);
    json_object_del(context, "continue_final_message");
    if (!json_object_get(context, "add_generation_prompt"))
        json_object_set_new(context, "add_generation_prompt", json_false());
    return context;
}

/* Cuts behind the last message, as transformers does for continue_final_message. */
static size_t cut_final(const json_t *scenario, const struct chat_text *text)
{
    if (!json_is_true(json_object_get(scenario, "continue_final_message")))
        return text->bytes;
    const json_t *messages = json_object_get(scenario, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    size_t n = strlen(content);
    for (size_t at = text->bytes; at-- > 0;)
        if (text->bytes - at >= n && memcmp(text->text + at, content, n) == 0)
            return at + n;
    return text->bytes;
}

struct tally {
    int same, raised, other, bad;
};

static void report(struct tally *t, const char *name, const char *label, const char *what,
                   const char *wanted, const char *got)
{
    size_t at = 0;
    t->bad++;
    while (wanted[at] && wanted[at] == got[at])
        at++;
    printf("%s / %s: %s\n  at byte %zu\n  wanted ...%.200s\n  got    ...%.200s\n", name, label,
           what, at, wanted + at, got + at);
}

static void check_error(struct tally *t, const char *name, const char *label, const json_t *wanted,
                        int code, const struct err *err)
{
    const char *message = json_string_value(json_object_get(wanted, "error"));
    if (!json_is_true(json_object_get(wanted, "raised_by_template"))) {
        t->other++;
        return;
    }
    /* The file has the first 200 characters. */
    if (code == ERR_ARG && strncmp(err->text, message, strlen(message)) == 0)
        t->raised++;
    else
        report(t, name, label, "should raise", message, code ? err->text : "(text)");
}

static void check_one(struct tally *t, const char *name, const struct chat_template *template,
                      const char *label, const json_t *wanted, const json_t *trusted)
{
    struct err err = {0};
    struct chat_text text = {0};
    const json_t *scenario = json_object_get(scenarios, label);
    json_t *context = make_context(scenario);
    int code = chat_template_render(template, context, trusted, now, &text, &err);
    if (!json_is_string(wanted)) {
        check_error(t, name, label, wanted, code, &err);
    } else if (code) {
        report(t, name, label, "fails", json_string_value(wanted), err.text);
    } else {
        text.text[cut_final(scenario, &text)] = '\0';
        if (strcmp(text.text, json_string_value(wanted)) == 0)
            t->same++;
        else
            report(t, name, label, "differs", json_string_value(wanted), text.text);
    }
    free(text.text);
    free(text.plain);
    json_decref(context);
}

static void check_template(struct tally *t, const char *name)
{
    struct err err = {0};
    struct chat_template *template = NULL;
    size_t bytes = 0;
    char *source = path_text(name, ".jinja", &bytes);
    json_t *file = path_json(name);
    assert_non_null(source);
    assert_non_null(file);
    if (chat_template_create(source, bytes, &template, &err) != 0) {
        printf("%s: %s\n", name, err.text);
        t->bad++;
    } else {
        json_t *trusted = json_pack("{s:O, s:O}", "bos_token", json_object_get(file, "bos_token"),
                                    "eos_token", json_object_get(file, "eos_token"));
        const char *label;
        json_t *wanted;
        json_object_foreach(json_object_get(file, "rendered"), label, wanted)
        {
            check_one(t, name, template, label, wanted, trusted);
        }
        json_decref(trusted);
    }
    chat_template_destroy(template);
    json_decref(file);
    free(source);
}

static void published_templates_render_as_in_transformers(void **state)
{
    struct tally t = {0};
    int templates = 0;
    struct dirent *e;
    (void)state;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL) {
        char *end = strstr(e->d_name, ".jinja");
        if (!end)
            continue;
        *end = '\0';
        check_template(&t, e->d_name);
        templates++;
    }
    closedir(dir);
    printf("%d templates: %d texts equal, %d raised, %d fail in jinja2 for other reasons, %d bad\n",
           templates, t.same, t.raised, t.other, t.bad);
    assert_true(templates > 0);
    assert_int_equal(t.bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_templates_render_as_in_transformers)};
    const char *data = test_conformance();
    if (!data) {
        printf("no conformance data: skipped\n");
        return TEST_SKIPPED;
    }
    snprintf(folder, sizeof folder, "%s/chat", data);
    json_t *file = path_json("scenarios");
    if (!file)
        return 1;
    int y, mo, d, h, mi, s;
    if (sscanf(json_string_value(json_object_get(file, "now")), "%d-%d-%dT%d:%d:%d", &y, &mo, &d,
               &h, &mi, &s) != 6)
        return 1;
    /* Days since 1970 of a date after February 1970. */
    int64_t days = 365 * (int64_t)(y - 1970) + (y - 1969) / 4 + d - 1;
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    days += before[mo - 1] + (mo > 2 && y % 4 == 0);
    now = days * 86400 + h * 3600 + mi * 60 + s;
    scenarios = json_object_get(file, "scenarios");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(file);
    return failed;
}
