// The trait list of activation.h on four NEON lanes, and the BF16 conversions of the Arm kernels.
#pragma once

#include <arm_neon.h>

#include "isa/activation.h"

namespace moelab {
namespace {

// The upper halves are x rounded to BF16, to nearest even; the lower halves are what is left. A NaN stays one.
MOELAB_INLINE uint32x4_t round_upper(float32x4_t x) {
    const uint32x4_t u = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    return vbslq_u32(vceqq_f32(x, x), rounded, quiet);
}

MOELAB_INLINE float32x4_t round_to_bf16(float32x4_t x) {
    return vreinterpretq_f32_u32(vandq_u32(round_upper(x), vdupq_n_u32(0xffff0000)));
}

// Eight BF16 from two float vectors. Cores without BFCVT get the same bits in integer steps.
MOELAB_INLINE uint16x8_t to_bf16(float32x4_t low, float32x4_t high) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
#else
    return vuzp2q_u16(vreinterpretq_u16_u32(round_upper(low)), vreinterpretq_u16_u32(round_upper(high)));
#endif
}

// BF16 is the upper half of an fp32.
MOELAB_INLINE float32x4_t widen_low(uint16x8_t x) {
    return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16));
}
MOELAB_INLINE float32x4_t widen_high(uint16x8_t x) {
    return vreinterpretq_f32_u32(vshll_high_n_u16(x, 16));
}

struct VecNeon {
    using F = float32x4_t;
    using M = uint32x4_t;
    static constexpr int width = 4;

    MOELAB_INLINE F set(float x) { return vdupq_n_f32(x); }
    MOELAB_INLINE F load(const float* p) { return vld1q_f32(p); }
    MOELAB_INLINE F load_n(const float* p, int n) {
        float lanes[4] = {};
        for (int i = 0; i < n; i++) lanes[i] = p[i];
        return vld1q_f32(lanes);
    }
    MOELAB_INLINE void store_bf16(uint16_t* p, F x) { vst1_u16(p, vget_low_u16(to_bf16(x, x))); }
    MOELAB_INLINE void store_bf16_n(uint16_t* p, F x, int n) {
        uint16_t lanes[4];
        store_bf16(lanes, x);
        for (int i = 0; i < n; i++) p[i] = lanes[i];
    }

    MOELAB_INLINE F add(F a, F b) { return vaddq_f32(a, b); }
    MOELAB_INLINE F sub(F a, F b) { return vsubq_f32(a, b); }
    MOELAB_INLINE F mul(F a, F b) { return vmulq_f32(a, b); }
    MOELAB_INLINE F div(F a, F b) { return vdivq_f32(a, b); }
    MOELAB_INLINE F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
    MOELAB_INLINE F fnma(F a, F b, F c) { return vfmsq_f32(c, a, b); }
    // FMIN and FMAX return NaN when either operand is one.
    MOELAB_INLINE F min(F limit, F x) { return vminq_f32(limit, x); }
    MOELAB_INLINE F max(F limit, F x) { return vmaxq_f32(limit, x); }
    MOELAB_INLINE F abs(F x) { return vabsq_f32(x); }
    MOELAB_INLINE M less(F a, F b) { return vcltq_f32(a, b); }
    MOELAB_INLINE bool any(M m) { return vmaxvq_u32(m) != 0; }
    MOELAB_INLINE F select(M m, F if_true, F if_false) { return vbslq_f32(m, if_true, if_false); }
    MOELAB_INLINE F shift_add(F p, F z) {
        return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), vshlq_n_u32(vreinterpretq_u32_f32(z), 23)));
    }
};

}  // namespace
}  // namespace moelab
