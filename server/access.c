#include "front.h"

#include "generation.h"
#include "json_out.h"
#include "log.h"
#include "siphash.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

/* ---- keys ---- */

static void keys_finish(struct key_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->keys[i]);
    free(list->keys);
    *list = (struct key_list){0};
}

static int keys_add(struct key_list *list, const char *line)
{
    size_t n = strcspn(line, "\r\n");
    if (n == 0 || *line == '#')
        return 0;
    char **more = realloc(list->keys, (size_t)(list->n + 1) * sizeof *more);
    if (more)
        list->keys = more;
    char *key = more ? mem_strndup(line, n) : NULL;
    if (!key)
        return -1;
    list->keys[list->n++] = key;
    return 0;
}

static int keys_read(const char *path, struct key_list *out, struct err *err)
{
    FILE *f = fopen(path, "re");
    char line[1024];
    int failed = 0;
    if (!f)
        return err_set(err, ERR_IO, "the key file '%s' cannot be read: %s", path, strerror(errno));
    while (!failed && fgets(line, sizeof line, f))
        failed = keys_add(out, line);
    fclose(f);
    if (failed)
        return err_set(err, ERR_NOMEM, "no memory for the keys of '%s'", path);
    if (out->n == 0)
        return err_set(err, ERR_FORMAT, "the key file '%s' has no key in it", path);
    return 0;
}

/* Takes the same time for any wrong key of the same length. */
static bool same(const char *given, size_t n, const char *key)
{
    size_t m = strlen(key);
    unsigned difference = n != m;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[m ? i % m : 0];
    return difference == 0;
}

bool access_key_ok(const struct server *s, struct exchange *ex)
{
    const struct server_config *c = s->config;
    const char *given = exchange_header(ex, "Authorization");
    bool ok = false;
    if (c->n_api_keys == 0 && !c->api_key_file)
        return true;
    if (given && strncasecmp(given, "Bearer ", 7) == 0)
        given += 7 + strspn(given + 7, " ");
    else
        given = exchange_header(ex, "X-Api-Key");
    if (!given)
        return false;
    size_t n = strlen(given);
    for (int i = 0; i < c->n_api_keys; i++)
        ok |= same(given, n, c->api_keys[i]);
    for (int i = 0; i < s->file_keys.n; i++)
        ok |= same(given, n, s->file_keys.keys[i]);
    if (ok)
        ex->tenant = siphash(s->salt_key, given, n);
    return ok;
}

/* ---- browsers ---- */

/* The name in "name", "name:port" or "[address]:port". */
static size_t name_length(const char *host)
{
    return *host == '[' ? strcspn(host, "]") + (strchr(host, ']') != NULL) : strcspn(host, ":");
}

static bool is_name(const char *host, size_t n, const char *name)
{
    return strlen(name) == n && strncasecmp(host, name, n) == 0;
}

static bool is_local(const char *host, size_t n)
{
    return is_name(host, n, "localhost") || is_name(host, n, "127.0.0.1") ||
           is_name(host, n, "[::1]");
}

static bool is_address(const char *host, size_t n)
{
    unsigned char bits[16];
    char text[FRONT_ADDRESS_BYTES];
    bool six = n > 2 && host[0] == '[' && host[n - 1] == ']';
    size_t len = six ? n - 2 : n;
    if (len >= sizeof text)
        return false;
    memcpy(text, host + six, len);
    text[len] = '\0';
    return inet_pton(six ? AF_INET6 : AF_INET, text, bits) == 1;
}

static bool in_list(const char *list, const char *item, size_t n)
{
    for (const char *at = list; at && *at;) {
        at += strspn(at, ", ");
        size_t len = strcspn(at, ", ");
        if (len == n && strncasecmp(at, item, n) == 0)
            return true;
        at += len;
    }
    return false;
}

static bool serves_loopback_only(const struct server *s)
{
    const char *host = s->config->host;
    return host && (is_local(host, strlen(host)) || strcmp(host, "::1") == 0 ||
                    strncmp(host, "127.", 4) == 0);
}

