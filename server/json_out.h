#ifndef SERVER_JSON_OUT_H
#define SERVER_JSON_OUT_H

#include "strbuf.h"

#include <stdint.h>

/* Writing JSON: model output is any bytes, so nothing of it goes through a library that wants valid
 * UTF-8. No locale, no allocation but the buffer's. */

/* Length of the whole, valid UTF-8 character at s[0, n): 1 to 4; 0 when the bytes are not one. */
size_t utf8_char(const char *s, size_t n);
bool utf8_valid(const char *s, size_t n);
/* Characters in s[0, n): bytes that do not continue a character. */
size_t utf8_count(const char *s, size_t n);
/* The longest prefix of s[0, n) that does not end inside a character that could still be completed.
 */
size_t utf8_whole(const char *s, size_t n);

/* A string without its quotes. Invalid bytes become U+FFFD. Line separators that some clients split
 * at (U+0085, U+2028, U+2029) are escaped. */
void json_out_escaped(struct strbuf *b, const char *s, size_t n);
void json_out_string(struct strbuf *b, const char *s, size_t n); /* with quotes */
void json_out_text(struct strbuf *b, const char *s);             /* zero-terminated; NULL: null */
void json_out_int(struct strbuf *b, int64_t v);
/* Nine significant digits, so that a float32 reads back the same; NaN and infinity are null. */
void json_out_float(struct strbuf *b, float v);
/* Shortest of 15 to 17 digits that reads back the same; NaN and infinity are null. */
void json_out_double(struct strbuf *b, double v);
void json_out_bool(struct strbuf *b, bool v);

#endif
