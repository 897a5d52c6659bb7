#include "room.h"

#include "heap.h"

#define MIB (1024.0 * 1024.0)

void room_open(struct server *s, size_t bytes)
{
    s->room_base = heap_bytes();
    s->room_bytes = bytes;
}

size_t room_used(const struct server *s)
{
    size_t now = heap_bytes();
    return now > s->room_base ? now - s->room_base : 0;
}

bool room_for(const struct server *s, size_t bytes)
{
    if (!s->room_bytes)
        return true;
    size_t taken = room_used(s) + atomic_load(&s->room_promised);
    return taken <= s->room_bytes && bytes <= s->room_bytes - taken;
}

bool room_enter(struct exchange *ex, size_t bytes)
{
    struct server *s = ex->server;
    room_leave(ex);
    atomic_fetch_add(&s->room_promised, bytes);
    ex->promised = bytes;
    if (room_for(s, 0))
        return true;
    room_leave(ex);
    room_refuse(s, bytes, &ex->error);
    return false;
}

void room_leave(struct exchange *ex)
{
    atomic_fetch_sub(&ex->server->room_promised, ex->promised);
    ex->promised = 0;
}

int room_refuse(struct server *s, size_t bytes, struct api_error *e)
{
    atomic_fetch_add(&s->room_refused, 1);
    if (bytes > s->room_bytes)
        return api_refuse(e, 413, "request_too_large", NULL,
                          "this request would take %.1f MiB of memory; there are %.1f MiB for all "
                          "requests (--memory gives more)",
                          (double)bytes / MIB, (double)s->room_bytes / MIB);
    e->retry_seconds = 1;
    return api_refuse(e, 503, "out_of_memory", NULL,
                      "the memory for requests, %.1f MiB, is in use; try again soon",
                      (double)s->room_bytes / MIB);
}