/* A page of a foreign name that was made to point here (DNS rebinding) brings that name along. */
bool access_host_ok(const struct server *s, const char *host)
{
    if (!host || !serves_loopback_only(s))
        return true;
    size_t n = name_length(host);
    return is_local(host, n) || is_address(host, n) || in_list(s->config->allowed_hosts, host, n);
}

bool access_origin_ok(const struct server *s, const char *origin, const char *host)
{
    const char *allowed = s->config->cors_origins;
    const char *rest = strstr(origin, "://");
    if (allowed && (strcmp(allowed, "*") == 0 || in_list(allowed, origin, strlen(origin))))
        return true;
    if (!rest)
        return false;
    rest += 3;
    if (host && strcasecmp(rest, host) == 0) /* a page of this very server */
        return true;
    return !allowed && is_local(rest, name_length(rest));
}

/* ---- the log ---- */

static void open_log(struct server *s)
{
    const char *path = s->config->access_log;
    int fd = strcmp(path, "-") == 0 ? dup(STDOUT_FILENO)
                                    : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0) {
        log_error("the access log '%s' cannot be written: %s", path, strerror(errno));
        return;
    }
    if (s->access_fd >= 0)
        close(s->access_fd);
    s->access_fd = fd;
}

static void add_time(struct strbuf *out)
{
    struct timespec now;
    struct tm parts;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    strbuf_addf(out, "{\"time\":\"%s.%03ldZ\"", text, now.tv_nsec / 1000000);
}

static void add_field(struct strbuf *out, const char *name, const char *value)
{
    strbuf_addf(out, ",\"%s\":", name);
    json_out_text(out, value);
}

static void add_generation(const struct generation *g, struct strbuf *out)
{
    int64_t cached = 0;
    for (int i = 0; i < g->job->request.n_prompts; i++)
        cached += g->prompts[i].cached_tokens;
    strbuf_addf(out, ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"completion_tokens\":%d",
                (long long)g->options.prompt_tokens, (long long)cached, g->completion_tokens);
    add_field(out, "model", g->model);
}

void access_log(const struct exchange *ex)
{
    struct strbuf out = {0};
    if (ex->server->access_fd < 0)
        return;
    add_time(&out);
    add_field(&out, "client", ex->conn->address);
    add_field(&out, "id", ex->id);
    add_field(&out, "method", ex->method);
    add_field(&out, "path", ex->path);
    strbuf_addf(&out, ",\"status\":%d,\"bytes_in\":%llu,\"bytes_out\":%llu,\"ms\":%.1f,\"left\":%s",
                ex->status, (unsigned long long)ex->body_seen, (unsigned long long)ex->bytes_out,
                (double)(front_now_ns() - ex->began) * 1e-6, ex->gone ? "true" : "false");
    if (ex->generation)
        add_generation(ex->generation, &out);
    if (ex->error.status)
        add_field(&out, "error", ex->error.message);
    strbuf_adds(&out, "}\n");
    ssize_t ignored = out.failed ? 0 : write(ex->server->access_fd, out.data, out.len);
    (void)ignored;
    strbuf_finish(&out);
}

/* ---- life ---- */

int access_start(struct server *s, struct err *err)
{
    s->access_fd = -1;
    if (s->config->access_log)
        open_log(s);
    if (s->config->access_log && s->access_fd < 0)
        return err_set(err, ERR_IO, "the access log '%s' cannot be written", s->config->access_log);
    return s->config->api_key_file ? keys_read(s->config->api_key_file, &s->file_keys, err) : 0;
}

void access_reload(struct server *s)
{
    struct key_list fresh = {0};
    struct err err;
    if (s->config->access_log)
        open_log(s);
    if (!s->config->api_key_file)
        return;
    if (keys_read(s->config->api_key_file, &fresh, &err)) {
        log_error("%s; the old keys stay", err.text);
        keys_finish(&fresh);
        return;
    }
    keys_finish(&s->file_keys);
    s->file_keys = fresh;
}

void access_stop(struct server *s)
{
    keys_finish(&s->file_keys);
    if (s->access_fd >= 0)
        close(s->access_fd);
    s->access_fd = -1;
}
