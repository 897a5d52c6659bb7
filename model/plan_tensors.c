#include "plan_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const struct tensor *reader_tensor(struct reader *r, const char *name)
{
    const struct tensor *t = weights_tensor(r->w, name);
    if (t)
        r->used[t - weights_tensor_at(r->w, 0)] = true;
    return t;
}

static int wrong_shape(struct reader *r, const struct tensor *t, int64_t cols, int64_t rows)
{
    char found[96];
    int n = 0;
    for (int i = 0; i < t->dims; i++)
        n += snprintf(found + n, sizeof found - (size_t)n, "%s%" PRId64, i ? ", " : "", t->dim[i]);
    return err_set(r->err, ERR_FORMAT,
                   "%s: tensor \"%s\" has shape [%s]; [%" PRId64 ", %" PRId64 "] was expected",
                   weights_path(r->w), t->name, found, cols, rows);
}

int reader_missing(struct reader *r, const char *name)
{
    return err_set(r->err, ERR_FORMAT,
                   "%s: the tensor \"%s\", which architecture \"%s\" needs, is missing",
                   weights_path(r->w), name, r->p->arch->name);
}

int reader_vector(struct reader *r, const char *name, int n, const float **out)
{
    const struct tensor *t = reader_tensor(r, name);
    *out = NULL;
    if (!t)
        return 0;
    if (t->dim[0] != n || t->dim[1] != 1 || t->dim[2] != 1 || t->dim[3] != 1)
        return wrong_shape(r, t, n, 1);
    if (!format_known(t->format))
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has the number format %s, which is not supported",
                       weights_path(r->w), name, format_infos[t->format].name);
    if (t->format == FORMAT_F32 && (uintptr_t)t->data % sizeof(float) == 0) {
        *out = t->data;
        r->vector_bytes += t->bytes;
        return 0;
    }
    float *copy = mem_arena_alloc(&r->p->small, (size_t)n * sizeof *copy);
    if (!copy)
        return err_set(r->err, ERR_NOMEM, "no memory for tensor \"%s\"", name);
    format_unpack(t->format, t->data, n, copy);
    *out = copy;
    return 0;
}

int reader_matrix(struct reader *r, const struct view *v, struct matrix *out)
{
    const struct tensor *t = reader_tensor(r, v->name);
    if (!t)
        return reader_missing(r, v->name);
    if (t->dim[0] != v->cols || t->dim[1] != v->total || t->dim[2] != 1 || t->dim[3] != 1)
        return wrong_shape(r, t, v->cols, v->total);
    size_t row_bytes = t->bytes / (size_t)t->dim[1];
    const uint8_t *rows = (const uint8_t *)t->data + row_bytes * (size_t)v->first;
    int rc = matrix_init(out, t->format, v->rows, v->cols, rows, r->p->how, r->err);
    if (rc)
        err_prefix(r->err, "%s: tensor \"%s\"", weights_path(r->w), v->name);
    return rc;
}

const char *reader_layer_name(char *buf, size_t bytes, int layer, const char *what,
                              const char *kind)
{
    snprintf(buf, bytes, "blk.%d.%s.%s", layer, what, kind);
    return buf;
}

int reader_linear(struct reader *r, int layer, const char *what, int cols, int rows,
                  struct linear *out)
{
    char name[96];
    const struct view v = {reader_layer_name(name, sizeof name, layer, what, "weight"), cols, rows,
                           0, rows};
    int rc = reader_matrix(r, &v, &out->matrix);
    if (rc == 0)
        rc = reader_vector(r, reader_layer_name(name, sizeof name, layer, what, "bias"), rows,
                           &out->bias);
    return rc;
}

int reader_parts(struct reader *r, int layer, const char *fused, int cols, const struct part *parts,
                 int n)
{
    char name[96];
    int total = 0, rc = 0;
    for (int i = 0; i < n; i++)
        total += parts[i].rows;
    reader_layer_name(name, sizeof name, layer, fused, "weight");
    bool apart = weights_tensor(r->w, reader_layer_name(name, sizeof name, layer, parts[0].own,
                                                        "weight")) != NULL;
    reader_layer_name(name, sizeof name, layer, fused, "weight");
    const struct tensor *t = weights_tensor(r->w, name);
    if (!t || (apart && t->dim[1] != total)) {
        for (int i = 0; i < n && rc == 0; i++)
            rc = reader_linear(r, layer, parts[i].own, cols, parts[i].rows, parts[i].out);
        return rc;
    }
    char bias_name[96];
    const float *bias;
    rc = reader_vector(r, reader_layer_name(bias_name, sizeof bias_name, layer, fused, "bias"),
                       total, &bias);
    for (int i = 0, first = 0; i < n && rc == 0; first += parts[i++].rows) {
        const struct view v = {name, cols, parts[i].rows, first, total};
        rc = reader_matrix(r, &v, &parts[i].out->matrix);
        parts[i].out->bias = bias ? bias + first : NULL;
    }
    return rc;
}

int reader_norm(struct reader *r, int layer, const char *what, bool required, struct norm *out)
{
    char name[96];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", what);
    else
        reader_layer_name(name, sizeof name, layer, what, "weight");
    int rc = reader_vector(r, name, r->p->width, &out->weight);
    if (rc == 0 && required && !out->weight)
        return reader_missing(r, name);
    if (rc || r->p->arch->norm == NORM_RMS) /* has no bias: one that is there is refused */
        return rc;
    if (layer < 0)
        snprintf(name, sizeof name, "%s.bias", what);
    else
        reader_layer_name(name, sizeof name, layer, what, "bias");
    return reader_vector(r, name, r->p->width, &out->bias);
}
