#ifndef SERVER_TERMINAL_H
#define SERVER_TERMINAL_H

#include "engine.h"

/* Answers in the terminal: the engine's other front end. */

struct terminal {
    struct engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool news;
};

void terminal_init(struct terminal *t);
void terminal_finish(struct terminal *t);
void terminal_notify(void *t); /* for engine_config.notify */

/* Runs the job, calls text() for each piece of the first choice, and waits for its end. Ctrl-C
 * (when *interrupted becomes true) cancels it. Fills *finish. */
struct terminal_answer {
    void (*text)(void *arg, const char *bytes, size_t n);
    void *arg;
    const volatile bool *interrupted;
    /* out */
    enum job_finish finish;
    int prompt_tokens, cached_tokens, completion_tokens;
    double seconds_to_first, seconds;
};
int terminal_run(struct terminal *t, struct job *j, struct terminal_answer *a, struct err *err);

#endif
