#include "kernels/act.h"
#include "kernels/ops.h"
#include "mem.h"

#include <math.h>

/* Nearest integer, ties to even; |x| < 2^22. */
static int32_t round_even(float x)
{
    return (int32_t)(x + 12582912.0f - 12582912.0f);
}

static void act_block_round(const float *x, int limit, int32_t *q, struct act_block *out)
{
    uint32_t bits[32], most = 0;
    int32_t sum[2] = {0, 0};
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++)
        most = (bits[i] & 0x7fffffff) > most ? bits[i] & 0x7fffffff : most;
    struct act_scale s = act_scale(most, limit);
    for (int i = 0; i < 32; i++) {
        q[i] = s.inverse > 0 ? round_even(x[i] * s.inverse) : 0;
        sum[i / 16] += q[i];
    }
    act_sums(s.d, sum[0], sum[1], out);
}

static void act_row8_c(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        int32_t q[32];
        struct act_block *out = (struct act_block *)records;
        act_block_round(x, ACT_MAX8, q, out);
        for (int i = 0; i < 32; i++)
            out->q[i] = (int8_t)q[i];
    }
}

static void act_row16_c(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        int32_t q[32];
        struct act_block16 *out = (struct act_block16 *)records;
        act_block_round(x, ACT_MAX16, q, &out->high);
        for (int i = 0; i < 32; i++) {
            int32_t high = round_even((float)q[i] * (1.0f / ACT_PLANE)); /* never a tie */
            out->high.q[i] = (int8_t)high;
            out->low[i] = (int8_t)(q[i] - high * ACT_PLANE);
        }
    }
}

const struct matrix_ops matrix_ops_c = {
    .tile = {[ACT_INT8] = 8, [ACT_INT16] = 8, [ACT_TILED] = 8},
    .act_row = {act_row8_c, act_row16_c},
};

size_t ref_scratch_bytes(int cols)
{
    size_t blocks = (size_t)(cols + 31) / 32;
    return blocks * (sizeof(struct values) + 32 * sizeof(float));
}

static void row_values(const struct matrix *m, int row, struct values *out)
{
    const struct codec *codec = codecs[m->format];
    const struct format_info *info = &format_infos[m->format];
    const uint8_t *block = m->source + (size_t)row * m->source_stride;
    struct codes codes[8] = {0};
    for (int k = 0; k < m->cols; k += info->block_values, block += info->block_bytes) {
        codec->codes(block, codes);
        for (int i = 0; i < info->block_values / 32; i++)
            codes_values(codec, &codes[i], out++);
    }
}

static int32_t dot16(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One step of the chain; see matrix.h. `low` is NULL for 8-bit activations. */
static float step(enum flavour flavour, const struct values *w, const struct act_block *a,
                  const int8_t *low, float acc)
{
    int32_t i[2];
    for (int h = 0; h < 2; h++) {
        i[h] = dot16(w->q + 16 * h, a->q + 16 * h);
        if (low)
            i[h] = i[h] * ACT_PLANE + dot16(w->q + 16 * h, low + 16 * h);
    }
    float p = flavour == FLAVOUR_PLAIN || flavour == FLAVOUR_MIN
                  ? (float)(i[0] + i[1])
                  : fmaf((float)i[1], w->s[1], (float)i[0] * w->s[0]);
    acc = fmaf(p, w->d * a->d, acc);
    if (flavour == FLAVOUR_MIN)
        acc = fmaf(w->m[0], a->dsum, acc);
    if (flavour == FLAVOUR_HALF_MIN)
        acc = fmaf(w->m[1], a->dsum16[1], fmaf(w->m[0], a->dsum16[0], acc));
    return acc;
}

static float dot_rounded(const struct matrix *m, const struct values *w, const uint8_t *record,
                         size_t bytes)
{
    enum flavour flavour = scales_layouts[codecs[m->format]->scales].flavour;
    float acc = 0;
    for (int b = 0; b < m->cols / 32; b++, record += bytes) {
        const struct act_block16 *a = (const struct act_block16 *)record;
        acc = step(flavour, &w[b], &a->high, m->how.mode == MATRIX_INT16 ? a->low : NULL, acc);
    }
    return acc;
}

static float dot_exact(int cols, const float *w, const float *x, int step_floats)
{
    float acc = 0;
    for (int k = 0; k < cols; k++)
        acc = fmaf(w[k], x[(size_t)k * (size_t)step_floats], acc);
    return acc;
}

/* Fills column `row` of out for one tile. */
static void mul_tile(const struct matrix *m, const struct matrix_job *job, int row, int t0, int w)
{
    struct act_shape s = matrix_act_shape(m, job->tokens);
    size_t record = act_record_bytes(s.kind), blocks = (size_t)m->cols / 32;
    for (int t = 0; t < w; t++) {
        float *out = &job->out[(size_t)(t0 + t) * job->out_stride + (size_t)(row - job->out_row)];
        if (s.kind == ACT_TILED)
            *out = dot_exact(m->cols, job->scratch,
                             (const float *)job->act + (size_t)t0 * (size_t)m->cols + t, w);
        else
            *out = dot_rounded(m, job->scratch,
                               (const uint8_t *)job->act +
                                   ((size_t)t0 * blocks + (size_t)t) * record,
                               record * (size_t)w);
    }
}

void ref_mul(const struct matrix *m, const struct matrix_job *job, int row0, int row1)
{
    struct act_shape s = matrix_act_shape(m, job->tokens);
    int width = tile_width(&s, &matrix_ops_c);
    for (int row = row0; row < row1; row++) {
        if (s.kind == ACT_TILED)
            matrix_row(m, row, job->scratch);
        else
            row_values(m, row, job->scratch);
        for (int t = job->t0; t < job->t1; t += width)
            mul_tile(m, job, row, t, job->t1 - t < width ? job->t1 - t : width);
    }
}
