#ifndef SERVER_FRONT_H
#define SERVER_FRONT_H

/* The front end's own vocabulary: connection, exchange, server. Everything here belongs to the loop
 * thread except where a comment says otherwise. */

#include "api_error.h"
#include "metrics.h"
#include "server.h"

#include <microhttpd.h>
#include <stdatomic.h>
#include <uv.h>

struct generation;
struct route;

#define FRONT_ID_BYTES      72
#define FRONT_ADDRESS_BYTES 48
#define FRONT_LISTENERS     8
#define FRONT_REFUSED       32

/* One client connection. */
struct conn {
    struct server *server;
    struct conn *next, **link;
    int fd;
    int64_t deadline; /* milliseconds of the loop's clock; 0: none */
    struct exchange *exchange;
    bool left; /* the client has closed its side */
    char address[FRONT_ADDRESS_BYTES];
};

/* One request and its answer. Two may hold it: libmicrohttpd until the request is completed, and
 * the work pool while a piece of its work is there. */
struct exchange {
    struct server *server;
    struct conn *conn;          /* NULL once completed */
    struct MHD_Connection *mhd; /* NULL once completed */
    struct exchange *next, **link;
    int references;

    const struct route *route; /* NULL: refused before there was one */
    const char *method;        /* a constant string */
    char *path;                /* without the query */
    bool head;                 /* answer without a body */
    char id[FRONT_ID_BYTES];   /* X-Request-Id */
    uint64_t tenant;           /* told by its API key; 0: no keys are used */
    char *origin;              /* what Access-Control-Allow-Origin says, or NULL */
    char allow[48];            /* what Allow says: the path has other methods */
    struct api_error error;    /* status set: refuse */
    struct strbuf body;
    uint64_t body_seen;
    struct strbuf reply; /* what work_run leaves for work_done to send */
    size_t promised;     /* room set aside for a piece of work */

    bool suspended, gone, dispatched, answered, completed;
    int status;
    uint64_t bytes_out;
    int64_t began;                 /* nanoseconds, monotonic */
    struct generation *made;       /* by the work pool, which alone looks at it until it is done */
    struct generation *generation; /* the same, once it has come to the loop */

    uv_work_t work;
    void (*work_run)(struct exchange *ex);  /* pool thread */
    void (*work_done)(struct exchange *ex); /* loop thread; not called when the client has gone */
};

enum drain_state { DRAIN_NOT, DRAIN_FINISHING, DRAIN_CUT, DRAIN_CLOSING };

struct listener {
    uv_poll_t poll;
    int fd;
    bool is_unix;
};

struct key_list {
    char **keys;
    int n;
};

struct server {
    const struct server_config *config; /* own_config */
    struct server_config own_config;
    struct engine *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* or NULL, with the reason in template_error */
    struct err template_error;
    char fingerprint[48];
    int64_t created; /* seconds since 1970 */
    uint64_t salt_key[2];
    struct key_list file_keys;
    struct strbuf unknown_fields; /* names that were logged, so that each is logged once */
    int access_fd;

    uv_loop_t loop;
    uv_async_t bell;
    uv_timer_t pump_timer, sweep_timer;
    uv_idle_t pump_again;
    uv_poll_t mhd_poll, gone_poll;
    uv_signal_t term, interrupt, hangup;
    struct listener listeners[FRONT_LISTENERS];
    int n_listeners, port;
    bool unix_bound;            /* the socket file is ours to remove */
    int refused[FRONT_REFUSED]; /* clients that were turned away and may still be sending; -1: none
                                 */
    int n_refused;              /* so far */
    int spare_fd; /* given up for a moment to refuse clients when the process is out of descriptors
                   */

    struct MHD_Daemon *daemon;
    char *tls_certificate, *tls_key; /* PEM texts, or NULL: plain HTTP */
    int gone_epoll;
    bool pump_wanted, pump_rerun;
    struct conn *conns;
    int n_conns;
    struct exchange *exchanges;
    int n_dispatched, n_working;
    int queued;
    int64_t queued_tokens;
    size_t room_base, room_bytes; /* see room.h */
    atomic_size_t room_promised;
    atomic_ullong room_refused;

    enum drain_state drain;
    int64_t drain_deadline; /* of the present state, milliseconds */
    struct metrics metrics;
};

/* The name that answers carry: the first that is served. */
const char *front_model_name(const struct server *s);
/* Milliseconds and nanoseconds of the monotonic clock. */
int64_t front_now_ms(void);
int64_t front_now_ns(void);
/* Fills bytes from the operating system's random source. */
void front_random(void *out, size_t bytes);
void front_random_hex(char *out, int digits); /* and a zero */

