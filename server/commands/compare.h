#ifndef SERVER_COMPARE_H
#define SERVER_COMPARE_H

#include "session.h"

/* `ropewalk bench --compare ADDRESS`: this model served here over HTTP, and another
 * OpenAI-compatible server with (one hopes) the same one, asked the same things in turns. */

struct compare;

/* Asks the other server which model it has: a wrong address shows before ours is loaded. */
int compare_create(const struct settings *settings, struct compare **out, struct err *err);
/* Serves a loaded session's model while it measures. Rows are printed as they come, or appended to
 * `rows` with --json. */
int compare_run(struct compare *c, struct session *session, json_t *rows, struct err *err);
void compare_destroy(struct compare *c); /* accepts NULL */

#endif
