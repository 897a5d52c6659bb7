#include "api.h"
#include "json_in.h"
#include "openai.h"
#include "testlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* From bodies to jobs, without sockets: every row of the field tables, memory running out at every
 * allocation, and any bytes. `request_test --fuzz SECONDS` only does the last, for as long. */

/* ---- allocations that fail on demand (--wrap=malloc and so on) ---- */

static long fail_at = -1; /* counts down; the allocation at 0 fails */
static long allocations;

static bool fails(void)
{
    allocations++;
    return fail_at >= 0 && fail_at-- == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t m)
{
    return fails() ? NULL : __real_calloc(n, m);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

/* ---- one request ---- */

static struct server server;
static struct server_config config;

static void set_up(void)
{
    struct err err;
    json_in_setup(0);
    config = server_config_default;
    config.max_logprobs = -1;
    server.config = &config;
    server.tokenizer = model_tokenizer(NULL);
    server.chat_template = model_chat_template(NULL, &err);
}

typedef void work_fn(struct exchange *ex);

static struct exchange run(work_fn *work, const char *body, size_t bytes)
{
    struct exchange ex = {.server = &server};
    strbuf_add(&ex.body, body, bytes);
    work(&ex);
    return ex;
}

static void clean(struct exchange *ex)
{
    generation_destroy(ex->made);
    strbuf_finish(&ex->body);
    strbuf_finish(&ex->reply);
}

/* The status that a body gets; 200 when a job (or a reply) was made. */
static int status_of(work_fn *work, const char *body, size_t bytes, char *param)
{
    struct exchange ex = run(work, body, bytes);
    int status = ex.error.status ? ex.error.status : 200;
    if (param)
        strcpy(param, ex.error.param);
    clean(&ex);
    return status;
}

/* ---- every row ---- */

static const char *const samples[] = {"true",   "5",         "0.5",  "\"text\"", "[]",
                                      "[[{}]]", "{\"a\":1}", "-1e9", "1e30",     "\"\""};

static bool sample_fits(enum schema_type type, const char *sample)
{
    bool text = *sample == '"', list = *sample == '[', object = *sample == '{';
    bool number = !text && !list && !object && *sample != 't';
    switch (type) {
    case SCHEMA_BOOL:
    case SCHEMA_GIVEN_BOOL:
        return *sample == 't';
    case SCHEMA_INT:
    case SCHEMA_GIVEN_INT:
        return number && strcmp(sample, "0.5") && strcmp(sample, "1e30");
    case SCHEMA_NUMBER:
        return number;
    case SCHEMA_TEXT:
        return text;
    case SCHEMA_LIST:
        return list;
    case SCHEMA_OBJECT:
        return object;
    case SCHEMA_ANY:
        return true;
    }
    return false;
}

/* What a route's body must have. */
static const struct target {
    work_fn *work;
    const char *needed, *value;
    const struct schema_field *fields[2];
} targets[] = {
    {completions_work, "prompt", "\"x\"", {openai_completion_fields, openai_common_fields}},
    {chat_work,
     "messages",
     "[{\"role\":\"user\",\"content\":\"x\"}]",
     {openai_chat_fields, openai_common_fields}},
    {tokenize_work, "content", "\"x\"", {tokenize_fields}},
    {detokenize_work, "tokens", "[97]", {detokenize_fields}},
};

static void make_body(char *out, size_t bytes, const struct target *t, const char *name,
                      const char *value)
{
    if (strcmp(name, t->needed) == 0)
        snprintf(out, bytes, "{\"%s\":%s}", name, value);
    else
        snprintf(out, bytes, "{\"%s\":%s,\"%s\":%s}", t->needed, t->value, name, value);
}

static void check_row(const struct schema_field *f, const struct target *t)
{
    char body[256], param[80];
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        make_body(body, sizeof body, t, f->name, samples[i]);
        int status = status_of(t->work, body, strlen(body), param);
        assert_true(status < 500);
        if (sample_fits(f->type, samples[i]))
            continue;
        assert_int_equal(status, 400);
        assert_string_equal(param, f->name);
    }
    make_body(body, sizeof body, t, f->name, "null");
    bool needed = strcmp(f->name, t->needed) == 0 && strcmp(f->name, "prompt");
    assert_int_equal(status_of(t->work, body, strlen(body), param), needed ? 400 : 200);
}

static void every_field_refuses_wrong_types_and_takes_null(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        for (int j = 0; j < 2 && targets[i].fields[j]; j++)
            for (const struct schema_field *f = targets[i].fields[j]; f->name; f++)
                check_row(f, &targets[i]);
}

static void no_field_is_listed_twice(void **state)
{
    (void)state;
    for (const struct schema_field *f = openai_common_fields; f->name; f++) {
        for (const struct schema_field *g = f + 1; g->name; g++)
            assert_string_not_equal(f->name, g->name);
        for (const struct schema_field *g = openai_completion_fields; g->name; g++)
            assert_string_not_equal(f->name, g->name);
        for (const struct schema_field *g = openai_chat_fields; g->name; g++)
            assert_string_not_equal(f->name, g->name);
    }
}

/* ---- memory ---- */

static const char rich_completion[] =
    "{\"prompt\":[\"one\",[97,98],\"<s>two\"],\"n\":2,\"best_of\":3,\"stop\":[\"a\",\"b\"],"
    "\"echo\":true,"
    "\"logit_bias\":{\"5\":1,\"6\":-1},\"bad_words\":[\"x\",\"yy\"],\"stop_token_ids\":[1,2],"
    "\"allowed_token_ids\":[3],\"logprobs\":2,\"model\":\"fake\",\"unknown\":[{\"deep\":[1]}],"
    "\"dry_sequence_breakers\":[\"q\"],\"cache_salt\":\"s\",\"request_id\":\"r\",\"seed\":-1}";
