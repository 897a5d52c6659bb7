#ifndef CONFIG_ERR_H
#define CONFIG_ERR_H

/* Errors: a function that can fail returns 0 or one of these negative codes and takes a
 * `struct err *` last. The sentence says what was attempted, on what, what was found and what was
 * expected; it is meant for the person who runs the program. */

enum err_code {
    ERR_NOMEM = -1,       /* memory could not be had */
    ERR_IO = -2,          /* the operating system refused; the sentence has its reason */
    ERR_FORMAT = -3,      /* data from outside breaks its own format */
    ERR_UNSUPPORTED = -4, /* well-formed, but this program cannot do it (yet) */
    ERR_ARG = -5,         /* a wrong setting or argument */
    ERR_LIMIT = -6,       /* over a limit that the sentence names */
    ERR_NOT_FOUND = -7,
    ERR_BUSY = -8 /* no room now; the same call may succeed later */
};

struct err {
    int code;
    char text[1024];
};

/* Writes the sentence (cut at the buffer's end) and returns `code`. `e` may be NULL. */
int err_set(struct err *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "format: " before the sentence that is there, so that a caller can say on what; returns the
 * code. */
int err_prefix(struct err *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
