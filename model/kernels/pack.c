#include "kernels/ops.h"

/* Where the bits of code (quad j) go in a group's plane of values: `byte` counts row * 4 + k % 4.
 */
static void put_bits(uint8_t *plane, enum values_kind kind, int j, int byte, int code)
{
    uint8_t *high = plane + byte + (kind == VALUES_3 ? 128 : 256);
    switch (kind) {
    case VALUES_8:
        plane[j * QUAD_BYTES + byte] = (uint8_t)code;
        return;
    case VALUES_3:
        *high |= (uint8_t)((code >> 2) << j);
        /* fallthrough */
    case VALUES_2:
        plane[j / 4 * QUAD_BYTES + byte] |= (uint8_t)((code & 3) << 2 * (j % 4));
        return;
    case VALUES_5:
        *high |= (uint8_t)((code >> 4) << j);
        break;
    case VALUES_6:
        high[j / 4 * QUAD_BYTES] |= (uint8_t)((code >> 4) << 2 * (j % 4));
        break;
    default:
        break;
    }
    plane[j % 4 * QUAD_BYTES + byte] |= (uint8_t)((code & 15) << 4 * (j / 4));
}

static void put_values(uint8_t *plane, enum values_kind kind, int row, const struct codes *c)
{
    for (int k = 0; k < 32; k++)
        put_bits(plane, kind, k / 4, row * 4 + k % 4, c->code[k]);
}

static void put_u16(uint8_t *p, int row, uint16_t v)
{
    memcpy(p + 2 * row, &v, sizeof v);
}

static void put_scales(uint8_t *plane, enum scales_kind kind, int block, int row,
                       const struct codes *c)
{
    const struct scales_layout *l = &scales_layouts[kind];
    bool halves = l->flavour == FLAVOUR_HALF || l->flavour == FLAVOUR_HALF_MIN;
    int n = halves ? 2 : 1;
    uint8_t *super = plane + scales_super_offset(kind, block);
    uint8_t *own = plane + scales_offset(kind, block);
    uint8_t *d = l->super_bytes ? super : own;
    put_u16(d, row, c->d);
    if (l->flavour == FLAVOUR_MIN || l->flavour == FLAVOUR_HALF_MIN)
        put_u16(d + 32, row, c->min);
    if (!l->super_bytes)
        return;
    for (int h = 0; h < n; h++) {
        own[16 * h + row] = (uint8_t)c->scale[h];
        if (l->flavour == FLAVOUR_MIN || l->flavour == FLAVOUR_HALF_MIN)
            own[16 * (n + h) + row] = (uint8_t)c->offset[h];
    }
}

static void pack_codes(struct matrix *m, const struct codec *codec, int row, uint8_t *group)
{
    const struct format_info *info = &format_infos[m->format];
    const uint8_t *block = m->source + (size_t)row * m->source_stride;
    uint8_t *values = group + scales_plane_bytes(codec->scales, m->cols / 32);
    int lane = row % MATRIX_GROUP, n = info->block_values / 32;
    struct codes codes[8] = {0};
    for (int b = 0; b < m->cols / 32; b += n, block += info->block_bytes) {
        codec->codes(block, codes);
        for (int i = 0; i < n; i++) {
            put_values(values + (size_t)(b + i) * (size_t)values_bytes[codec->values],
                       codec->values, lane, &codes[i]);
            put_scales(group, codec->scales, b + i, lane, &codes[i]);
        }
    }
}

static void pack_floats(struct matrix *m, int row, uint8_t *group)
{
    size_t bytes = (size_t)format_infos[m->format].block_bytes;
    const uint8_t *source = m->source + (size_t)row * m->source_stride;
    uint8_t *to = group + (size_t)(row % MATRIX_GROUP) * bytes;
    for (int k = 0; k < m->cols; k++)
        memcpy(to + (size_t)k * MATRIX_GROUP * bytes, source + (size_t)k * bytes, bytes);
}

void pack_group(struct matrix *m, int row0)
{
    const struct codec *codec = codecs[m->format];
    uint8_t *group = m->packed + (size_t)(row0 / MATRIX_GROUP) * m->group_bytes;
    memset(group, 0, m->group_bytes); /* rows that do not exist are zeros */
    for (int row = row0; row < row0 + MATRIX_GROUP && row < m->rows; row++)
        if (codec->values == VALUES_FLOAT)
            pack_floats(m, row, group);
        else
            pack_codes(m, codec, row, group);
}
