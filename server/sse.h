#ifndef SERVER_SSE_H
#define SERVER_SSE_H

#include "strbuf.h"

/* Server-sent events: "data: " one line of JSON, and a blank line. */

void sse_begin(struct strbuf *out); /* then the JSON */
void sse_end(struct strbuf *out);
void sse_done(struct strbuf *out); /* data: [DONE] */
void sse_ping(struct strbuf *out); /* a comment, which clients skip */

#endif
