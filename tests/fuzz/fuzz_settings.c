#include "settings.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first byte chooses the command; then the lines before an empty one are arguments, and what
 * follows is the JSON file. */

enum { MOST_ARGUMENTS = 30 };

static char path[] = "/tmp/fuzz_settings_XXXXXX";
static int file = -1;

static void remove_file(void)
{
    unlink(path);
}

static void write_file(const char *text, size_t bytes)
{
    if (file < 0) {
        file = mkstemp(path);
        atexit(remove_file);
    }
    if (file < 0 || ftruncate(file, 0) || pwrite(file, text, bytes, 0) != (ssize_t)bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *argv[MOST_ARGUMENTS + 2];
    int argc = 0;
    if (bytes < 1)
        return 0;
    char *text = mem_strndup((const char *)data + 1, bytes - 1), *rest = text;
    while (*rest && *rest != '\n' && argc < MOST_ARGUMENTS) {
        argv[argc++] = rest;
        rest += strcspn(rest, "\n");
        if (*rest)
            *rest++ = '\0';
    }
    write_file(rest, strlen(rest));
    argv[argc++] = "--config";
    argv[argc++] = path;
    struct settings settings;
    struct strbuf problems = {0};
    settings_read(&settings, (enum settings_command)(data[0] % COMMAND_COUNT), argc, argv,
                  &problems);
    settings_finish(&settings);
    strbuf_finish(&problems);
    free(text);
    return 0;
}