/* ---- httpd.c: the daemon and the pump ---- */

int httpd_start(struct server *s, struct err *err);
void httpd_stop(struct server *s); /* nothing may be suspended */
/* At the end of every loop callback: runs the daemon when something was resumed or queued. */
void httpd_pump(struct server *s);
void httpd_wake(struct server *s); /* asks the next httpd_pump to run it */

/* ---- tls.c ---- */

/* Reads the certificate and the key where the configuration has them. */
int tls_read(struct server *s, struct err *err);
void tls_forget(struct server *s);

/* ---- conn.c: connections, their deadlines and their ends ---- */

void conn_notify(void *cls, struct MHD_Connection *mhd, void **context,
                 enum MHD_ConnectionNotificationCode code);
/* Something must come within that time. */
void conn_await(struct conn *c, double seconds);
/* Ends it at once, without waiting for unsent data. */
void conn_kill(struct conn *c);
/* Kills those whose deadline has passed. */
void conn_sweep(struct server *s, int64_t now_ms);
int conn_count_address(const struct server *s, const char *address);
void conn_address_text(const struct sockaddr *address, char *out, size_t bytes);
/* Watches for clients that leave. */
int conn_watch_start(struct server *s, struct err *err);
void conn_watch_stop(struct server *s);

/* ---- exchange.c ---- */

/* libmicrohttpd's handler and completion callbacks. */
enum MHD_Result exchange_handler(void *cls, struct MHD_Connection *mhd, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_bytes, void **state);
void exchange_completed(void *cls, struct MHD_Connection *mhd, void **state,
                        enum MHD_RequestTerminationCode code);

/* Only from the handler or a content reader; resumes on exchange_resume. */
void exchange_suspend(struct exchange *ex);
void exchange_resume(struct exchange *ex);
/* Runs `run` in the work pool and then `done` on the loop. The exchange is suspended meanwhile. */
void exchange_work(struct exchange *ex, void (*run)(struct exchange *ex),
                   void (*done)(struct exchange *ex));
/* Answers; takes the body. A failed body is answered with 500. */
void exchange_answer(struct exchange *ex, int status, const char *type, struct strbuf *body);
void exchange_answer_json(struct exchange *ex, int status, struct strbuf *body);
/* Answers with bytes that stay where they are and more headers; a NULL name ends them. */
struct header {
    const char *name, *value;
};
void exchange_answer_fixed(struct exchange *ex, int status, const void *data, size_t bytes,
                           const struct header *more);
/* Answers with ex->error. */
void exchange_refuse(struct exchange *ex);
/* Answers 200 with a stream that `read` feeds (libmicrohttpd's content reader contract). */
void exchange_stream(struct exchange *ex, const char *type, MHD_ContentReaderCallback read);
const char *exchange_header(const struct exchange *ex, const char *name);
void exchange_unref(struct exchange *ex);

/* ---- guard.c: what is refused before a body is read ---- */

/* Looks at the request line and the headers; sets ex->route, or ex->error, or neither for OPTIONS.
 * True when the answer cannot wait for the body. */
bool guard_check(struct exchange *ex, const char *method, const char *version);

/* ---- access.c: who may ask, and what is written down ---- */

int access_start(struct server *s, struct err *err);
void access_stop(struct server *s);
void access_reload(struct server *s); /* log file and key file, on SIGHUP */
/* Whether it may ask; then ex->tenant says whose it is. */
bool access_key_ok(const struct server *s, struct exchange *ex);
bool access_origin_ok(const struct server *s, const char *origin, const char *host);
bool access_host_ok(const struct server *s, const char *host); /* NULL: none given */
void access_log(const struct exchange *ex);

/* ---- drain.c ---- */

int drain_start(struct server *s, struct err *err);
void drain_stop(struct server *s);
void drain_check(struct server *s); /* whenever an exchange has ended, and in each sweep */
static inline bool drain_begun(const struct server *s)
{
    return s->drain != DRAIN_NOT;
}

/* ---- listen.c ---- */

int listen_open(struct server *s, struct err *err);  /* binds */
int listen_start(struct server *s, struct err *err); /* accepts from now on */
void listen_sweep(struct server *s); /* forgets those who were turned away a while ago */
void listen_stop(struct server *s);
void listen_close(struct server *s);

/* A uv handle that may never have been initialised. */
void front_close(uv_handle_t *h);

#endif
