#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The HTTP front end: everything between the sockets and the engine. One thread, the one that calls
 * server_run, owns every socket; the engine only rings a bell (server_notify).
 *
 * Order of life:
 *
 *     server_create      binds the sockets; a wrong address fails before a model is loaded
 *     engine_create      with notify = server_notify, notify_arg = the server
 *     server_run         serves until a signal has drained it
 *     engine_destroy
 *     server_destroy
 */

struct server;

/* Times are in seconds, 0 or NULL means "none" unless it says otherwise. The server copies it, but
 * what it points to must outlive the server. */
struct server_config {
    const struct model *model; /* for its tokenizer, chat template and plan */
    const char *version;       /* of the program, for system_fingerprint */

    /* where */
    const char *host; /* NULL: no TCP */
    int port;         /* 0: any free one */
    const char *unix_path;
    const char *tls_certificate, *tls_key; /* PEM files; both or none; not in every build */
    bool inherited;                        /* serve the sockets of LISTEN_FDS (systemd), too */

    /* who */
    const char *const *served_names; /* the first is the one that answers carry; "*" takes any name;
                                        none: the model's own name */
    int n_served_names;
    const char *const *api_keys;
    int n_api_keys;
    const char *api_key_file;  /* one key a line; read again on SIGHUP */
    bool open_metrics;         /* /metrics needs no key */
    bool page;                 /* the page at /, whose files need no key */
    bool debug_texts;          /* /debug/kv shows what prompts say */
    const char *cors_origins;  /* comma-separated list, or "*"; NULL: pages from this computer */
    const char *allowed_hosts; /* comma-separated names accepted in Host besides localhost and IP
                                  addresses */

    /* how much */
    int max_logprobs; /* -1: no limit */
    int most_connections, most_per_address;
    int most_queued;            /* requests that wait for the engine; more are refused with 429 */
    int64_t most_queued_tokens; /* their prompt tokens together */
    int most_choices;           /* prompts times candidates of one request */
    size_t body_bytes, header_bytes;
    size_t send_buffer_bytes, receive_buffer_bytes; /* of the kernel, per connection */
    size_t room_bytes; /* of the heap, for all requests together; 0: no limit */
    int most_running;  /* sequences that the engine runs at once; who finds a place among them
                          is in no queue; 0: unknown */
    size_t stream_pending_bytes; /* raw answer bytes a slow reader may leave behind */

    /* how long */
    double header_seconds; /* from connecting to the first complete header */
    double body_seconds;   /* for a body, and a second more for every 32 KiB received */
    double idle_seconds;   /* of a kept connection */
    double hold_seconds;   /* an answer's status is held back until the first token or this long */
    double ping_seconds;   /* of silence before a comment is sent down a stream */
    double vanish_seconds; /* unacknowledged data before a peer counts as gone */
    double drain_seconds, flush_seconds;
    double max_seconds; /* of one request */

    /* what is told */
    const char *access_log; /* file for one JSON object per request; "-" is standard output */
    void (*ready)(void *arg, const char *address); /* "127.0.0.1:8080"; called once by server_run */
    void *ready_arg;
};
extern const struct server_config server_config_default;

/* Kernel memory that a connection may take: buffers, which the kernel lets grow to twice what was
 * asked for, and what describes a socket and a file. */
size_t server_connection_bytes(const struct server_config *config);

int server_create(const struct server_config *config, struct server **out, struct err *err);
/* What prompts of several tenants begin with: the text of a file, or the chat of one with JSON
 * messages, as far as the model's template renders it. To be called before the engine has the
 * cache. */
int server_public_prefix(const struct server *s, const char *path, struct kv_cache *cache,
                         struct err *err);
/* The port of the first TCP socket, 0 when there is none. */
int server_port(const struct server *s);
/* Any thread; arg is the struct server. */
void server_notify(void *arg);
/* Serves until SIGTERM or SIGINT have drained it; 0 then. */
int server_run(struct server *s, struct engine *engine, struct err *err);
void server_destroy(struct server *s); /* accepts NULL */

#endif
