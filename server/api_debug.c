#include "api.h"

#include <stdlib.h>
#include <string.h>

/* GET /debug/kv: what the cache holds. In the work pool, for it waits until the engine is between
 * two pieces of work. */

void debug_kv_work(struct exchange *ex)
{
    struct server *s = ex->server;
    json_t *debug = engine_debug(s->engine, s->config->debug_texts);
    char *text = debug ? json_dumps(debug, JSON_COMPACT) : NULL;
    json_decref(debug);
    if (!text) {
        api_no_memory(&ex->error);
        return;
    }
    strbuf_adds(&ex->reply, text);
    free(text);
}
