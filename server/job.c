#include "job.h"

#include <stdlib.h>

struct job *job_create(void)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    pthread_mutex_init(&j->lock, NULL);
    atomic_init(&j->references, 1);
    j->last = &j->first;
    return j;
}

void job_ref(struct job *j)
{
    atomic_fetch_add(&j->references, 1);
}

void job_event_destroy(struct job_event *e)
{
    if (!e)
        return;
    free(e->text);
    free(e->tokens);
    free(e);
}

void job_unref(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->references, 1) != 1)
        return;
    while (j->first) {
        struct job_event *next = j->first->next;
        job_event_destroy(j->first);
        j->first = next;
    }
    pthread_mutex_destroy(&j->lock);
    mem_arena_finish(&j->arena);
    free(j);
}

struct job_event *job_take(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    struct job_event *first = j->first;
    j->first = NULL;
    j->last = &j->first;
    pthread_mutex_unlock(&j->lock);
    return first;
}

void job_put(struct job *j, struct job_event *e)
{
    e->next = NULL;
    pthread_mutex_lock(&j->lock);
    *j->last = e;
    j->last = &e->next;
    pthread_mutex_unlock(&j->lock);
}
