#include "server/stream.h"

#include "testlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FFFD "\xef\xbf\xbd"

/* ---- a stream, and what has come out of it ---- */

struct out {
    struct strbuf text;
    int tokens;
    int32_t last_id;
};

static void take(struct stream *s, bool all, struct out *o)
{
    struct job_event e = {0};
    bool news = stream_take(s, all, &e);
    assert_int_equal(news, e.text_bytes || e.n_tokens);
    assert_int_equal(e.text != NULL, e.text_bytes > 0);
    if (e.text_bytes)
        strbuf_add(&o->text, e.text, e.text_bytes);
    for (int i = 0; i < e.n_tokens; i++)
        assert_int_equal(e.tokens[i].id, o->tokens + i); /* in order, each once */
    o->tokens += e.n_tokens;
    free(e.text);
    free(e.tokens);
}

static void out_finish(struct out *o)
{
    strbuf_finish(&o->text);
    *o = (struct out){0};
}

#define MOST_STOPS 8

struct texts {
    const char *list[MOST_STOPS];
    size_t bytes[MOST_STOPS];
    int n;
};

static struct stream_stops stops_of(struct texts *t, bool include)
{
    for (int i = 0; i < t->n; i++)
        t->bytes[i] = strlen(t->list[i]);
    return (struct stream_stops){t->list, t->bytes, t->n, include};
}

static int push(struct stream *s, int id, const char *bytes, size_t n)
{
    const struct job_token token = {.id = id};
    return stream_push(s, &token, bytes, n, true);
}

static void expect_text(const struct out *o, const char *text)
{
    assert_string_equal(o->text.data ? o->text.data : "", text);
}

/* ---- stop strings ---- */

/* All of `text`, cut into pieces of `piece` bytes after a first one of `first`. */
static int push_all(struct stream *s, const char *text, size_t first, size_t piece, struct out *o)
{
    size_t n = strlen(text);
    int id = 0, stop = -1;
    for (size_t at = 0, size = first; at < n && stop < 0; at += size, size = piece) {
        size = at + size > n ? n - at : size;
        stop = push(s, id++, text + at, size);
        take(s, false, o);
    }
    take(s, true, o);
    assert_int_equal(o->tokens, id);
    return stop;
}

struct stop_case {
    const char *stops[MOST_STOPS];
    const char *text;
    int found; /* -1: none */
    const char *without, *with;
};

static const struct stop_case cases[] = {
    {{"END"}, "text END more", 0, "text ", "text END"},
    {{"END"}, "END", 0, "", "END"},
    {{"END"}, "the EN", -1, "the EN", "the EN"},
    {{"END"}, "EEEND", 0, "EE", "EEEND"},
    {{"\n\n"}, "a\nb\n\nc", 0, "a\nb", "a\nb\n\n"},
    {{"aab"}, "aaaaab", 0, "aaa", "aaaaab"},
    {{"abab"}, "abaabab", 0, "aba", "abaabab"},
    {{"abc", "bd"}, "abd", 1, "a", "abd"},
    {{"abcd", "bc"}, "abcd", 1, "a", "abc"},
    {{"c", "abc"}, "abc", 1, "", "abc"},
    {{"abc", "c"}, "abc", 0, "", "abc"},
    {{"x", "y", "z"}, "abczyx", 2, "abc", "abcz"},
    {{"\xc3\xa9"}, "caf\xc3\xa9!", 0, "caf", "caf\xc3\xa9"},
    {{"\xc3\xa9!"}, "caf\xc3\xa9?", -1, "caf\xc3\xa9?", "caf\xc3\xa9?"},
    {{"<|user|>", "<|system|>"}, "a<|us<|system|>", 1, "a<|us", "a<|us<|system|>"},
    {{"END"},
     "caf\xc3"
     "END",
     0,
     "caf" FFFD,
     "caf" FFFD "END"},
};

static void stops_wherever_the_text_is_cut_into_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct texts stops = {0};
        while (stops.n < MOST_STOPS && cases[i].stops[stops.n]) {
            stops.list[stops.n] = cases[i].stops[stops.n];
            stops.n++;
        }
        size_t n = strlen(cases[i].text);
        for (size_t first = 1; first <= n; first++)
            for (size_t piece = 1; piece <= n; piece++)
                for (int include = 0; include < 2; include++) {
                    const struct stream_stops st = stops_of(&stops, include);
                    struct stream s;
                    struct out o = {0};
                    stream_init(&s, &st);
                    assert_int_equal(push_all(&s, cases[i].text, first, piece, &o), cases[i].found);
                    expect_text(&o, include ? cases[i].with : cases[i].without);
                    stream_finish(&s);
                    out_finish(&o);
                }
    }
}

