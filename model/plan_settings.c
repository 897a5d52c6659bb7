#include "plan_reader.h"

#include "utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_HEAD_SIZE  4096
#define MOST_MODEL_NAME 200 /* bytes */

/* ---- one setting ---- */

const char *reader_key(const struct reader *r, const char *key, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s.%s", r->p->arch->name, key);
    return buf;
}

/* A setting that is written once for each layer: all must agree. */
static int read_same(struct reader *r, const char *name, int64_t n, int64_t *out)
{
    int32_t *each = calloc((size_t)n, sizeof *each);
    if (!each)
        return err_set(r->err, ERR_NOMEM, "no memory for %s", name);
    int rc = weights_array_ints(r->w, name, each, r->err);
    for (int64_t i = 1; i < n && rc >= 0; i++)
        if (each[i] != each[0])
            rc = err_set(r->err, ERR_UNSUPPORTED,
                         "%s: %s differs from layer to layer (%d in the first, %d in number "
                         "%" PRId64 "), which is not supported yet",
                         weights_path(r->w), name, each[0], each[i], i + 1);
    *out = each[0];
    free(each);
    return rc;
}

static int read_int(struct reader *r, const char *key, int otherwise, int *out)
{
    char name[160];
    int64_t v = otherwise, n = weights_array_size(r->w, reader_key(r, key, name, sizeof name));
    int rc = n ? read_same(r, name, n, &v) : weights_int(r->w, name, &v, r->err);
    if (rc < 0)
        return rc;
    if (rc == 0 && otherwise < 0)
        return err_set(r->err, ERR_FORMAT, "%s: the setting %s is missing", weights_path(r->w),
                       name);
    if (v < 0 || v > INT32_MAX / 4)
        return err_set(r->err, ERR_FORMAT, "%s: %s is %" PRId64 "; 0 to %d was expected",
                       weights_path(r->w), name, v, INT32_MAX / 4);
    *out = (int)v;
    return 0;
}

int reader_float(struct reader *r, const char *key, float otherwise, float *out)
{
    char name[160];
    *out = otherwise;
    int rc = weights_float(r->w, reader_key(r, key, name, sizeof name), out, r->err);
    if (rc < 0)
        return rc;
    if (!isfinite(*out))
        return err_set(r->err, ERR_FORMAT, "%s: %s is not a finite number", weights_path(r->w),
                       name);
    return 0;
}

int reader_ints(struct reader *r, const struct int_row *rows, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = read_int(r, rows[i].key, rows[i].otherwise, rows[i].out);
    return rc;
}

static int require(struct reader *r, const char *key, int found, int least, int most)
{
    if (found >= least && found <= most)
        return 0;
    return err_set(r->err, ERR_FORMAT, "%s: %s.%s is %d; %d to %d was expected", weights_path(r->w),
                   r->p->arch->name, key, found, least, most);
}

/* A head is width / heads values wide where the file does not say. */
static int read_heads(struct reader *r)
{
    struct plan *p = r->p;
    int even = p->width % r->heads ? -1 : p->width / r->heads;
    const struct int_row rows[] = {
        {"attention.head_count_kv", r->heads, &r->kv_heads},
        {"attention.key_length", even, &r->key_size},
        {"attention.value_length", even, &r->value_size},
        {"attention.sliding_window", 0, &r->window},
    };
    int rc = reader_ints(r, rows, sizeof rows / sizeof rows[0]);
    if (rc && even < 0)
        err_prefix(r->err, "%d heads do not divide a width of %d", r->heads, p->width);
    if (rc == 0)
        rc = require(r, "attention.head_count_kv", r->kv_heads, 1, r->heads);
    if (rc == 0)
        rc = require(r, "attention.key_length", r->key_size, 1, MOST_HEAD_SIZE);
    if (rc == 0)
        rc = require(r, "attention.value_length", r->value_size, 1, MOST_HEAD_SIZE);
    if (rc == 0 && r->heads % r->kv_heads)
        rc = err_set(r->err, ERR_FORMAT,
                     "%s: %d heads share %d KV heads; the first must be a multiple of the second",
                     weights_path(r->w), r->heads, r->kv_heads);
    return rc;
}

