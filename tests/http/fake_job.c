#include "job.h"

#include <stdlib.h>

/* Weak, so that the program's own take over where they are linked in. */

__attribute__((weak)) struct job *job_create(void)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    atomic_init(&j->references, 1);
    pthread_mutex_init(&j->lock, NULL);
    j->last = &j->first;
    return j;
}

__attribute__((weak)) void job_ref(struct job *j)
{
    atomic_fetch_add(&j->references, 1);
}

__attribute__((weak)) void job_event_destroy(struct job_event *e)
{
    if (!e)
        return;
    free(e->text);
    free(e->tokens);
    free(e);
}

__attribute__((weak)) void job_unref(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->references, 1) > 1)
        return;
    for (struct job_event *e = j->first, *next; e; e = next) {
        next = e->next;
        job_event_destroy(e);
    }
    mem_arena_finish(&j->arena);
    pthread_mutex_destroy(&j->lock);
    free(j);
}

__attribute__((weak)) struct job_event *job_take(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    struct job_event *e = j->first;
    j->first = NULL;
    j->last = &j->first;
    pthread_mutex_unlock(&j->lock);
    return e;
}
