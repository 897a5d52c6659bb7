#include "safetensors.h"

#include "testlib.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int golden_open(struct golden *g, const char *path)
{
    size_t bytes;
    uint64_t header;
    *g = (struct golden){.data = test_read(path, &bytes)};
    if (!g->data || bytes < sizeof header)
        return -1;
    memcpy(&header, g->data, sizeof header);
    if (header > bytes - sizeof header)
        return -1;
    g->header = json_loadb(g->data + sizeof header, header, 0, NULL);
    g->body = g->data + sizeof header + header;
    return g->header ? 0 : -1;
}

void golden_close(struct golden *g)
{
    json_decref(g->header);
    free(g->data);
}

int golden_find(const struct golden *g, const char *name, struct golden_tensor *out)
{
    const json_t *t = json_object_get(g->header, name), *shape = json_object_get(t, "shape");
    if (!t)
        return 0;
    out->data = g->body + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    out->dims = (int)json_array_size(shape);
    for (int i = 0; i < 4; i++)
        out->dim[i] = i < out->dims ? json_integer_value(json_array_get(shape, (size_t)i)) : 1;
    return 1;
}
