#include "progress.h"

#include "log.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* A person looks at a line that moves; a log is kept. */
static const struct pace {
    double first, next; /* seconds before the first line, between two */
    int step;           /* per cent */
} paces[2] = {{2, 5, 10}, {0.2, 0.1, 1}};

#define MOST_SHOWN 60 /* of a name: the line must not wrap */

void progress_init(struct progress *p, const char *what, bool terminal, double now)
{
    *p = (struct progress){.what = what, .terminal = terminal, .started = now, .told = now};
}

bool progress_text(struct progress *p, double done, double now, char *out, unsigned long bytes)
{
    const struct pace *pace = &paces[p->terminal];
    int percent = (int)(done * 100) / pace->step * pace->step;
    if (percent <= p->percent || now - p->told < (p->shown ? pace->next : pace->first))
        return false;
    if (percent >= 100)
        return false; /* the end is for the caller to tell */
    p->percent = percent;
    p->told = now;
    p->shown = true;
    snprintf(out, bytes, "%.*s: %d %%", MOST_SHOWN, p->what, percent);
    return true;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void progress_begin(struct progress *p, const char *what)
{
    progress_init(p, what, isatty(STDERR_FILENO), now());
}

void progress_show(void *arg, double done)
{
    struct progress *p = arg;
    char text[128];
    if (!log_shows(LOG_INFO) || !progress_text(p, done, now(), text, sizeof text))
        return;
    if (p->terminal)
        fprintf(stderr, "\r\033[K%s", text);
    else
        log_info("%s", text);
}

double progress_end(struct progress *p)
{
    if (p->terminal && p->shown)
        fputs("\r\033[K", stderr);
    return now() - p->started;
}
