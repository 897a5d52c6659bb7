#include "log.h"
#include "server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The bytes are what one client sends to the whole front end, with a fake engine behind it. The
 * first byte says into what packets they are cut and how the client leaves. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { HANG_UP = 1, HALF_CLOSE = 2, CUT_SHIFT = 2, QUIET_MS = 2, MOST_REPLY = 1 << 20 };

static char path[64];
static struct server *server;
static struct engine *engine;

static void *serve(void *arg)
{
    struct err err;
    (void)arg;
    if (server_run(server, engine, &err))
        abort();
    return NULL;
}

static void remove_socket(void)
{
    unlink(path);
}

static void start(void)
{
    static struct server_config config;
    struct err err;
    pthread_t thread;
    setenv("FAKE_QUIET", "1", 1);
    log_set_level(LOG_ERROR);
    snprintf(path, sizeof path, "/tmp/fuzz_http_%d", (int)getpid());
    config = server_config_default;
    config.host = NULL;
    config.unix_path = path;
    config.body_bytes = 64 << 10;
    config.header_seconds = config.body_seconds = config.idle_seconds = 2;
    const struct engine_config ec = {.most_sequences = 64, .notify = server_notify};
    struct engine_config own = ec;
    if (server_create(&config, &server, &err))
        abort();
    own.notify_arg = server;
    if (engine_create(&own, &engine, &err) || pthread_create(&thread, NULL, serve, NULL))
        abort();
    pthread_detach(thread);
    atexit(remove_socket);
}

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, sizeof path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        abort();
    return fd;
}

/* What comes until the server closes or says nothing for a while. */
static void hear(int fd)
{
    static char reply[1 << 16];
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    size_t heard = 0;
    ssize_t n;
    while (heard < MOST_REPLY && poll(&ready, 1, QUIET_MS) > 0 &&
           (n = recv(fd, reply, sizeof reply, 0)) > 0) {
        if (heard == 0 && n > 12 && memcmp(reply + 8, " 500", 4) == 0)
            abort();
        heard += (size_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (!server)
        start();
    int fd = dial();
    size_t cut = (size_t)1 << (data[0] >> CUT_SHIFT) % 16;
    for (size_t at = 1; at < bytes; at += cut) {
        size_t n = bytes - at < cut ? bytes - at : cut;
        if (send(fd, data + at, n, MSG_NOSIGNAL) < 0)
            break; /* it has had enough */
    }
    if (data[0] & HALF_CLOSE)
        shutdown(fd, SHUT_WR);
    if (!(data[0] & HANG_UP))
        hear(fd);
    close(fd);
    return 0;
}
