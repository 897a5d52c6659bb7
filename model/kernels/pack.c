#include "kernels/ops.h"

/* A quad of one row is four codes in a word; shifts and masks keep to their bytes. */
static void put_word(uint8_t *plane, int vector, int row, uint32_t word)
{
    memcpy(plane + vector * QUAD_BYTES + row * 4, &word, sizeof word);
}

/* Bits [from, from + 2) of every code. */
static void put_pairs(uint8_t *plane, int row, const uint32_t *quads, int from)
{
    for (int v = 0; v < 2; v++) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++)
            word |= (quads[4 * v + j] >> from & 0x03030303) << 2 * j;
        put_word(plane, v, row, word);
    }
}

static void put_ones(uint8_t *plane, int row, const uint32_t *quads, int from)
{
    uint32_t word = 0;
    for (int j = 0; j < QUADS; j++)
        word |= (quads[j] >> from & 0x01010101) << j;
    put_word(plane, 0, row, word);
}

static void put_nibbles(uint8_t *plane, int row, const uint32_t *quads)
{
    for (int v = 0; v < 4; v++)
        put_word(plane, v, row, (quads[v] & 0x0f0f0f0f) | (quads[v + 4] & 0x0f0f0f0f) << 4);
}

static void put_values(uint8_t *plane, enum values_kind kind, int row, const struct codes *c)
{
    uint32_t quads[QUADS];
    memcpy(quads, c->code, sizeof quads);
    if (kind == VALUES_8) {
        for (int j = 0; j < QUADS; j++)
            put_word(plane, j, row, quads[j]);
    } else if (kind == VALUES_2 || kind == VALUES_3) {
        put_pairs(plane, row, quads, 0);
        if (kind == VALUES_3)
            put_ones(plane + 2 * QUAD_BYTES, row, quads, 2);
    } else {
        put_nibbles(plane, row, quads);
        if (kind == VALUES_5)
            put_ones(plane + 4 * QUAD_BYTES, row, quads, 4);
        if (kind == VALUES_6)
            put_pairs(plane + 4 * QUAD_BYTES, row, quads, 4);
    }
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

/* Values [k0, k1) of one row. */
static void pack_floats(const struct matrix *m, int row, int k0, int k1, uint8_t *group)
{
    bool two = format_infos[m->format].block_bytes == 2;
    size_t bytes = two ? 2 : 4;
    const uint8_t *from = m->source + (size_t)row * m->source_stride;
    uint8_t *to = group + (size_t)(row % MATRIX_GROUP) * bytes;
    for (size_t k = (size_t)k0; k < (size_t)k1; k++)
        if (two)
            memcpy(to + k * MATRIX_GROUP * 2, from + k * 2, 2);
        else
            memcpy(to + k * MATRIX_GROUP * 4, from + k * 4, 4);
}

static void pack_float_group(const struct matrix *m, int row0, int row1, uint8_t *group)
{
    enum { PIECE = 64 }; /* 16 rows of it stay in the first level while they are interleaved */
    for (int k = 0; k < m->cols; k += PIECE)
        for (int row = row0; row < row1; row++)
            pack_floats(m, row, k, k + PIECE < m->cols ? k + PIECE : m->cols, group);
}

void pack_group(struct matrix *m, int row0)
{
    const struct codec *codec = codecs[m->format];
    uint8_t *group = m->packed + (size_t)(row0 / MATRIX_GROUP) * m->group_bytes;
    int row1 = row0 + MATRIX_GROUP < m->rows ? row0 + MATRIX_GROUP : m->rows;
    if (row1 - row0 < MATRIX_GROUP)
        memset(group, 0, m->group_bytes); /* rows that do not exist are zeros */
    if (codec->values == VALUES_FLOAT)
        pack_float_group(m, row0, row1, group);
    for (int row = row0; row < row1 && codec->values != VALUES_FLOAT; row++)
        pack_codes(m, codec, row, group);
}