static void holds_back_no_more_than_may_be_a_stop(void **state)
{
    (void)state;
    struct texts stops = {{"stop!"}, {0}, 1};
    const struct stream_stops st = stops_of(&stops, false);
    struct stream s;
    struct out o = {0};
    stream_init(&s, &st);
    push(&s, 0, "a st", 4);
    take(&s, false, &o);
    expect_text(&o, "a ");
    assert_int_equal(o.tokens, 0); /* its last byte is not out */
    push(&s, 1, "op", 2);
    take(&s, false, &o);
    expect_text(&o, "a ");
    push(&s, 2, "", 0); /* a control token, say: no text, but it waits for its turn */
    take(&s, false, &o);
    assert_int_equal(o.tokens, 0);
    push(&s, 3, " s", 2);
    take(&s, false, &o);
    expect_text(&o, "a stop ");
    assert_int_equal(o.tokens, 3);
    take(&s, true, &o);
    expect_text(&o, "a stop s");
    assert_int_equal(o.tokens, 4);
    stream_finish(&s);
    out_finish(&o);
}

static void does_not_stop_while_too_few_tokens_were_made(void **state)
{
    (void)state;
    struct texts stops = {{"ENDING", "N"}, {0}, 2};
    const struct stream_stops st = stops_of(&stops, false);
    const struct job_token token = {.id = 0}, second = {.id = 1};
    struct stream s;
    struct out o = {0};
    stream_init(&s, &st);
    assert_int_equal(stream_push(&s, &token, "EN", 2, false), -1);
    take(&s, false, &o);
    expect_text(&o, "");
    /* what was let pass stays passed; what it begins can still be completed */
    assert_int_equal(stream_push(&s, &second, "DING.", 5, true), 1);
    take(&s, true, &o);
    expect_text(&o, "ENDI");
    stream_finish(&s);
    out_finish(&o);
}

static void a_text_without_tokens_or_stops_is_empty(void **state)
{
    (void)state;
    struct stream s;
    struct out o = {0};
    stream_init(&s, &(struct stream_stops){0});
    take(&s, false, &o);
    take(&s, true, &o);
    push(&s, 0, "", 0);
    take(&s, false, &o);
    assert_int_equal(o.tokens, 1);
    expect_text(&o, "");
    stream_finish(&s);
    stream_finish(&s);
}

/* ---- UTF-8 ---- */

static void characters_cut_at_any_byte_come_whole(void **state)
{
    (void)state;
    static const char *const characters[] = {
        "\xc2\x80",     "\xdf\xbf",         "\xe0\xa0\x80",     "\xed\x9f\xbf",    "\xef\xbf\xbf",
        "\xe2\x82\xac", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xf0\x9f\x98\x80"};
    for (size_t i = 0; i < sizeof characters / sizeof characters[0]; i++) {
        const char *c = characters[i];
        size_t n = strlen(c);
        for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) { /* a bit: a cut after that byte */
            struct stream s;
            struct out o = {0};
            int id = 0;
            stream_init(&s, &(struct stream_stops){0});
            for (size_t from = 0, to = 1; to <= n; to++) {
                if (to < n && !(cuts >> (to - 1) & 1))
                    continue;
                push(&s, id++, c + from, to - from);
                take(&s, false, &o);
                expect_text(&o, to < n ? "" : c);
                assert_int_equal(o.tokens, to < n ? 0 : id);
                from = to;
            }
            stream_finish(&s);
            out_finish(&o);
        }
    }
}

/* From the Unicode standard's section on maximal subparts, and the WHATWG's decoder tests. */
static void ill_formed_text_becomes_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text;
    } rows[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", FFFD FFFD FFFD FFFD "A"},
        {"a\xf0\x9f\x98z", "a" FFFD "z"},
        {"\x80", FFFD},
        {"\xf5\x80\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xc3\xc3\xa9", FFFD "\xc3\xa9"},
        {"\xf0\x9f\x98", FFFD},
        {"\xe2\x82", FFFD},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t first = 1; first <= strlen(rows[i].bytes); first++)
            for (size_t piece = 1; piece <= 3; piece++) {
                struct stream s;
                struct out o = {0};
                stream_init(&s, &(struct stream_stops){0});
                push_all(&s, rows[i].bytes, first, piece, &o);
                expect_text(&o, rows[i].text);
                stream_finish(&s);
                out_finish(&o);
            }
}

static void says_how_many_bytes_it_used(void **state)
{
    (void)state;
    struct strbuf out = {0};
    assert_int_equal(utf8_append(&out, "ab\xe2\x82", 4, false), 2);
    assert_string_equal(out.data, "ab");
    assert_int_equal(utf8_append(&out, "\xe2\x82", 2, true), 2);
    assert_string_equal(out.data, "ab" FFFD);
    assert_int_equal(utf8_append(&out, "", 0, true), 0);
    assert_int_equal(utf8_append(&out, "\0", 1, false), 1);
    assert_int_equal(out.len, 6);
    strbuf_finish(&out);
}

