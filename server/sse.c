#include "sse.h"

void sse_begin(struct strbuf *out)
{
    strbuf_add(out, "data: ", 6);
}

void sse_end(struct strbuf *out)
{
    strbuf_add(out, "\n\n", 2);
}

void sse_done(struct strbuf *out)
{
    strbuf_adds(out, "data: [DONE]\n\n");
}

void sse_ping(struct strbuf *out)
{
    strbuf_adds(out, ": ping\n\n");
}
