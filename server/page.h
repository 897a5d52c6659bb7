#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

/* The files of server/page/, which the build compiles in (server/page/embed.cmake writes them). */
struct page_file {
    const char *name;
    const char *etag; /* with its quotes */
    const unsigned char *data;
    size_t bytes;
};
extern const struct page_file page_files[];
extern const int page_files_count;

#endif
