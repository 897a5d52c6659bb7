#ifndef SERVER_API_ERROR_H
#define SERVER_API_ERROR_H

#include "strbuf.h"

/* What a request is refused with; turned into the caller's dialect when it is sent. */
struct api_error {
    int status;       /* 0: no error */
    const char *code; /* for programs, or NULL */
    char param[80];   /* the field, or empty */
    char message[600];
    int retry_seconds; /* 0: no Retry-After */
    bool close;        /* the connection cannot go on */
};

/* Keeps the first error; returns -1. param may be NULL. */
int api_refuse(struct api_error *e, int status, const char *code, const char *param,
               const char *format, ...) __attribute__((format(printf, 5, 6)));
/* 400 invalid_value about one field. */
int api_invalid(struct api_error *e, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* 500: memory could not be had. */
int api_no_memory(struct api_error *e);

/* {"error":{"message","type","param","code"}}: OpenAI's form, all four always there. */
void api_error_write(const struct api_error *e, struct strbuf *out);
/* "invalid_request_error" and so on. */
const char *api_error_type(int status);

#endif