/* The user's window goes before the file's. */
static int choose_window(struct reader *r)
{
    const struct arch *arch = r->p->arch;
    if (r->options->window < 0)
        return 0;
    if (r->options->window > 0 && !strpbrk(arch->pattern, "WL"))
        return err_set(r->err, ERR_ARG,
                       "%s: --window %d: architecture \"%s\" has no layers that take a window",
                       weights_path(r->w), r->options->window, arch->name);
    r->window = r->options->window;
    return 0;
}

static int check_causal(struct reader *r)
{
    char name[160];
    bool causal = true;
    int rc = weights_bool(r->w, reader_key(r, "attention.causal", name, sizeof name), &causal,
                          r->err);
    if (rc >= 0 && !causal)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: %s is false: a model that sees what follows cannot write text",
                       weights_path(r->w), name);
    return rc < 0 ? rc : 0;
}

int reader_sizes(struct reader *r)
{
    struct plan *p = r->p;
    const struct {
        struct int_row row;
        int most;
    } rows[] = {
        {{"block_count", -1, &p->face.layers}, 4096},
        {{"embedding_length", -1, &p->width}, 1 << 20},
        {{"feed_forward_length", -1, &p->ffn}, INT32_MAX / 4},
        {{"attention.head_count", -1, &r->heads}, 4096},
        {{"context_length", -1, &p->face.trained_context}, INT32_MAX / 4},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == 0; i++) {
        rc = reader_ints(r, &rows[i].row, 1);
        if (rc == 0)
            rc = require(r, rows[i].row.key, *rows[i].row.out, 1, rows[i].most);
    }
    if (rc == 0)
        rc = read_heads(r);
    if (rc == 0)
        rc = choose_window(r);
    return rc ? rc : check_causal(r);
}

int reader_scales(struct reader *r)
{
    struct plan *p = r->p;
    p->embed_scale = p->arch->scale_embedding ? sqrtf((float)p->width) : 1.0f;
    int rc = reader_float(r,
                          p->arch->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                                    : "attention.layer_norm_epsilon",
                          1e-5f, &p->eps);
    if (rc == 0)
        rc = reader_float(r, "logit_scale", 1.0f, &p->logit_scale);
    if (rc == 0)
        rc = reader_float(r, "final_logit_softcapping", 0.0f, &p->logit_softcap);
    return rc;
}

/* ---- names ---- */

static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return n > 0 && n <= MOST_MODEL_NAME && utf8_valid(s, n) == n;
}

/* The name appears in answers and in terminals: where the file's own is nothing for them, the name
 * of the file is used, as far as it is. */
int reader_model_name(struct reader *r)
{
    struct weights_string name = {NULL, 0};
    int rc = weights_string(r->w, "general.name", &name, r->err);
    if (rc < 0)
        return rc;
    const char *path = weights_path(r->w), *slash = strrchr(path, '/');
    if (!is_plain(name.s, name.bytes)) {
        name.s = slash ? slash + 1 : path;
        name.bytes = strlen(name.s);
    }
    if (!is_plain(name.s, name.bytes))
        name = (struct weights_string){"model", 5};
    r->p->face.name = mem_arena_strndup(&r->p->small, name.s, name.bytes);
    return r->p->face.name ? 0 : err_set(r->err, ERR_NOMEM, "no memory for the model's name");
}

int reader_arch(struct reader *r)
{
    struct weights_string name = {"", 0};
    struct weights_shown shown;
    int rc = weights_string(r->w, "general.architecture", &name, r->err);
    if (rc < 0)
        return rc;
    r->p->arch = arch_find(name.s, name.bytes);
    if (!r->p->arch)
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: general.architecture is \"%s\"; supported are: %s", weights_path(r->w),
                       weights_show(name, &shown), arch_names());
    return 0;
}
