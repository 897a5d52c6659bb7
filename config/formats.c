#include "formats.h"

const struct format_info format_infos[FORMAT_COUNT] = {
#define FORMAT(id, name, gguf, block, bytes) [id] = {name, gguf, block, bytes},
#include "formats.def"
#undef FORMAT
};

int format_from_gguf(uint32_t gguf_type)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (format_infos[i].gguf_type == gguf_type)
            return i;
    return -1;
}
