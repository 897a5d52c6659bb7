#include "testlib.h"

#include "server/commands/http_client.h"

#include <stdlib.h>
#include <string.h>

static void addresses_are_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        int port;
        const char *prefix;
    } right[] = {
        {"http://127.0.0.1:8080", "127.0.0.1", 8080, ""},
        {"HTTP://localhost", "localhost", 80, ""},
        {"localhost:81", "localhost", 81, ""},
        {"http://[::1]:8080/v1/", "::1", 8080, ""},
        {"http://[fe80::1]", "fe80::1", 80, ""},
        {"http://a.example:1/some/where/v1", "a.example", 1, "/some/where"},
        {"http://a.example:65535/x", "a.example", 65535, "/x"},
    };
    static const char *const wrong[] = {
        "",           "http://",         "ftp://host",      "http://host:0",  "http://host:65536",
        "host:",      "http://host:80x", "http://[::1",     "http://[::1]80", "http://a b:80",
        "http://:80", "http://host/a?b", "http://u@host:1", "https://host",
    };
    struct http_address a;
    struct err err;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(http_address_parse(right[i].text, &a, &err), 0);
        assert_string_equal(a.host, right[i].host);
        assert_string_equal(a.prefix, right[i].prefix);
        assert_int_equal(a.port, right[i].port);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_true(http_address_parse(wrong[i], &a, &err) < 0);
}

/* In memory of exactly its size and a zero. */
static int parse(const char *text, char *body, int *status)
{
    struct http_answer answer;
    struct err err;
    size_t n = strlen(text);
    char *copy = malloc(n + 1);
    memcpy(copy, text, n + 1);
    int rc = http_answer_parse(copy, n, &answer, &err);
    if (rc == 0) {
        memcpy(body, answer.body, answer.bytes);
        body[answer.bytes] = '\0';
        *status = answer.status;
    }
    free(copy);
    return rc;
}

static void answers_are_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *body;
    } right[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}"},
        {"HTTP/1.1 200 OK\r\ncontent-length:  2\r\n\r\n{}more", 200, "{}"},
        {"HTTP/1.0 404 No\r\n\r\nuntil the end", 404, "until the end"},
        {"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"
         "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
         200, "abc0123456789"},
        {"HTTP/1.1 204 Nothing\r\n\r\n", 204, ""},
    };
    static const char *const wrong[] = {
        "",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz",
    };
    char body[256];
    int status;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(parse(right[i].text, body, &status), 0);
        assert_int_equal(status, right[i].status);
        assert_string_equal(body, right[i].body);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_true(parse(wrong[i], body, &status) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_taken_apart),
        cmocka_unit_test(answers_are_taken_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
