#define _GNU_SOURCE /* explicit_bzero */
#include "front.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* HTTPS is libmicrohttpd's (GnuTLS); handshakes run on the loop thread, so a proxy in front is the
 * better place when there are many. */

#ifndef ROPEWALK_TLS
#define ROPEWALK_TLS 0
#endif

#define PEM_BYTES ((size_t)1 << 20)

static char *read_pem(const char *path, const char *what, struct err *err)
{
    FILE *f = fopen(path, "re");
    char *text = f ? calloc(1, PEM_BYTES + 1) : NULL;
    size_t n = text ? fread(text, 1, PEM_BYTES, f) : 0;
    if (!f)
        err_set(err, ERR_IO, "the %s '%s' cannot be read: %s", what, path, strerror(errno));
    else if (!text)
        err_set(err, ERR_NOMEM, "no memory for the %s", what);
    else if (!strstr(text, "-----BEGIN "))
        err_set(err, ERR_FORMAT, "the %s '%s' is not in PEM form (%zu bytes read)", what, path, n);
    if (f)
        fclose(f);
    if (text && strstr(text, "-----BEGIN "))
        return text;
    free(text);
    return NULL;
}

int tls_read(struct server *s, struct err *err)
{
    const struct server_config *c = s->config;
    if (!c->tls_certificate && !c->tls_key)
        return 0;
    if (!ROPEWALK_TLS || MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(err, ERR_UNSUPPORTED, "this build cannot serve HTTPS (ROPEWALK_TLS is off)");
    if (!c->tls_certificate || !c->tls_key)
        return err_set(err, ERR_ARG, "HTTPS needs both a certificate and a key");
    s->tls_certificate = read_pem(c->tls_certificate, "certificate", err);
    s->tls_key = s->tls_certificate ? read_pem(c->tls_key, "key", err) : NULL;
    return s->tls_key ? 0 : err->code;
}

void tls_forget(struct server *s)
{
    if (s->tls_key)
        explicit_bzero(s->tls_key, strlen(s->tls_key));
    free(s->tls_certificate);
    free(s->tls_key);
    s->tls_certificate = s->tls_key = NULL;
}
