#include "api_error.h"

#include "json_out.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int status;
    const char *type;
} types[] = {
    {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
    {429, "rate_limit_error"},     {500, "server_error"},     {501, "not_implemented_error"},
    {503, "overloaded_error"},
};

const char *api_error_type(int status)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status)
            return types[i].type;
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static void fill(struct api_error *e, int status, const char *code, const char *param)
{
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
}

int api_refuse(struct api_error *e, int status, const char *code, const char *param,
               const char *format, ...)
{
    if (e->status)
        return -1;
    fill(e, status, code, param);
    va_list args;
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return -1;
}

int api_invalid(struct api_error *e, const char *param, const char *format, ...)
{
    if (e->status)
        return -1;
    fill(e, 400, "invalid_value", param);
    int n = param ? snprintf(e->message, sizeof e->message, "%s: ", e->param) : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(e->message + n, sizeof e->message - (size_t)n, format, args);
    va_end(args);
    return -1;
}

int api_no_memory(struct api_error *e)
{
    return api_refuse(e, 500, "out_of_memory", NULL, "the server is out of memory");
}

void api_error_write(const struct api_error *e, struct strbuf *out)
{
    strbuf_adds(out, "{\"error\":{\"message\":");
    json_out_text(out, e->message);
    strbuf_adds(out, ",\"type\":");
    json_out_text(out, api_error_type(e->status));
    strbuf_adds(out, ",\"param\":");
    json_out_text(out, e->param[0] ? e->param : NULL);
    strbuf_adds(out, ",\"code\":");
    json_out_text(out, e->code);
    strbuf_adds(out, "}}");
}
