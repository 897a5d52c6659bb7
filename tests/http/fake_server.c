#include "log.h"
#include "server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* The front end with a fake engine behind it: fake_server NAME=VALUE ... sets members of its
 * configuration. Prints "ready ADDRESS" on standard output. */

static struct server_config config;
static int sequences = 64;
static int files;

static const struct {
    const char *name;
    char type;
    void *at;
} settings[] = {
    {"host", 's', &config.host},
    {"port", 'i', &config.port},
    {"unix", 's', &config.unix_path},
    {"max_logprobs", 'i', &config.max_logprobs},
    {"connections", 'i', &config.most_connections},
    {"per_address", 'i', &config.most_per_address},
    {"queued", 'i', &config.most_queued},
    {"queued_tokens", 'l', &config.most_queued_tokens},
    {"body", 'l', &config.body_bytes},
    {"pending", 'l', &config.stream_pending_bytes},
    {"header_seconds", 'd', &config.header_seconds},
    {"body_seconds", 'd', &config.body_seconds},
    {"idle_seconds", 'd', &config.idle_seconds},
    {"hold_seconds", 'd', &config.hold_seconds},
    {"ping_seconds", 'd', &config.ping_seconds},
    {"vanish_seconds", 'd', &config.vanish_seconds},
    {"drain_seconds", 'd', &config.drain_seconds},
    {"key_file", 's', &config.api_key_file},
    {"open_metrics", 'b', &config.open_metrics},
    {"page", 'b', &config.page},
    {"cors", 's', &config.cors_origins},
    {"hosts", 's', &config.allowed_hosts},
    {"access_log", 's', &config.access_log},
    {"certificate", 's', &config.tls_certificate},
    {"tls_key", 's', &config.tls_key},
    {"sequences", 'i', &sequences},
    {"files", 'i', &files},
};

static const char *names[8], *keys[8];

static void set(char *setting)
{
    char *value = strchr(setting, '=');
    if (!value)
        exit(2);
    *value++ = '\0';
    if (strcmp(setting, "name") == 0) {
        names[config.n_served_names++] = value;
        config.served_names = names;
    } else if (strcmp(setting, "key") == 0) {
        keys[config.n_api_keys++] = value;
        config.api_keys = keys;
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(settings[i].name, setting))
            continue;
        if (settings[i].type == 's')
            *(const char **)settings[i].at = *value ? value : NULL;
        else if (settings[i].type == 'i')
            *(int *)settings[i].at = atoi(value);
        else if (settings[i].type == 'l')
            *(int64_t *)settings[i].at = atoll(value);
        else if (settings[i].type == 'd')
            *(double *)settings[i].at = atof(value);
        else
            *(bool *)settings[i].at = atoi(value) != 0;
    }
}

static void ready(void *arg, const char *address)
{
    (void)arg;
    printf("ready %s\n", address);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct server *server = NULL;
    struct engine *engine = NULL;
    struct err err = {0};
    config = server_config_default;
    config.port = 0;
    config.version = "test";
    config.ready = ready;
    for (int i = 1; i < argc; i++)
        set(argv[i]);
    if (files) {
        const struct rlimit limit = {(rlim_t)files, (rlim_t)files};
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    log_set_level(LOG_DEBUG);
    int failed = server_create(&config, &server, &err);
    if (!failed) {
        const struct engine_config ec = {
            .most_sequences = sequences, .notify = server_notify, .notify_arg = server};
        failed = engine_create(&ec, &engine, &err) || server_run(server, engine, &err);
    }
    if (failed)
        log_error("%s", err.text);
    engine_destroy(engine);
    server_destroy(server);
    return failed ? 1 : 0;
}
