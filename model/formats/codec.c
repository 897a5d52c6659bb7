#include "formats/codec.h"

#include "matrix.h"

#include <assert.h>

extern const struct codec codec_f32, codec_f16, codec_bf16, codec_q4_0, codec_q4_1, codec_q5_0,
    codec_q5_1, codec_q8_0, codec_q2_k, codec_q3_k, codec_q4_k, codec_q5_k, codec_q6_k,
    codec_iq4_nl, codec_iq4_xs, codec_mxfp4, codec_tq1_0, codec_tq2_0;

const struct codec *const codecs[FORMAT_COUNT] = {
    [FORMAT_F32] = &codec_f32,     [FORMAT_F16] = &codec_f16,       [FORMAT_BF16] = &codec_bf16,
    [FORMAT_Q4_0] = &codec_q4_0,   [FORMAT_Q4_1] = &codec_q4_1,     [FORMAT_Q5_0] = &codec_q5_0,
    [FORMAT_Q5_1] = &codec_q5_1,   [FORMAT_Q8_0] = &codec_q8_0,     [FORMAT_Q2_K] = &codec_q2_k,
    [FORMAT_Q3_K] = &codec_q3_k,   [FORMAT_Q4_K] = &codec_q4_k,     [FORMAT_Q5_K] = &codec_q5_k,
    [FORMAT_Q6_K] = &codec_q6_k,   [FORMAT_IQ4_NL] = &codec_iq4_nl, [FORMAT_IQ4_XS] = &codec_iq4_xs,
    [FORMAT_MXFP4] = &codec_mxfp4, [FORMAT_TQ1_0] = &codec_tq1_0,   [FORMAT_TQ2_0] = &codec_tq2_0,
};

void codes_values(const struct codec *codec, const struct codes *in, struct values *out)
{
    *out = (struct values){.d = f16_to_float(in->d), .s = {1, 1}, .q = {0}};
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(codec->table ? codec->table[in->code[i]] : in->code[i] - codec->bias);
    float min = f16_to_float(in->min);
    switch (codec->scales) {
    case SCALES_BF16:
        out->d = bf16_to_float(in->d);
        break;
    case SCALES_F16_MIN:
        out->m[0] = out->m[1] = min;
        break;
    case SCALES_K:
    case SCALES_K_MIN:
        out->d *= (float)in->scale[0];
        out->m[0] = out->m[1] = -(min * (float)in->offset[0]);
        break;
    case SCALES_K16:
    case SCALES_K16_MIN:
        for (int h = 0; h < 2; h++) {
            out->s[h] = (float)in->scale[h];
            out->m[h] = -(min * (float)in->offset[h]);
        }
        break;
    case SCALES_F16:
    case SCALES_NONE:
        break;
    }
}

bool format_known(enum format_id format)
{
    return codecs[format] != NULL;
}

static void unpack_codes(const struct codec *codec, const uint8_t *block, int blocks, float *out)
{
    struct codes codes[8] = {0};
    struct values v;
    codec->codes(block, codes);
    for (int b = 0; b < blocks; b++) {
        codes_values(codec, &codes[b], &v);
        for (int i = 0; i < 32; i++)
            out[b * 32 + i] = v.d * v.s[i / 16] * (float)v.q[i] + v.m[i / 16];
    }
}

void format_unpack(enum format_id format, const void *row, int n, float *out)
{
    const struct codec *codec = codecs[format];
    const struct format_info *info = &format_infos[format];
    assert(codec && n % info->block_values == 0);
    if (codec->unpack) {
        codec->unpack(row, n, out);
        return;
    }
    const uint8_t *block = row;
    for (int i = 0; i < n; i += info->block_values, block += info->block_bytes)
        unpack_codes(codec, block, info->block_values / 32, out + i);
}
