// Where the accumulators of a BFMMLA tile go: through the activation into packed A of GEMM2 (GEMM1), or with the
// bias into rows of y (GEMM2). An accumulator holds two rows by two columns; two of them are four columns.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "isa/bfmmla_blocks.h"
#include "isa/isa.h"
#include "isa/vec_neon.h"

namespace moelab {
namespace {

constexpr int kPanel = 8;              // columns of a weight panel
constexpr int kStagedPanels = 12;      // whole tiles of two and three panels; see HiddenOutput
constexpr int kChannels = 4;           // channels of a GEMM1 panel
constexpr int kPanelStep = 8 * 4 * 2;  // bytes of a panel per four steps of k

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

// GEMM1. Operands of a panel: gates 0-1, ups 0-1, gates 2-3, ups 2-3.
//
// The accumulators of a few panels are staged in L1 (at most 4.5 KiB) as rows of four gates and four ups, and activated
// together: the constants of the activation, a dozen registers, are then set up once and not after every tile.
class HiddenOutput {
  public:
    explicit HiddenOutput(const Gemm1& g) : g_(g) {}

    void set_block(int64_t row) { block_ = static_cast<uint16_t*>(g_.h) + row * g_.h_k; }

    // c: four operands x Pairs. Panels come in ascending order.
    template <int Pairs, bool Swapped = false>
    inline __attribute__((always_inline)) void panel(const float32x4_t* c, int64_t panel) {
        float* to = staged_ + (panel - first_) * Pairs * 16;
#pragma GCC unroll 6
        for (int p = 0; p < Pairs; p++, to += 16) {
            const TwoRows gate = two_rows<Swapped>(c[p], c[2 * Pairs + p]);
            const TwoRows up = two_rows<Swapped>(c[Pairs + p], c[3 * Pairs + p]);
            vst1q_f32(to, gate.row0);
            vst1q_f32(to + 4, up.row0);
            vst1q_f32(to + 8, gate.row1);
            vst1q_f32(to + 12, up.row1);
        }
    }

    // Between begin and end: at most kStagedPanels panels.
    void begin(int64_t panel) { first_ = panel; }
    template <int Pairs>
    void end(int64_t panel1) {
        switch (g_.act.kind) {
            case MOELAB_SILU: return activate<MOELAB_SILU>(Pairs, panel1);
            case MOELAB_GELU: return activate<MOELAB_GELU>(Pairs, panel1);
            case MOELAB_GELU_TANH: return activate<MOELAB_GELU_TANH>(Pairs, panel1);
            default: return activate<MOELAB_SWIGLUOAI>(Pairs, panel1);
        }
    }

  private:
    template <int Kind>
    __attribute__((noinline)) void activate(int pairs, int64_t panel1) const {
        const Gate<VecNeon, Kind> gate(g_.act);
        uint32x4_t far = vdupq_n_u32(0);
        for_each_pair(pairs, panel1, [&](TwoRows g, TwoRows u) __attribute__((always_inline)) {
            uint32x4_t far0, far1;
            const float32x4_t row0 = gate.near(g.row0, u.row0, &far0), row1 = gate.near(g.row1, u.row1, &far1);
            far = vorrq_u32(far, vorrq_u32(far0, far1));
            return to_bf16(row0, row1);
        });
        if (__builtin_expect(VecNeon::any(far), 0)) activate_far<Kind>(pairs, panel1);
    }

    // Some gate was so far out that the common path does not hold: all of them again, the long way.
    template <int Kind>
    __attribute__((noinline, cold)) void activate_far(int pairs, int64_t panel1) const {
        const Gate<VecNeon, Kind> gate(g_.act);
        for_each_pair(pairs, panel1, [&](TwoRows g, TwoRows u) __attribute__((always_inline)) {
            return to_bf16(gate(g.row0, u.row0), gate(g.row1, u.row1));
        });
    }

    template <class Function>
    inline __attribute__((always_inline)) void for_each_pair(int pairs, int64_t panel1, const Function& f) const {
        const float* from = staged_;
        uint16_t* to = block_ + first_ * pairs * 8;
        for (int64_t panel = first_; panel < panel1; panel++) {
            TwoRows bias = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};  // of the gates, of the ups
            if (g_.bias) {
                bias = two_rows<false>(vld1q_f32(g_.bias + panel * kPanel), vld1q_f32(g_.bias + panel * kPanel + 4));
            }
            uint16_t* const start = to;
            for (int p = 0; p < pairs; p++, from += 16, to += 8) {
                const TwoRows gate = {vaddq_f32(vld1q_f32(from), bias.row0), vaddq_f32(vld1q_f32(from + 8), bias.row0)};
                const TwoRows up = {vaddq_f32(vld1q_f32(from + 4), bias.row1),
                                    vaddq_f32(vld1q_f32(from + 12), bias.row1)};
                vst1q_u16(to, f(gate, up));
            }
            const int64_t valid = g_.channels - panel * kChannels;
            if (__builtin_expect(valid < kChannels, 0)) {
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
    uint16_t* block_ = nullptr;
    int64_t first_ = 0;
    alignas(64) float staged_[kStagedPanels * kMaxPairs * 16];
};

// GEMM2.
class RowsOutput {
  public:
    explicit RowsOutput(const Gemm2& g) : bias_(g.bias), y_(g.y), stride_(g.y_stride) {}

    void set_block(int64_t row) { block_ = y_ + row * stride_; }

    template <int Pairs, bool Swapped = false>
    inline __attribute__((always_inline)) void panel(const float32x4_t* c, int64_t panel) const {
        float32x4_t bias0 = vdupq_n_f32(0.0f), bias1 = bias0;
        if (bias_) {
            bias0 = vld1q_f32(bias_ + panel * kPanel);
            bias1 = vld1q_f32(bias_ + panel * kPanel + 4);
        }
        float* to = block_ + panel * kPanel;
#pragma GCC unroll 6
        for (int p = 0; p < Pairs; p++, to += 2 * stride_) {
            const TwoRows left = two_rows<Swapped>(c[p], c[Pairs + p]);
            const TwoRows right = two_rows<Swapped>(c[2 * Pairs + p], c[3 * Pairs + p]);
            vst1q_f32(to, vaddq_f32(left.row0, bias0));
            vst1q_f32(to + 4, vaddq_f32(right.row0, bias1));
            vst1q_f32(to + stride_, vaddq_f32(left.row1, bias0));
            vst1q_f32(to + stride_ + 4, vaddq_f32(right.row1, bias1));
        }
    }

    void begin(int64_t) {}
    template <int Pairs>
    void end(int64_t) {}

  private:
    const float* bias_;
    float* y_;
    int64_t stride_;
    float* block_ = nullptr;
};

}  // namespace
}  // namespace moelab
