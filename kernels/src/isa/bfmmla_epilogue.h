// GEMM1's epilogue of the BFMMLA kernels. A sum of BFMMLA is two rows by two columns, four floats; the NEON kernel
// leaves them in registers and stages them, the SVE kernel leaves segments of 128 bits in memory, and both end here.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "isa/isa.h"
#include "isa/vec_neon.h"

namespace moelab {
namespace {

// Four columns of two rows, from accumulators of columns 0-1 and 2-3. Swapped: the accumulators hold their two
// columns as rows (the operands of BFMMLA were exchanged).
struct TwoRows {
    float32x4_t row0, row1;
};
template <bool Swapped>
MOELAB_INLINE TwoRows two_rows(float32x4_t left, float32x4_t right) {
    if constexpr (Swapped) return {vuzp1q_f32(left, right), vuzp2q_f32(left, right)};
    const float64x2_t l = vreinterpretq_f64_f32(left), r = vreinterpretq_f64_f32(right);
    return {vreinterpretq_f32_f64(vzip1q_f64(l, r)), vreinterpretq_f32_f64(vzip2q_f64(l, r))};
}

// Gates and ups of four channels, two rows.
struct GatesAndUps {
    TwoRows gate, up;
};

// GEMM1's epilogue over a block of rows whose sums lie in L1: bias and activation, into packed A of GEMM2. A quad is
// four channels, eight columns of the weights: gates 0-1, ups 0-1, gates 2-3, ups 2-3.
//
// What Sums provides: `data`, the first quad's first pair of rows; `next()`, floats from one pair to the next;
// `behind(place, pairs, quad)`, the start of the next quad, given the place after a quad's last pair; `read(place)`.
//
// Many quads are activated together: the constants of the activation, a dozen registers, are then set up once and not
// after every tile.
template <class Sums>
class Epilogue {
  public:
    Epilogue(const Gemm1& g, uint16_t* block) : g_(g), block_(block) {}

    void run(Sums sums, int pairs, int64_t quad0, int64_t quad1) const {
        switch (g_.act.kind) {
            case MOELAB_SILU: return activate<MOELAB_SILU>(sums, pairs, quad0, quad1);
            case MOELAB_GELU: return activate<MOELAB_GELU>(sums, pairs, quad0, quad1);
            case MOELAB_GELU_TANH: return activate<MOELAB_GELU_TANH>(sums, pairs, quad0, quad1);
            default: return activate<MOELAB_SWIGLUOAI>(sums, pairs, quad0, quad1);
        }
    }

  private:
    template <int Kind>
    __attribute__((noinline)) void activate(Sums sums, int pairs, int64_t quad0, int64_t quad1) const {
        const Gate<VecNeon, Kind> gate(g_.act);
        uint32x4_t far = vdupq_n_u32(0);
        for_each_pair(sums, pairs, quad0, quad1, [&](TwoRows g, TwoRows u) __attribute__((always_inline)) {
            uint32x4_t far0, far1;
            const float32x4_t row0 = gate.near(g.row0, u.row0, &far0), row1 = gate.near(g.row1, u.row1, &far1);
            far = vorrq_u32(far, vorrq_u32(far0, far1));
            return to_bf16(row0, row1);
        });
        if (__builtin_expect(VecNeon::any(far), 0)) activate_far<Kind>(sums, pairs, quad0, quad1);
    }

    // Some gate was so far out that the common path does not hold: all of them again, the long way.
    template <int Kind>
    __attribute__((noinline, cold)) void activate_far(Sums sums, int pairs, int64_t quad0, int64_t quad1) const {
        const Gate<VecNeon, Kind> gate(g_.act);
        for_each_pair(sums, pairs, quad0, quad1, [&](TwoRows g, TwoRows u) __attribute__((always_inline)) {
            return to_bf16(gate(g.row0, u.row0), gate(g.row1, u.row1));
        });
    }

    template <class Function>
    inline __attribute__((always_inline)) void for_each_pair(Sums sums, int pairs, int64_t quad0, int64_t quad1,
                                                             const Function& f) const {
        uint16_t* to = block_ + quad0 * pairs * 8;
        const float* from = sums.data;
        for (int64_t quad = quad0; quad < quad1; quad++) {
            TwoRows bias = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};  // of the gates, of the ups
            if (g_.bias) bias = two_rows<false>(vld1q_f32(g_.bias + quad * 8), vld1q_f32(g_.bias + quad * 8 + 4));
            uint16_t* const start = to;
            for (int p = 0; p < pairs; p++, from += sums.next(), to += 8) {
                const GatesAndUps both = Sums::read(from);
                vst1q_u16(to, f({vaddq_f32(both.gate.row0, bias.row0), vaddq_f32(both.gate.row1, bias.row0)},
                                {vaddq_f32(both.up.row0, bias.row1), vaddq_f32(both.up.row1, bias.row1)}));
            }
            from = sums.behind(from, pairs, quad);
            const int64_t valid = g_.channels - quad * 4;
            if (__builtin_expect(valid < 4, 0)) {
                const uint16x8_t mask = valid_channels(valid);
                for (uint16_t* at = start; at < to; at += 8) vst1q_u16(at, vandq_u16(vld1q_u16(at), mask));
            }
        }
    }

    static uint16x8_t valid_channels(int64_t valid) {
        uint16_t lanes[8] = {};
        for (int i = 0; i < valid; i++) lanes[i] = lanes[i + 4] = 0xffff;
        return vld1q_u16(lanes);
    }

    const Gemm1& g_;
    uint16_t* block_;
};

}  // namespace
}  // namespace moelab
