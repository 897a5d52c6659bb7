#include "kernels/act.h"
#include "kernels/neon.h"

struct rounded {
    int32x4_t q[8];
};

INLINE uint32_t most_bits(const float32x4_t *x)
{
    uint32x4_t most = vdupq_n_u32(0);
    UNROLL for (int i = 0; i < 8; i++)
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(x[i])));
    return vmaxvq_u32(most);
}

INLINE int32_t sum16(const int32x4_t *q)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
}

INLINE struct rounded act_block_round(const float *x, int limit, struct act_block *out)
{
    float32x4_t v[8];
    struct rounded r;
    UNROLL for (int i = 0; i < 8; i++) v[i] = vld1q_f32(x + 4 * i);
    struct act_scale s = act_scale(most_bits(v), limit);
    int32x4_t keep = vdupq_n_s32(s.inverse > 0 ? -1 : 0); /* what is dropped may be NaN */
    UNROLL for (int i = 0; i < 8; i++)
        r.q[i] = vandq_s32(keep, vcvtnq_s32_f32(vmulq_f32(v[i], vdupq_n_f32(s.inverse))));
    act_sums(s.d, sum16(r.q), sum16(r.q + 4), out);
    return r;
}

INLINE void store_bytes(int8_t *to, const int32x4_t *q)
{
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        int16x8_t low = vcombine_s16(vmovn_s32(q[i]), vmovn_s32(q[i + 1]));
        int16x8_t high = vcombine_s16(vmovn_s32(q[i + 2]), vmovn_s32(q[i + 3]));
        vst1q_s8(to + 4 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
}

void act_row8_neon(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block *out = (struct act_block *)records;
        struct rounded r = act_block_round(x, ACT_MAX8, out);
        store_bytes(out->q, r.q);
    }
}

void act_row16_neon(const float *x, int blocks, uint8_t *records, size_t step)
{
    for (int b = 0; b < blocks; b++, x += 32, records += step) {
        struct act_block16 *out = (struct act_block16 *)records;
        struct rounded r = act_block_round(x, ACT_MAX16, &out->high);
        int32x4_t high[8], low[8];
        UNROLL for (int i = 0; i < 8; i++)
        {
            high[i] = vcvtnq_s32_f32(
                vmulq_f32(vcvtq_f32_s32(r.q[i]), vdupq_n_f32(1.0f / ACT_PLANE)));
            low[i] = vmlsq_s32(r.q[i], high[i], vdupq_n_s32(ACT_PLANE));
        }
        store_bytes(out->high.q, high);
        store_bytes(out->low, low);
    }
}
