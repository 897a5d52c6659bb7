#include "plan_reader.h"

#include <string.h>

/* How keys and values are kept: one type for all groups of layers, or one for each. */

const char *const kv_group_names[2] = {"full", "window"};

static int refuse(struct reader *r, const char *what, const char *word, size_t bytes)
{
    return err_set(r->err, ERR_ARG,
                   "--kv %s: %s \"%.*s\"; expected is a type (f16, bf16, f32 or q8_0), or "
                   "full=TYPE,window=TYPE, or one of these two",
                   r->options->kv, what, (int)bytes, word);
}

static int type_of(const char *word, size_t bytes)
{
    char name[16] = "";
    if (bytes < sizeof name)
        memcpy(name, word, bytes);
    return kv_type_from_name(name);
}

static int group_of(const char *word, size_t bytes)
{
    for (int g = 0; g < 2; g++)
        if (strlen(kv_group_names[g]) == bytes && !memcmp(kv_group_names[g], word, bytes))
            return g;
    return -1;
}

/* "full=q8_0" */
static int read_choice(struct reader *r, const char *item, size_t bytes, bool seen[2])
{
    const char *equals = memchr(item, '=', bytes);
    if (!equals && type_of(item, bytes) >= 0)
        return refuse(r, "no group is named before", item, bytes);
    if (!equals)
        return refuse(r, "there is no type", item, bytes);
    size_t name_bytes = (size_t)(equals - item), type_bytes = bytes - name_bytes - 1;
    int g = group_of(item, name_bytes), type = type_of(equals + 1, type_bytes);
    if (g < 0)
        return refuse(r, "there is no group", item, name_bytes);
    if (type < 0)
        return refuse(r, "there is no type", equals + 1, type_bytes);
    if (seen[g])
        return refuse(r, "two types for", item, name_bytes);
    seen[g] = true;
    r->kv_types[g] = (enum kv_type)type;
    return 0;
}

int reader_kv_types(struct reader *r)
{
    const char *text = r->options->kv ? r->options->kv : kv_type_name(KV_F16);
    int all = kv_type_from_name(text), rc = 0;
    bool seen[2] = {false, false};
    r->kv_types[0] = r->kv_types[1] = all < 0 ? KV_F16 : (enum kv_type)all;
    if (all >= 0)
        return 0;
    for (const char *item = text; item && rc == 0;) {
        size_t bytes = strcspn(item, ",");
        rc = read_choice(r, item, bytes, seen);
        item = item[bytes] ? item + bytes + 1 : NULL;
    }
    return rc;
}
