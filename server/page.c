#include "page.h"

#include "api.h"

#include <string.h>

/* The page for people: constant files, with headers under which a browser loads nothing from and
 * sends nothing to any other host, and nothing that a model wrote can run. */

#define HEADERS(type, etag)                                                                        \
    {                                                                                              \
        {"Content-Type", type}, {"ETag", etag}, {"Cache-Control", "no-cache"},                     \
            {"Content-Security-Policy",                                                            \
             "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "           \
             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},   \
            {"X-Content-Type-Options", "nosniff"}, {"Referrer-Policy", "no-referrer"},             \
            {"Cross-Origin-Opener-Policy", "same-origin"},                                         \
            {"Cross-Origin-Resource-Policy", "same-origin"}, {NULL, NULL},                         \
    }

static const char *type_of(const char *name)
{
    static const char *const types[][2] = {
        {".html", "text/html; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".svg", "image/svg+xml"},
    };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++)
        if (strcmp(dot, types[i][0]) == 0)
            return types[i][1];
    return "application/octet-stream";
}

/* "/" is index.html, "/page/NAME" any of them. */
static const struct page_file *find(const char *path)
{
    const char *name = path[1] ? path + strlen("/page/") : "index.html";
    for (int i = 0; i < page_files_count; i++)
        if (strcmp(page_files[i].name, name) == 0)
            return &page_files[i];
    return NULL;
}

/* If-None-Match: a list of tags, perhaps weak ones, or "*". */
static bool has_it(const struct exchange *ex, const char *etag)
{
    const char *tags = exchange_header(ex, "If-None-Match");
    return tags && (strcmp(tags, "*") == 0 || strstr(tags, etag));
}

void page_answer(struct exchange *ex)
{
    const struct page_file *f = find(ex->path);
    if (!f) {
        api_refuse(&ex->error, 404, "not_found", NULL, "there is nothing at this path");
        exchange_refuse(ex);
        return;
    }
    const struct header headers[] = HEADERS(type_of(f->name), f->etag);
    exchange_answer_fixed(ex, has_it(ex, f->etag) ? 304 : 200, f->data, f->bytes, headers);
}
