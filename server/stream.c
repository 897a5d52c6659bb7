#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 ---- */

/* Length of the well-formed character at s[0, n): > 0; 0: it needs more bytes than there are; -k:
 * the first k bytes can begin no character (Unicode, table 3-7; k is the maximal ill-formed part).
 */
static int utf8_length(const unsigned char *s, size_t n)
{
    unsigned c = s[0], low = 0x80, high = 0xbf;
    int need;
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        need = 1;
    else if (c >= 0xe0 && c <= 0xef)
        need = 2;
    else if (c >= 0xf0 && c <= 0xf4)
        need = 3;
    else
        return -1;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        low = 0x80;
        high = 0xbf;
    }
    return need + 1;
}

size_t utf8_append(struct strbuf *out, const char *bytes, size_t n, bool all)
{
    const unsigned char *s = (const unsigned char *)bytes;
    size_t at = 0;
    while (at < n) {
        int len = utf8_length(s + at, n - at);
        if (len == 0 && !all)
            break;
        if (len > 0) {
            strbuf_add(out, bytes + at, (size_t)len);
            at += (size_t)len;
        } else {
            strbuf_adds(out, "\xef\xbf\xbd");
            at += len ? (size_t)-len : n - at;
        }
    }
    return at;
}

/* ---- stop strings ---- */

/* shorter[i]: the longest proper prefix of the stop string that ends its first i + 1 bytes. */
static void fill_shorter(const char *stop, size_t bytes, uint32_t *shorter)
{
    uint32_t m = 0;
    for (size_t i = 1; i < bytes; i++) {
        while (m && stop[i] != stop[m])
            m = shorter[m - 1];
        m += stop[i] == stop[m];
        shorter[i] = m;
    }
}

static void prepare_stops(struct stream *s)
{
    size_t total = 0, at = 0;
    for (int i = 0; i < s->stops.n; i++)
        total += s->stops.bytes[i];
    if (!total)
        return;
    s->matched = calloc((size_t)s->stops.n, sizeof *s->matched);
    s->shorter = calloc(total, sizeof *s->shorter);
    s->failed = !s->matched || !s->shorter;
    for (int i = 0; i < s->stops.n && !s->failed; at += s->stops.bytes[i++])
        fill_shorter(s->stops.strings[i], s->stops.bytes[i], s->shorter + at);
}

/* The text grows by a byte. The longest stop string that is complete with it, or -1. */
static int match_byte(struct stream *s, char byte)
{
    int found = -1;
    const uint32_t *shorter = s->shorter;
    for (int i = 0; i < s->stops.n; shorter += s->stops.bytes[i++]) {
        const char *stop = s->stops.strings[i];
        uint32_t m = s->matched[i];
        while (m && stop[m] != byte)
            m = shorter[m - 1];
        m += stop[m] == byte;
        if (m == s->stops.bytes[i]) {
            found = found < 0 || s->stops.bytes[found] < m ? i : found;
            m = shorter[m - 1];
        }
        s->matched[i] = m;
    }
    return found;
}

/* The first stop string that bytes[0, n) complete; *used: how many of them that takes. */
static int match_bytes(struct stream *s, const char *bytes, size_t n, bool match, size_t *used)
{
    *used = n;
    for (size_t at = 0; s->matched && !s->failed && at < n; at++) {
        int found = match_byte(s, bytes[at]);
        if (found >= 0 && match) {
            *used = at + 1;
            return found;
        }
    }
    return -1;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const struct stream *s)
{
    size_t most = 0;
    for (int i = 0; s->matched && !s->failed && i < s->stops.n; i++)
        most = s->matched[i] > most ? s->matched[i] : most;
    return most;
}

static void cut(struct stream *s, size_t at)
{
    s->text.len = at;
    for (int i = 0; i < s->n_tokens; i++)
        if (s->ends[i] > at)
            s->ends[i] = at;
}

/* ---- the stream ---- */

void stream_init(struct stream *s, const struct stream_stops *stops)
{
    *s = (struct stream){.stops = *stops};
    prepare_stops(s);
}

void stream_finish(struct stream *s)
{
    for (int i = 0; i < s->n_tokens; i++)
        free(s->tokens[i].top);
    free(s->tokens);
    free(s->ends);
    free(s->matched);
    free(s->shorter);
    strbuf_finish(&s->text);
    *s = (struct stream){0};
}

static bool grow(struct stream *s)
{
    if (s->n_tokens < s->cap)
        return true;
    int cap = s->cap ? s->cap * 2 : 8;
    struct job_token *tokens = realloc(s->tokens, (size_t)cap * sizeof *tokens);
    if (tokens)
        s->tokens = tokens;
    size_t *ends = realloc(s->ends, (size_t)cap * sizeof *ends);
    if (ends)
        s->ends = ends;
    if (!tokens || !ends)
        return false;
    s->cap = cap;
    return true;
}

int stream_push(struct stream *s, const struct job_token *token, const char *bytes, size_t n,
                bool match_stops)
{
    size_t used;
    int stop = match_bytes(s, bytes, n, match_stops, &used);
    strbuf_add(&s->text, bytes, used);
    if (s->failed || !grow(s) || s->text.failed) {
        s->failed = true;
        free(token->top);
        return -1;
    }
    s->tokens[s->n_tokens] = *token;
    s->ends[s->n_tokens++] = s->text.len;
    if (stop < 0)
        return -1;
    cut(s, s->text.len - (s->stops.include ? 0 : s->stops.bytes[stop]));
    memset(s->matched, 0, (size_t)s->stops.n * sizeof *s->matched);
    return stop;
}

/* One allocation for n tokens and all their alternatives. */
static struct job_token *join_tokens(struct job_token *from, int n)
{
    size_t top = 0;
    for (int i = 0; i < n; i++)
        top += (size_t)from[i].n_top;
    struct job_token *all = malloc((size_t)n * sizeof *all + top * sizeof *all->top);
    if (!all)
        return NULL;
    struct token_logprob *at = (struct token_logprob *)(all + n);
    for (int i = 0; i < n; i++) {
        all[i] = from[i];
        all[i].top = from[i].n_top ? at : NULL;
        if (from[i].n_top)
            memcpy(at, from[i].top, (size_t)from[i].n_top * sizeof *at);
        at += from[i].n_top;
        free(from[i].top);
    }
    return all;
}

static void take_tokens(struct stream *s, size_t sent, bool all, struct job_event *e)
{
    int n = 0;
    while (n < s->n_tokens && (all || s->ends[n] <= sent))
        n++;
    if (n == 0)
        return;
    e->tokens = join_tokens(s->tokens, n);
    if (!e->tokens) {
        s->failed = true;
        return;
    }
    e->n_tokens = n;
    s->n_tokens -= n;
    memmove(s->tokens, s->tokens + n, (size_t)s->n_tokens * sizeof *s->tokens);
    memmove(s->ends, s->ends + n, (size_t)s->n_tokens * sizeof *s->ends);
}

bool stream_take(struct stream *s, bool all, struct job_event *e)
{
    struct strbuf out = {0};
    size_t ready = all ? s->text.len : s->text.len - held_back(s);
    size_t sent = ready ? utf8_append(&out, s->text.data, ready, all) : 0;
    take_tokens(s, sent, all, e);
    for (int i = 0; i < s->n_tokens; i++)
        s->ends[i] -= sent;
    if (sent)
        strbuf_consume(&s->text, sent);
    s->failed = s->failed || out.failed;
    e->text_bytes = out.len;
    e->text = out.len ? strbuf_take(&out) : NULL;
    strbuf_finish(&out);
    return e->text_bytes || e->n_tokens;
}