/* ---- log-probabilities ---- */

static void alternatives_go_out_with_their_tokens(void **state)
{
    (void)state;
    struct texts stops = {{"zz"}, {0}, 1};
    const struct stream_stops st = stops_of(&stops, false);
    struct stream s;
    struct job_event e = {0};
    stream_init(&s, &st);
    for (int i = 0; i < 20; i++) {
        struct job_token token = {.id = i, .logprob = (float)-i, .n_top = i % 4};
        if (token.n_top)
            token.top = calloc((size_t)token.n_top, sizeof *token.top);
        for (int j = 0; j < token.n_top; j++)
            token.top[j] = (struct token_logprob){100 * i + j, (float)-j};
        assert_int_equal(stream_push(&s, &token, i == 19 ? "z" : "a", 1, true), -1);
    }
    assert_true(stream_take(&s, false, &e));
    assert_int_equal(e.n_tokens, 19);
    for (int i = 0; i < 19; i++) {
        assert_int_equal(e.tokens[i].id, i);
        assert_int_equal(e.tokens[i].n_top, i % 4);
        assert_int_equal(e.tokens[i].top == NULL, i % 4 == 0);
        for (int j = 0; j < i % 4; j++)
            assert_int_equal(e.tokens[i].top[j].id, 100 * i + j);
    }
    free(e.text);
    free(e.tokens);    /* one allocation */
    stream_finish(&s); /* frees those of the token that was held back */
}

/* ---- against a naive stream ---- */

/* How many bytes at s can begin a well-formed character, and whether they are all of one: by code
 * points, where the stream goes by table 3-7. */
static size_t naive_character(const unsigned char *s, size_t n, bool *whole)
{
    static const unsigned long least[] = {0, 0, 0x80, 0x800, 0x10000};
    static const unsigned long most[] = {0, 0x7f, 0x7ff, 0xffff, 0x10ffff};
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    *whole = false;
    if (!length || s[0] >= 0xf8)
        return 0;
    unsigned long low = length == 1 ? s[0] : s[0] & (0x7fu >> length), high = low;
    for (size_t i = 1; i < length; i++) {
        low <<= 6;
        high = high << 6 | 0x3f;
    }
    for (size_t k = 1;; k++) {
        bool surrogates = low >= 0xd800 && high <= 0xdfff;
        if (high < least[length] || low > most[length] || surrogates)
            return k - 1;
        *whole = k == length;
        if (k == length || k == n || (s[k] & 0xc0) != 0x80)
            return k;
        unsigned shift = 6 * (unsigned)(length - 1 - k);
        low += (unsigned long)(s[k] & 0x3f) << shift;
        high = low + (1ul << shift) - 1;
    }
}

/* Bytes of text that can be sent as characters now. */
static size_t naive_utf8(const char *text, size_t n, bool all, struct strbuf *out)
{
    size_t at = 0;
    while (at < n) {
        bool whole;
        size_t k = naive_character((const unsigned char *)text + at, n - at, &whole);
        if (!whole && k == n - at && k > 0 && !all)
            break;
        if (whole)
            strbuf_add(out, text + at, k);
        else
            strbuf_adds(out, FFFD);
        at += k ? k : 1;
    }
    return at;
}

static bool ends_with(const char *text, size_t n, const char *end, size_t bytes)
{
    return n >= bytes && !memcmp(text + n - bytes, end, bytes);
}

/* The longest stop string that ends text[0, n), or -1. */
static int naive_stop(const struct stream_stops *st, const char *text, size_t n)
{
    int found = -1;
    for (int i = 0; i < st->n; i++)
        if (ends_with(text, n, st->strings[i], st->bytes[i]) &&
            (found < 0 || st->bytes[i] > st->bytes[found]))
            found = i;
    return found;
}

static size_t naive_held(const struct stream_stops *st, const char *text, size_t n)
{
    size_t most = 0;
    for (int i = 0; i < st->n; i++)
        for (size_t k = 1; k < st->bytes[i]; k++)
            if (k > most && ends_with(text, n, st->strings[i], k))
                most = k;
    return most;
}

