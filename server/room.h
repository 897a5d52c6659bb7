#ifndef SERVER_ROOM_H
#define SERVER_ROOM_H

#include "front.h"

/* Room for requests: the part of the memory budget that bodies, parsed requests, waiting jobs and
 * unread answers live in. The heap is measured, not estimated; only what is about to be taken is
 * promised beforehand. Who finds no room is refused with a reason and may come again. */

/* What is in use now is the program's own; requests may take `bytes` more. 0: no limit. */
void room_open(struct server *s, size_t bytes);

/* Is there room for so many bytes more? Any thread. */
bool room_for(const struct server *s, size_t bytes);
/* Sets bytes aside for an exchange until room_leave (in place of those it has); false with
 * ex->error when there is no room. Whoever has the exchange. */
bool room_enter(struct exchange *ex, size_t bytes);
void room_leave(struct exchange *ex);

/* The refusal of what would need so many bytes: 413 when they never fit, else 503. Any thread. */
int room_refuse(struct server *s, size_t bytes, struct api_error *e);

/* In use by requests, for /metrics. */
size_t room_used(const struct server *s);

#endif
