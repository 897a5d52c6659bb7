#ifndef CONFIG_FORMATS_H
#define CONFIG_FORMATS_H

#include <stdint.h>

enum format_id {
#define FORMAT(id, name, gguf, block, bytes) id,
#include "formats.def"
#undef FORMAT
    FORMAT_COUNT
};

struct format_info {
    const char *name;
    uint32_t gguf_type;
    int block_values; /* a row is whole blocks: cols % block_values == 0 */
    int block_bytes;
};

extern const struct format_info format_infos[FORMAT_COUNT];

/* The format with that GGUF number, or -1. */
int format_from_gguf(uint32_t gguf_type);

#endif