static size_t random_text(uint64_t *seed, char *to, size_t most, bool bytes)
{
    static const char *const pieces[] = {
        "a", "b", "ab", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    size_t n = 0;
    while (n + 4 < most && test_random(seed) % 8) {
        const char *p = pieces[test_random(seed) % (test_random(seed) % 4 ? 2 : 6)];
        size_t len = strlen(p);
        if (bytes && test_random(seed) % 8 == 0)
            len = 1; /* the beginning of a character, or a byte of any value */
        memcpy(to + n, p, len);
        if (bytes && test_random(seed) % 16 == 0)
            to[n] = (char)test_random(seed);
        n += len;
    }
    if (!n)
        to[n++] = 'a';
    to[n] = '\0';
    return n;
}

struct naive {
    struct strbuf text; /* all bytes */
    size_t ends[64], sent;
    int tokens;
    struct strbuf out;
};

static void compare_takes(struct stream *s, struct naive *n, struct out *o, size_t ready, bool all)
{
    int tokens = 0;
    n->sent += naive_utf8(n->text.data + n->sent, ready - n->sent, all, &n->out);
    take(s, all, o);
    assert_int_equal(o->text.len, n->out.len);
    if (o->text.len)
        assert_memory_equal(o->text.data, n->out.data, o->text.len);
    while (tokens < n->tokens && (all || n->ends[tokens] <= n->sent))
        tokens++;
    assert_int_equal(o->tokens, tokens);
}

static void run_random(uint64_t *seed)
{
    char stop_texts[MOST_STOPS][32];
    struct texts stops = {.n = (int)(test_random(seed) % (MOST_STOPS + 1))};
    for (int i = 0; i < stops.n; i++) {
        random_text(seed, stop_texts[i], 16, false);
        stops.list[i] = stop_texts[i];
    }
    const struct stream_stops st = stops_of(&stops, test_random(seed) % 2);
    int wait = (int)(test_random(seed) % 4), found = -1;
    struct stream s;
    struct out o = {0};
    struct naive n = {0};
    stream_init(&s, &st);
    strbuf_adds(&n.text, "");
    while (n.tokens < 40 && found < 0) {
        char piece[64];
        const struct job_token token = {.id = n.tokens};
        size_t bytes = test_random(seed) % 8 ? random_text(seed, piece, 12, true) : 0;
        bool match = n.tokens >= wait;
        for (size_t i = 0; i < bytes && found < 0; i++) {
            strbuf_addc(&n.text, piece[i]);
            found = match ? naive_stop(&st, n.text.data, n.text.len) : -1;
        }
        n.ends[n.tokens++] = n.text.len;
        assert_int_equal(stream_push(&s, &token, piece, bytes, match), found);
        if (found < 0 && test_random(seed) % 4)
            compare_takes(&s, &n, &o, n.text.len - naive_held(&st, n.text.data, n.text.len), false);
    }
    if (found >= 0 && !st.include)
        n.text.len -= st.bytes[found];
    compare_takes(&s, &n, &o, n.text.len, true);
    assert_int_equal(o.tokens, n.tokens);
    stream_finish(&s);
    out_finish(&o);
    strbuf_finish(&n.text);
    strbuf_finish(&n.out);
}

static void does_as_a_naive_stream_does(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int runs = getenv("ROPEWALK_TEST_SHORT") ? 2000 : 20000;
    for (int i = 0; i < runs; i++)
        run_random(&seed);
}

/* ---- long stop strings ---- */

/* A stop string of 200 KB of which the text is always the beginning, or the beginning but for its
 * last byte: billions of steps were its cost quadratic. */
static void long_texts_held_back_cost_little(void **state)
{
    (void)state;
    const size_t n = 200000;
    char *stop = malloc(n + 1);
    assert_non_null(stop);
    memset(stop, 'a', n);
    stop[n - 1] = 'b';
    stop[n] = '\0';
    struct texts stops = {{stop, "ac"}, {0}, 2};
    const struct stream_stops st = stops_of(&stops, false);
    struct stream s;
    struct out o = {0};
    stream_init(&s, &st);
    for (size_t at = 0; at < 2 * n; at++)
        assert_int_equal(push(&s, (int)at, "a", 1), -1);
    take(&s, false, &o);
    assert_int_equal(o.text.len, n + 1);
    assert_int_equal(o.tokens, n + 1);
    assert_int_equal(push(&s, (int)(2 * n), "b", 1), 0);
    take(&s, true, &o);
    assert_int_equal(o.text.len, n + 1);
    assert_int_equal(o.tokens, 2 * n + 1);
    stream_finish(&s);
    out_finish(&o);
    free(stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_wherever_the_text_is_cut_into_tokens),
        cmocka_unit_test(holds_back_no_more_than_may_be_a_stop),
        cmocka_unit_test(does_not_stop_while_too_few_tokens_were_made),
        cmocka_unit_test(a_text_without_tokens_or_stops_is_empty),
        cmocka_unit_test(characters_cut_at_any_byte_come_whole),
        cmocka_unit_test(ill_formed_text_becomes_replacement_characters),
        cmocka_unit_test(says_how_many_bytes_it_used),
        cmocka_unit_test(alternatives_go_out_with_their_tokens),
        cmocka_unit_test(does_as_a_naive_stream_does),
        cmocka_unit_test(long_texts_held_back_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