static const char rich_chat[] =
    "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":["
    "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],"
    "\"chat_template_kwargs\":{\"enable_thinking\":false},\"documents\":[{\"a\":\"b\"}],"
    "\"logprobs\":true,\"top_logprobs\":3,\"stream\":true,"
    "\"stream_options\":{\"include_usage\":true}}";
static const char rich_tools[] =
    "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"
    "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,2]}\"}}]}]}";
static const char rich_tokenize[] = "{\"content\":\"abc<s>\",\"with_pieces\":true}";
static const char rich_detokenize[] = "{\"tokens\":[97,98,256]}";

static const struct {
    work_fn *work;
    const char *body;
} rich[] = {
    {completions_work, rich_completion}, {chat_work, rich_chat},  {tokenize_work, rich_tokenize},
    {detokenize_work, rich_detokenize},  {chat_work, rich_tools}, /* last: it has JSON inside its
                                                                     JSON */
};
#define RICH (sizeof rich / sizeof *rich)

/* Allocations of the body's copy and of its JSON. */
static long allocations_before_the_request(const char *body)
{
    struct strbuf copy = {0};
    struct err err;
    allocations = 0;
    strbuf_add(&copy, body, strlen(body));
    json_decref(json_in_parse(copy.data, copy.len, &err));
    strbuf_finish(&copy);
    return allocations;
}

static void memory_may_run_out_at_every_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < RICH - 1; i++) {
        size_t bytes = strlen(rich[i].body);
        long first = allocations_before_the_request(rich[i].body);
        allocations = 0;
        assert_int_equal(status_of(rich[i].work, rich[i].body, bytes, NULL), 200);
        long n = allocations;
        for (long k = first; k < n; k++) {
            fail_at = k;
            int status = status_of(rich[i].work, rich[i].body, bytes, NULL);
            fail_at = -1;
            /* some are not needed for the answer: a logged name, a template's constant */
            if (status != 500 && status != 200)
                fail_msg("allocation %ld of body %zu: status %d", k, i, status);
        }
    }
}

/* What the parser had is lost then, hence the child, which leaves without a leak check. */
static void memory_may_run_out_while_json_is_parsed(void **state)
{
    (void)state;
    int result;
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < RICH; i++) {
            size_t bytes = strlen(rich[i].body);
            allocations = 0;
            status_of(rich[i].work, rich[i].body, bytes, NULL);
            long most = allocations;
            for (long k = 1; k < most; k++) {
                fail_at = k;
                int status = status_of(rich[i].work, rich[i].body, bytes, NULL);
                fail_at = -1;
                if (status != 500 && status != 200)
                    _exit(1);
            }
        }
        _exit(0);
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
}

/* ---- any bytes ---- */

static const char *const words[] = {"null",
                                    "true",
                                    "1e308",
                                    "-1",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "\"\\ud800\"",
                                    "[]",
                                    "{}",
                                    "\"\"",
                                    "0.5",
                                    "[[[[[[",
                                    "\"\xff\"",
                                    "\\u0000",
                                    "\"stop\":",
                                    "\"n\":128,",
                                    "\"prompt\":",
                                    "\"messages\":",
                                    "258",
                                    "259",
                                    ",",
                                    ":",
                                    "{\"role\":\"user\"}",
                                    "\"echo\":true,"};

static size_t mutate(uint64_t *random, char *body, size_t n, size_t most)
{
    int changes = 1 + (int)(test_random(random) % 6);
    while (changes-- > 0 && n > 0) {
        size_t at = test_random(random) % n;
        const char *word = words[test_random(random) % (sizeof words / sizeof *words)];
        size_t len = strlen(word), cut = test_random(random) % 12;
        cut = cut < n - at ? cut : n - at;
        switch (test_random(random) % 4) {
        case 0:
            body[at] = (char)test_random(random);
            break;
        case 1: /* cut */
            memmove(body + at, body + at + cut, n - at - cut);
            n -= cut;
            break;
        case 2: /* put a word in */
            if (n + len < most) {
                memmove(body + at + len, body + at, n - at);
                memcpy(body + at, word, len);
                n += len;
            }
            break;
        case 3: /* repeat a piece */
            if (n + cut < most) {
                memmove(body + at + cut, body + at, n - at);
                n += cut;
            }
            break;
        }
    }
    return n;
}

static void fuzz(double seconds)
{
    uint64_t random = test_seed();
    struct timespec began, now;
    long runs = 0, good = 0;
    char body[4096];
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        size_t i = test_random(&random) % RICH;
        size_t n = strlen(rich[i].body);
        memcpy(body, rich[i].body, n);
        n = mutate(&random, body, n, sizeof body);
        int status = status_of(rich[i].work, body, n, NULL);
        if (status >= 500) {
            printf("status %d for: %.*s\n", status, (int)n, body);
            abort();
        }
        good += status == 200;
        runs++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) * 1e-9 <
             seconds);
    printf("%ld bodies, %ld of them good\n", runs, good);
}

static void any_bytes_are_answered_below_500(void **state)
{
    (void)state;
    fuzz(2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_refuses_wrong_types_and_takes_null),
        cmocka_unit_test(no_field_is_listed_twice),
        cmocka_unit_test(memory_may_run_out_at_every_allocation),
        cmocka_unit_test(memory_may_run_out_while_json_is_parsed),
        cmocka_unit_test(any_bytes_are_answered_below_500),
    };
    test_seed();
    set_up();
    if (argc == 3 && strcmp(argv[1], "--fuzz") == 0) {
        fuzz(atof(argv[2]));
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
