#ifndef CONFIG_STRBUF_H
#define CONFIG_STRBUF_H

#include <stdbool.h>
#include <stddef.h>

/* A growing byte string, always followed by a zero byte once something was added. A failed
 * allocation sets `failed`; later calls then do nothing, so that a writer checks once at the end.
 * Initialise with {0}. Not thread-safe. */
struct strbuf {
    char *data;
    size_t len, cap;
    bool failed;
};

void strbuf_add(struct strbuf *b, const char *bytes, size_t n);
void strbuf_adds(struct strbuf *b, const char *s);
void strbuf_addc(struct strbuf *b, char c);
void strbuf_addf(struct strbuf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Room for n more bytes: returns where to write, or NULL; then raise len by what was written. */
char *strbuf_reserve(struct strbuf *b, size_t n);
/* Drops the first n bytes. */
void strbuf_consume(struct strbuf *b, size_t n);
void strbuf_clear(struct strbuf *b); /* len = 0, keeps the memory */
void strbuf_finish(struct strbuf *b);
/* The bytes (zero-terminated, free(3) them), or NULL when something failed; the buffer is empty
 * then. */
char *strbuf_take(struct strbuf *b);

#endif
