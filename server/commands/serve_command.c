#include "commands.h"
#include "log.h"
#include "server.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `ropewalk serve FILE`: the engine behind the HTTP front end. */

struct serve {
    const struct settings *settings;
    struct session session;
    struct server *server;
    struct engine *engine;
    struct strbuf cors, hosts; /* lists as the front end takes them */
};

static const char *join(struct strbuf *out, const struct settings_texts *list)
{
    for (int i = 0; i < list->n; i++)
        strbuf_addf(out, "%s%s", i ? "," : "", list->items[i]);
    return list->n ? out->data : NULL;
}

static void tell_address(void *arg, const char *address)
{
    const struct serve *s = arg;
    const char *scheme = s->settings->tls_certificate ? "https" : "http";
    log_info("serving %s on %s", model_plan(s->session.model)->name, address);
    if (s->settings->unix_socket && !strchr(address, ':'))
        return;
    if (s->settings->page)
        fprintf(stderr, "\n    %s://%s/ in a browser, or\n", scheme, address);
    fprintf(stderr,
            "\n    curl %s://%s/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
            "\"content\": \"Hello!\"}]}'\n\n",
            scheme, address);
}

static void tell_plan(const struct session *s)
{
    const struct model_plan *p = model_plan(s->model);
    struct budget_line lines[BUDGET_LINES];
    log_info("%s (%s), %d threads on %s; memory %s", p->name, p->architecture, s->threads,
             cpu_name(), size_text((double)s->budget.total).text);
    budget_lines(&s->budget, p, lines);
    for (int i = 0; i < BUDGET_LINES; i++)
        log_info("  %-12s %11s%s%s", lines[i].name, size_text((double)lines[i].bytes).text,
                 *lines[i].what ? "   " : "", lines[i].what);
}

static struct server_config front_config(struct serve *s)
{
    const struct settings *t = s->settings;
    struct server_config c = server_config_default;
    c.model = s->session.model;
    c.version = PROGRAM_VERSION;
    c.host = t->unix_socket ? NULL : t->host;
    c.port = t->port;
    c.unix_path = t->unix_socket;
    c.inherited = getenv("LISTEN_FDS") != NULL;
    c.served_names = t->served_model_name.items;
    c.n_served_names = t->served_model_name.n;
    c.api_keys = t->api_key.items;
    c.n_api_keys = t->api_key.n;
    c.api_key_file = t->api_key_file;
    if (t->from[SETTING_api_key] != FROM_NOWHERE && c.n_api_keys == 0 && !c.api_key_file)
        log_warning("the list of API keys is empty: everybody may ask");
    c.open_metrics = t->open_metrics;
    c.page = t->page;
    c.debug_texts = t->debug_texts;
    c.cors_origins = join(&s->cors, &t->cors_origins);
    c.allowed_hosts = join(&s->hosts, &t->allowed_hosts);
    c.max_logprobs = t->max_logprobs;
    c.most_connections = s->session.budget.connections;
    c.most_running = t->parallel;
    c.room_bytes = s->session.budget.requests;
    c.most_queued = t->max_queue;
    c.most_queued_tokens = t->max_queue_tokens;
    c.most_per_address = t->max_connections_per_address;
    c.tls_certificate = t->tls_certificate;
    c.tls_key = t->tls_key;
    c.body_bytes = s->session.budget.body;
    c.drain_seconds = t->drain_seconds;
    c.max_seconds = t->max_time;
    c.access_log = t->access_log;
    c.ready = tell_address;
    c.ready_arg = s;
    return c;
}

static int start(struct serve *s, struct err *err)
{
    int rc = session_open(&s->session, s->settings, err);
    if (rc)
        return rc;
    const struct server_config front = front_config(s);
    rc = server_create(&front, &s->server,
                       err); /* a port in use shows before the weights are read */
    if (rc)
        return rc;
    tell_plan(&s->session);
    rc = session_load(&s->session, 0, err);
    if (rc)
        return rc;
    log_info("the weights are ready after %.1f s", s->session.load_seconds);
    for (int i = 0; i < s->settings->public_prefix.n && rc == 0; i++)
        rc = server_public_prefix(s->server, s->settings->public_prefix.items[i], s->session.cache,
                                  err);
    if (rc)
        return rc;
    const struct engine_config config = {
        .model = s->session.model,
        .cache = s->session.cache,
        .pool = s->session.pool,
        .most_sequences = s->settings->parallel,
        /* the front end refuses first, and counts those that can begin at once as no queue */
        .most_queued = s->settings->max_queue + s->settings->parallel,
        .lookup = s->settings->lookup,
        .itl_target_ms = s->settings->itl_target_ms,
        .nice = s->session.nice,
        .notify = server_notify,
        .notify_arg = s->server,
    };
    rc = engine_create(&config, &s->engine, err);
    if (rc)
        return rc;
    log_info("the longest sequence is %d tokens", engine_context(s->engine));
    return server_run(s->server, s->engine, err);
}

int command_serve(const struct settings *settings)
{
    struct err err;
    struct serve s = {.settings = settings};
    int rc = start(&s, &err);
    if (rc)
        log_error("%s", err.text);
    engine_destroy(s.engine);
    server_destroy(s.server);
    session_finish(&s.session);
    strbuf_finish(&s.cors);
    strbuf_finish(&s.hosts);
    return rc != 0;
}
