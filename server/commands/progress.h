#ifndef SERVER_PROGRESS_H
#define SERVER_PROGRESS_H

#include <stdbool.h>

/* How far a long piece of work has got. On a terminal it is one line that is written over and goes
 * when the work is done; elsewhere it is lines of the log, so few that nobody minds them. Work that
 * ends at once says nothing. */

struct progress {
    const char *what; /* "reading model.gguf"; not owned */
    bool terminal;
    int percent;          /* that has been told, in steps of the kind of output */
    double started, told; /* seconds of one clock */
    bool shown;
};

void progress_init(struct progress *p, const char *what, bool terminal, double now);
/* What to write now that `done` (0 to 1) of the work is done, without line ends; false: nothing. */
bool progress_text(struct progress *p, double done, double now, char *out, unsigned long bytes);

/* The same on stderr and with the clock. `arg` is a struct progress: for model_load. */
void progress_begin(struct progress *p, const char *what);
void progress_show(void *arg, double done);
/* Seconds since it began. The terminal's line goes. */
double progress_end(struct progress *p);

#endif
