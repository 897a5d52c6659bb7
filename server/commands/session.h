#ifndef SERVER_SESSION_H
#define SERVER_SESSION_H

#include "budget.h"
#include "engine.h"
#include "machine.h"
#include "settings.h"

/* What every command that runs a model needs, set up in one order: the file is opened and planned,
 * the memory budget is divided, and only then memory is taken. */

struct session {
    const struct settings *settings;
    struct machine machine;
    int threads, nice;
    struct model *model;
    struct budget budget;
    struct pool *pool;
    struct kv_cache *cache;
    char *chat_template; /* the text of --chat-template FILE, or NULL */
    double load_seconds; /* that the weights took */
};

/* Opens the file and makes the plan; budget.arena is worked out. No large memory is taken.
 * ERR_LIMIT when the model does not fit. */
int session_open(struct session *s, const struct settings *settings, struct err *err);
/* As session_open, but a budget that is too small is no error (arena is 0 then). */
int session_plan(struct session *s, const struct settings *settings, struct err *err);
/* Of a planned session: the smallest budget it runs in, and whether its own is no smaller. */
size_t session_least(const struct session *s);
bool session_fits(const struct session *s);
/* Loads the weights and makes the cache. most_kv_bytes: more than that is not needed (0: no limit).
 */
int session_load(struct session *s, size_t most_kv_bytes, struct err *err);
void session_finish(struct session *s);

#endif
