#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include "job.h"
#include "strbuf.h"

/* From tokens to text that may be sent: whole UTF-8 characters (what can never become one is
 * replaced by U+FFFD), and nothing that may turn out to be the beginning of a stop string. A token,
 * with its log-probabilities, goes out with the last byte of its text. One per choice; engine
 * thread. */

struct stream_stops {
    const char *const *strings; /* [n], not owned */
    const size_t *bytes;
    int n;
    bool include; /* keep the stop string in the text */
};

struct stream {
    struct stream_stops stops;
    uint32_t *matched;  /* [stops.n] bytes of the stop string that end the text */
    uint32_t *shorter;  /* for each byte of each stop string: where matching goes on after it
                           (Knuth, Morris, Pratt), so that a byte costs the same however much is
                           held back */
    struct strbuf text; /* bytes not yet sent */
    struct job_token *
        tokens; /* tokens not yet sent; their `top` are their own allocations until they are sent */
    size_t *ends; /* end of each token's text in `text` */
    int n_tokens, cap;
    bool failed; /* out of memory */
};

/* Keeps stops->strings. Out of memory shows in s->failed, as below. */
void stream_init(struct stream *s, const struct stream_stops *stops);
void stream_finish(struct stream *s);

/* Adds a token and its text. Takes token->top (malloc'd or NULL) over. match_stops: false while too
 * few tokens have been made: a stop string that is complete then is text like any other. Returns
 * the index of the stop string that is complete first, byte by byte (of several at one byte the
 * longest), or -1; how the text is cut into tokens makes no difference. After a match the stream is
 * cut there and ends with stream_take(all). */
int stream_push(struct stream *s, const struct job_token *token, const char *bytes, size_t n,
                bool match_stops);

/* Moves what may be sent into *e (text, tokens). all: the answer has ended, everything goes.
 * Returns false when there is nothing to send; ERR_NOMEM shows in s->failed. */
bool stream_take(struct stream *s, bool all, struct job_event *e);

/* Appends bytes as valid UTF-8. An incomplete character at the end is left unless `all`; returns
 * how many bytes were used. */
size_t utf8_append(struct strbuf *out, const char *bytes, size_t n, bool all);

#endif
