#include "model.h"
#include "testlib.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOW 1767323045 /* 2026-01-02 03:04:05 */

static const char context_text[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    "  {\"role\": \"user\", \"content\": \"  Hi <|im_end|> \"}],"
    " \"s\": \"Hello, W\\u00f6rld!\", \"n\": 7, \"f\": 2.5, \"yes\": true, \"nothing\": null,"
    " \"l\": [3, 1, 2], \"words\": [\"b\", \"A\", \"c\"], \"d\": {\"x\": 1, \"y\": \"two\"},"
    " \"rows\": [{\"k\": \"p\", \"v\": 3}, {\"k\": \"q\", \"v\": 1}, {\"k\": \"r\"}],"
    " \"quote\": \"it's \\\"q\\\"\\n\", \"add_generation_prompt\": true}";

static struct chat_text render(const char *source, const json_t *context, const json_t *trusted,
                               int *code, struct err *err)
{
    struct chat_template *t = NULL;
    struct chat_text text = {0};
    err->text[0] = '\0';
    *code = chat_template_create(source, strlen(source), &t, err);
    if (*code == 0)
        *code = chat_template_render(t, context, trusted, NOW, &text, err);
    chat_template_destroy(t);
    return text;
}

static void text_free(struct chat_text *text)
{
    free(text->text);
    free(text->plain);
}

static void check_text(const char *source, const char *wanted)
{
    struct err err;
    int code;
    json_t *context = json_loads(context_text, 0, NULL);
    assert_non_null(context);
    struct chat_text text = render(source, context, NULL, &code, &err);
    if (code != 0 || strcmp(text.text, wanted) != 0)
        fail_msg("%s\n  wanted %s\n  got    %s", source, wanted, code ? err.text : text.text);
    text_free(&text);
    json_decref(context);
}

struct pair {
    const char *source, *wanted;
};

static void check_pairs(const struct pair *pairs)
{
    for (; pairs->source; pairs++)
        check_text(pairs->source, pairs->wanted);
}

static void chat_is_laid_out_as_chatml(void **state)
{
    (void)state;
    check_text("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
               "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
               "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n  Hi <|im_end|> "
               "<|im_end|>\n<|im_start|>assistant\n");
}

static void tags_drop_white_space_around_them(void **state)
{
    static const struct pair pairs[] = {
        {"a\n  {% if yes %}\nb\n  {% endif %}\nc", "a\nb\nc"},
        {"a\n  {%+ if yes %}\nb{% endif +%}\nc", "a\n  b\nc"},
        {"a \n {%- if yes -%} \n b {%- endif -%} \n c", "abc"},
        {"a  {{- n -}}  b {{ n }} c\n", "a7b 7 c"},
        {"a\n  {# note #}\nb{#- note -#} c", "a\nbc"},
        {"a{% raw %} {{ n }} {% endraw %}\nb", "a {{ n }} b"},
        {"x\r\ny\rz\r\n", "x\ny\nz"},
        {"{{ '}}' }}{{ {'a': {'b': 1}}.a }}", "}}{'b': 1}"},
        {"", ""},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

static void values_print_as_in_python(void **state)
{
    static const struct pair pairs[] = {
        {"{{ [1, 'a', none, true, 1.5, (1,), {'k': []}] }}",
         "[1, 'a', None, True, 1.5, (1,), {'k': []}]"},
        {"{{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1e15 }}",
         "1.0 1e+16 1e-05 0.30000000000000004 1000000000000000.0"},
        {"{{ [quote] }} {{ ['\"'] }} {{ ['\\u00a0\\x01\\u00e9'] }}",
         "['it\\'s \"q\"\\n'] ['\"'] ['\\xa0\\x01\xc3\xa9']"},
        {"{{ none }} {{ nowhere }}|{{ d.z }}|{{ d.items() }}",
         "None ||dict_items([('x', 1), ('y', 'two')])"},
        {"{{ range(3) }} {{ l | select }}", "range(0, 3) <generator object>"},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

static void operators_follow_python(void **state)
{
    static const struct pair pairs[] = {
        {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** 3 ** 2 }} {{ -7.5 % 2 }}",
         "-4 2 3.5 1024 64 0.5"},
        {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ (1, 2) < (1, 3) }} {{ [1] == (1,) }}",
         "True False True True False"},
        {"{{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 3 in l }} {{ 'W' not in s }}",
         "a1None abab [1, 2] True False"},
        {"{{ n and 'x' }} {{ '' or 'y' }} {{ not n }} {{ 'a' if n > 9 else 'b' if yes else 'c' }}",
         "x y False b"},
        {"{{ s[7] }}{{ s[-1] }} {{ s[:5] }} {{ s[::-1] }} {{ l[1:] }} {{ l[::-1] }} {{ s[-6:8] }}",
         "W! Hello !dlr\xc3\xb6W ,olleH [1, 2] [2, 1, 3] W"},
        {"{{ '%s|%5.2f|%-4d|%04d|%x|%%|%r' % ('a', f, n, n, 255, 'q') }}",
         "a| 2.50|7   |0007|ff|%|'q'"},
        {"{{ 1 + '2' | int }} {{ -1 | abs }}", "3 1"},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

static void statements_keep_their_scopes(void **state)
{
    static const struct pair pairs[] = {
        {"{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "3121"},
        {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}"
         "{{ ns.x }}",
         "7"},
        {"{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}", "123"},
        {"{% set x | trim | upper %} hi {% endset %}[{{ x }}]", "[HI]"},
        {"{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{{ loop.last }} {% else %}none{% endfor "
         "%}"
         "{% for i in [] %}{% else %}empty{% endfor %}",
         "13False 22True empty"},
        {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
         "{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
         "0134"},
        {"{% for x in [1, [2, [3]]] recursive %}{% if x is number %}{{ x }}@{{ loop.depth }} "
         "{% else %}({{ loop(x) }}){% endif %}{% endfor %}",
         "1@1 (2@2 (3@3 ))"},
        {"{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{{ late }}{% endmacro %}"
         "{% set late = '!' %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=0, a=9) }}",
         "122! 123! 900!"},
        {"{% macro m() %}<{{ caller(5) }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
         "<5>"},
        {"{% with a=1 %}{{ a }}{% endwith %}{{ a is defined }}"
         "{% generation %}g{% endgeneration %}{% filter upper %}x{{ n }}{% endfilter %}",
         "1FalsegX7"},
        {"{% for i in l %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};"
         "{% endfor %}",
         "1a;32b;1a;"},
        {"{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}"
         "{% set j = joiner('-') %}{{ j() }}a{{ j() }}b",
         "121a-b"},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

static void filters_and_tests_do_as_in_jinja(void **state)
{
    static const struct pair pairs[] = {
        {"{{ d | tojson }} {{ [1, {'a': '\\u00e9\"'}] | tojson(ensure_ascii=true) }} "
         "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
         "{\"x\": 1, \"y\": \"two\"} [1, {\"a\": \"\\u00e9\\\"\"}] {\"a\":2,\"b\":1}"},
        {"{{ {'a': [1, {}]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"},
        {"{{ words | sort | join }} {{ words | map('upper') | list }} {{ l | sort(reverse=true) }}",
         "Abc ['B', 'A', 'C'] [3, 2, 1]"},
        {"{{ rows | selectattr('v', 'defined') | map(attribute='k') | join(',') }} "
         "{{ rows | rejectattr('v') | map(attribute='k') | list }} {{ l | reject('odd') | first }}",
         "p,q ['r'] 2"},
        {"{{ d | dictsort }} {{ d | items | list | length }} {{ l | sum }} {{ l | max }}",
         "[('x', 1), ('y', 'two')] 2 6 3"},
        {"{{ nowhere | default('d') }} {{ '' | default('d', true) }} {{ '7' | int + 1 }} "
         "{{ 'x' | int(3) }} {{ 2.5 | round }} {{ '2' | float }}",
         "d d 8 3 2.0 2.0"},
        {"{{ ' a ' | trim }}|{{ 'a\nb' | indent(2) }}|{{ 'a b' | title }}|{{ '<' | e }}|"
         "{{ [1, 2, 3] | batch(2) | list }}|{{ 'ab' | reverse }}|{{ [1, 1] | unique | list }}",
         "a|a\n  b|A B|&lt;|[[1, 2], [3]]|ba|[1]"},
        {"{{ n is odd }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ n is number "
         "}} "
         "{{ nothing is none }} {{ q is undefined }} {{ 1 is in l }} {{ n is divisibleby 7 }} "
         "{{ d is not sequence }}",
         "True True True True True True True True True False"},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

static void methods_do_as_in_python(void **state)
{
    static const struct pair pairs[] = {
        {"{{ 'xaxx'.strip('x') }} {{ ' a '.lstrip() }}|{{ 'a,b,,c'.split(',') }} "
         "{{ ' a  b '.split() }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' a b '.split(none, 1) }}",
         "a a |['a', 'b', '', 'c'] ['a', 'b'] ['a-b', 'c'] ['a', 'b ']"},
        {"{{ s.startswith('Hell') }} {{ s.endswith(('x', '!')) }} {{ s.find('W') }} "
         "{{ s.count('l') }} {{ s.replace('l', 'L', 1) }} {{ s.upper() }} {{ 'a b'.title() }}",
         "True True 7 3 HeLlo, W\xc3\xb6rld! HELLO, W\xc3\x96RLD! A B"},
        {"{{ '-'.join(words) }} {{ '{} {x:>3}'.format(1, x=2) }} {{ 'a\nb'.splitlines() }}",
         "b-A-c 1   2 ['a', 'b']"},
        {"{{ d.get('x') }} {{ d.get('q', 5) }} {{ d.keys() | list }} {{ d.values() | list }}",
         "1 5 ['x', 'y'] [1, 'two']"},
        {"{% set q = [1] %}{% do q.append(2) %}{% do q.insert(0, 0) %}{{ q.pop() }}{{ q }}"
         "{% set e = {} %}{% do e.update(a=1) %}{{ e }}{{ e.pop('a') }}{{ e }}",
         "2[0, 1]{'a': 1}1{}"},
        {"{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ dict(a=1) }} {{ range(2, 8, 3) | list }}",
         "2026-01-02 03:04:05 {'a': 1} [2, 5]"},
        {0},
    };
    (void)state;
    check_pairs(pairs);
}

/* ---- errors ---- */

struct failure {
    const char *source;
    int code;
    const char *part;
};

static void check_failures(const struct failure *f)
{
    struct err err;
    int code;
    json_t *context = json_loads(context_text, 0, NULL);
    for (; f->source; f++) {
        struct chat_text text = render(f->source, context, NULL, &code, &err);
        if (code != f->code || !strstr(err.text, f->part))
            fail_msg("%s\n  wanted %d: %s\n  got    %d: %s", f->source, f->code, f->part, code,
                     code ? err.text : text.text);
        text_free(&text);
    }
    json_decref(context);
}

static void broken_templates_are_refused_with_the_line(void **state)
{
    static const struct failure failures[] = {
        {"a\n\n{% if x", ERR_FORMAT, "line 3: the template ends within a tag; expected %}"},
        {"{{ 1 + }}", ERR_FORMAT, "line 1: expected an expression, found '}}'"},
        {"a\n{% if yes %}b", ERR_FORMAT, "elif else endif"},
        {"{% endif %}", ERR_FORMAT, "expected a statement, found 'endif'"},
        {"{{ 'abc }}", ERR_FORMAT, "a string has no closing '"},
        {"{{ (1]", ERR_FORMAT, "unexpected ']'"},
        {"{# x", ERR_FORMAT, "has no end"},
        {"{% raw %} x", ERR_FORMAT, "endraw"},
        {"{% break %}", ERR_FORMAT, "break outside of a loop"},
        {"{{ n $ }}", ERR_FORMAT, "unexpected character '$'"},
        {"{% include 'x' %}", ERR_UNSUPPORTED, "include"},
        {"{{ 99999999999999999999 }}", ERR_FORMAT, "cannot be used"},
        {"\xff", ERR_FORMAT, "UTF-8"},
        {0},
    };
    (void)state;
    check_failures(failures);
}

static void wrong_use_of_values_is_an_error(void **state)
{
    static const struct failure failures[] = {
        {"{{ nowhere.a }}", ERR_ARG, "'nowhere' is undefined"},
        {"\n{{ d.z.a }}", ERR_ARG, "line 2: 'dict object' has no attribute 'z'"},
        {"{{ 'a' + 1 }}", ERR_ARG, "'str' and 'int'"},
        {"{% for x in n %}{% endfor %}", ERR_ARG, "'int' object is not iterable"},
        {"{{ 1 / 0 }}", ERR_ARG, "division by zero"},
        {"{{ n | frobnicate }}", ERR_ARG, "No filter named 'frobnicate' found."},
        {"{{ n is frobnicated }}", ERR_ARG, "No test named 'frobnicated' found."},
        {"{{ nowhere() }}", ERR_ARG, "'nowhere' is undefined"},
        {"{{ [1, 'a'] | sort }}", ERR_ARG, "no order"},
        {"{{ nowhere | tojson }}", ERR_ARG, "not JSON serializable"},
        {"{% set d.x = 1 %}", ERR_ARG, "non-namespace"},
        {0},
    };
    (void)state;
    check_failures(failures);
}

static void exception_of_the_template_is_the_whole_sentence(void **state)
{
    struct err err;
    int code;
    (void)state;
    json_t *context = json_object();
    struct chat_text text = render("{{ raise_exception('Roles must alternate!') }}", context, NULL,
                                   &code, &err);
    assert_int_equal(code, ERR_ARG);
    assert_string_equal(err.text, "Roles must alternate!");
    text_free(&text);
    json_decref(context);
}

/* ---- limits ---- */

static void runaway_templates_end(void **state)
{
    static const struct failure failures[] = {
        {"{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
         ERR_LIMIT, "steps"},
        {"{{ range(1000000) | length }}", ERR_LIMIT, "range"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ERR_LIMIT, "levels deep"},
        {"{{ 'x' * 99999999999 }}", ERR_LIMIT, "64 MiB"},
        {"{{ [0] * 99999999999 }}", ERR_LIMIT, ""},
        {"{% set ns = namespace(x='abcdefgh') %}{% for i in range(99) %}"
         "{% set ns.x = ns.x + ns.x %}{% endfor %}",
         ERR_LIMIT, "MiB"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(99999) %}"
         "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
         ERR_LIMIT, ""},
        {"{% set q = [] %}{% do q.append(q) %}{{ q }}", ERR_LIMIT, "levels deep"},
        {"{% set q = [] %}{% do q.append(q) %}{{ q | tojson }}", ERR_LIMIT, "levels deep"},
        {"{% set q = [1] %}{% for x in q %}{% do q.append(x) %}{% endfor %}", ERR_LIMIT, ""},
        {"{{ 9223372036854775807 + 1 }}", ERR_LIMIT, "64 bits"},
        {"{{ '%99999d' % 1 }}", ERR_LIMIT, "wider"},
        {0},
    };
    (void)state;
    check_failures(failures);
}

static void deep_nesting_is_refused(void **state)
{
    static const struct {
        const char *front, *unit, *end;
    } rows[] = {
        {"{{ ", "(", ""},
        {"{{ ", "[", ""},
        {"{{ ", "{1:", ""},
        {"{{ ", "not ", "n }}"},
        {"{{ ", "-", "n }}"},
        {"{{ n", ".a", " }}"},
        {"{{ n", "|string", "}}"},
        {"{{ n", "()", "}}"},
        {"{{ n", "[n", ""},
        {"{{ n", "+n", " }}"},
        {"{{ n", " if n", "}}"},
        {"", "{% if n %}", ""},
        {"", "{% for i in l %}", ""},
        {"{{ n", " is string", "}}"},
        {"{{ n", " if n else n", "}}"},
        {"{% set ", "(", ""},
        {"{{ n", "(n", ""},
        {"", "{% macro f() %}", ""},
        {"{{ n", " and n", "}}"},
        {"{{ n", "**n", "}}"},
    };
    struct err err;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct strbuf source = {0};
        struct chat_template *t = NULL;
        strbuf_adds(&source, rows[i].front);
        for (int k = 0; k < 100000; k++)
            strbuf_adds(&source, rows[i].unit);
        strbuf_adds(&source, rows[i].end);
        int code = chat_template_create(source.data, source.len, &t, &err);
        if (code != ERR_LIMIT)
            fail_msg("row %zu (%s): %d %s", i, rows[i].unit, code, code ? err.text : "");
        chat_template_destroy(t);
        strbuf_finish(&source);
    }
}

static void long_texts_grow_in_proportion(void **state)
{
    (void)state;
    /* A million bytes, a piece at a time: without growing in place this would copy gigabytes. */
    check_text("{% set ns = namespace(x='') %}{% for i in range(50000) %}"
               "{% set ns.x = ns.x + 'twenty bytes of text' %}{% endfor %}{{ ns.x | length }}",
               "1000000");
}

/* ---- marks ---- */

static const char *marks_text(const struct chat_text *text, char *out)
{
    for (size_t i = 0; i < text->bytes; i++)
        out[i] = text->plain[i] ? '1' : '0';
    out[text->bytes] = '\0';
    return out;
}

static void check_marks(const char *source, const char *wanted, const char *marks)
{
    struct err err;
    char got[256];
    int code;
    json_t *context = json_pack("{s:s, s:[s,s], s:{s:s}, s:[{s:s, s:s}]}", "u", "UvW", "l", "A",
                                "B", "d", "K", "V", "messages", "role", "user", "content", "Hi");
    json_t *trusted = json_pack("{s:s}", "bos_token", "<s>");
    struct chat_text text = render(source, context, trusted, &code, &err);
    if (code != 0 || strcmp(text.text, wanted) != 0 || strcmp(marks_text(&text, got), marks) != 0)
        fail_msg("%s\n  wanted %s\n         %s\n  got    %s\n         %s", source, wanted, marks,
                 code ? err.text : text.text, code ? "" : got);
    text_free(&text);
    json_decref(context);
    json_decref(trusted);
}

static void bytes_of_users_are_marked(void **state)
{
    static const struct {
        const char *source, *wanted, *marks;
    } rows[] = {
        {"{{ bos_token }}a{{ u }}b", "<s>aUvWb", "00001110"},
        {"{{ 'x' + u + 'y' }}{{ 'x' ~ u }}", "xUvWyxUvW", "011100111"},
        {"{{ ('x' + u)[1:3] }}{{ ('x' + u)[::-1] }}", "UvWvUx", "111110"},
        {"{{ ('  ' + u + ' ').strip() }}{{ u.lower() }}{{ u | upper }}", "UvWuvwUVW", "111111111"},
        {"{{ ('a' + u).replace('v', '-') }}{{ 'a-b'.replace('-', u) }}", "aU-WaUvWb", "010101110"},
        {"{{ (u + ',b').split(',') | join('+') }}", "UvW+b", "11100"},
        {"{{ l | join(', ') }}{{ '-'.join(l) }}", "A, BA-B", "1001101"},
        {"{{ d | tojson }}", "{\"K\": \"V\"}", "0010000100"},
        {"{{ d }}{{ l }}", "{'K': 'V'}['A', 'B']", "00100001000010000100"},
        {"{{ '%s-%s' % ('a', u) }}{{ '{}'.format(u) }}", "a-UvWUvW", "00111111"},
        {"{% set x %}a{{ u }}{% endset %}{{ x }}{% macro m(p) %}b{{ p }}{% endmacro %}{{ m(u) }}",
         "aUvWbUvW", "01110111"},
        {"{{ u | replace('W', '') | capitalize }}{{ u | title }}{{ u * 2 }}", "UvUvwUvWUvW",
         "11111111111"},
        {"{{ {'UvW': '<t>'}[u] }}{% if u == 'UvW' %}UvW{% endif %}", "<t>UvW", "000000"},
        {"{{ '{\"a\": 1}' | from_json }}{{ ('[\"' + u + '\"]') | from_json | first }}",
         "{'a': 1}UvW", "00000000111"},
        {"{{ 3 }}{{ u | length }}{{ u | e }}{{ (u + '<') | e }}", "33UvWUvW&lt;", "001111110000"},
        {"{{ u | indent(1, true) }}{{ u.center(5) }}", " UvW UvW ", "011101110"},
        {0},
    };
    (void)state;
    for (size_t i = 0; rows[i].source; i++)
        check_marks(rows[i].source, rows[i].wanted, rows[i].marks);
}

static void usual_roles_may_be_part_of_special_tokens(void **state)
{
    struct err err;
    int code;
    char got[64];
    (void)state;
    check_marks("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}",
                "<|user|>Hi", "0000000011");
    json_t *context = json_pack("{s:[{s:s}]}", "messages", "role",
                                "endoftext"); /* no role that is known */
    struct chat_text text = render("<|{{ messages[0].role }}|>", context, NULL, &code, &err);
    assert_int_equal(code, 0);
    assert_string_equal(marks_text(&text, got), "0011111111100");
    text_free(&text);
    json_decref(context);
}

/* Users write capitals, the template small letters: whatever a random chain of operations does,
 * each letter tells where it came from. */
static void marks_survive_random_operations(void **state)
{
    static const char *const steps[] = {"[1:]",
                                        "[::-1]",
                                        "[:-1]",
                                        " | trim",
                                        ".strip('Ax')",
                                        " ~ u",
                                        " ~ 'xyz'",
                                        ".split() | join('-')",
                                        " | replace('B', 'qq')",
                                        ".replace('z', 'dd')",
                                        " | list | join",
                                        " | string",
                                        ".rjust(9, 'p')",
                                        ".partition('C') | join('r')",
                                        " | reverse",
                                        ".splitlines() | join('s')",
                                        " * 2"};
    uint64_t seed = test_seed();
    struct err err;
    int code;
    (void)state;
    json_t *context = json_pack("{s:s}", "u", "ABCABCD ABC\nCBA");
    for (int round = 0; round < 2000; round++) {
        struct strbuf source = {0};
        strbuf_adds(&source, "u ~ 'xyz'");
        for (int n = (int)(test_random(&seed) % 5) + 1; n > 0; n--) {
            char *inner = strbuf_take(&source);
            const char *step = steps[test_random(&seed) % (sizeof steps / sizeof *steps)];
            strbuf_addf(&source, "(%s)%s", inner, step);
            free(inner);
        }
        char *expression = strbuf_take(&source);
        strbuf_addf(&source, "{{ %s }}", expression);
        free(expression);
        struct chat_text text = render(source.data, context, NULL, &code, &err);
        if (code != 0)
            fail_msg("%s: %s", source.data, err.text);
        for (size_t i = 0; i < text.bytes; i++) {
            char c = text.text[i];
            if ((c >= 'A' && c <= 'Z' && !text.plain[i]) || (c >= 'a' && c <= 'z' && text.plain[i]))
                fail_msg("%s\n  byte %zu of %s", source.data, i, text.text);
        }
        text_free(&text);
        strbuf_finish(&source);
    }
    json_decref(context);
}

/* ---- threads ---- */

static void *render_often(void *arg)
{
    const struct chat_template *t = arg;
    json_t *context = json_loads(context_text, 0, NULL);
    intptr_t bad = 0;
    for (int i = 0; i < 200; i++) {
        struct chat_text text = {0};
        struct err err;
        bad += chat_template_render(t, context, NULL, NOW, &text, &err) != 0 ||
               strcmp(text.text, "system:BE BRIEF.;user:HI <|IM_END|>;") != 0;
        text_free(&text);
    }
    json_decref(context);
    return (void *)bad;
}

static void template_serves_many_threads(void **state)
{
    static const char source[] = "{% macro p(m) %}{{ m.role }}:{{ m.content | trim | upper }};"
                                 "{% endmacro %}{% for m in messages %}{{ p(m) }}{% endfor %}";
    struct chat_template *t = NULL;
    struct err err;
    pthread_t threads[4];
    (void)state;
    assert_int_equal(chat_template_create(source, strlen(source), &t, &err), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    chat_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_is_laid_out_as_chatml),
        cmocka_unit_test(tags_drop_white_space_around_them),
        cmocka_unit_test(values_print_as_in_python),
        cmocka_unit_test(operators_follow_python),
        cmocka_unit_test(statements_keep_their_scopes),
        cmocka_unit_test(filters_and_tests_do_as_in_jinja),
        cmocka_unit_test(methods_do_as_in_python),
        cmocka_unit_test(broken_templates_are_refused_with_the_line),
        cmocka_unit_test(wrong_use_of_values_is_an_error),
        cmocka_unit_test(exception_of_the_template_is_the_whole_sentence),
        cmocka_unit_test(runaway_templates_end),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(long_texts_grow_in_proportion),
        cmocka_unit_test(bytes_of_users_are_marked),
        cmocka_unit_test(usual_roles_may_be_part_of_special_tokens),
        cmocka_unit_test(marks_survive_random_operations),
        cmocka_unit_test(template_serves_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
