// Where the accumulators of a BFMMLA tile go: through the activation into packed A of GEMM2 (GEMM1), or with the
// bias into rows of y (GEMM2). An accumulator holds two rows by two columns; two of them are four columns.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "isa/isa.h"
#include "isa/vec_neon.h"

namespace moelab {
namespace {

constexpr int kPanel = 8;              // columns of a weight panel
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

MOELAB_INLINE float32x4_t two_twice(const float* p) {
    return vreinterpretq_f32_f64(vld1q_dup_f64(reinterpret_cast<const double*>(p)));
}

// GEMM1. Operands of a panel: gates 0-1, ups 0-1, gates 2-3, ups 2-3.
template <class GateFunction>
class HiddenOutput {
  public:
    HiddenOutput(const Gemm1& g, const GateFunction& gate) : gate_(gate), bias_(g.bias), channels_(g.channels) {
        h_ = static_cast<char*>(g.h);
        row_bytes_ = 2 * g.h_k;
    }

    void set_block(int64_t row) { block_ = h_ + row * row_bytes_; }

    // c: four operands x Pairs.
    template <int Pairs, bool Swapped = false>
    inline __attribute__((always_inline)) void panel(const float32x4_t* c, int64_t panel) const {
        float32x4_t bias_gate = vdupq_n_f32(0.0f), bias_up = bias_gate;
        if (bias_) {
            const float32x4_t left = vld1q_f32(bias_ + panel * kPanel), right = vld1q_f32(bias_ + panel * kPanel + 4);
            const TwoRows both = two_rows<false>(left, right);
            bias_gate = both.row0;
            bias_up = both.row1;
        }
        uint16x8_t out[Pairs];
#pragma GCC unroll 6
        for (int p = 0; p < Pairs; p++) {
            const TwoRows gate = two_rows<Swapped>(c[p], c[2 * Pairs + p]);
            const TwoRows up = two_rows<Swapped>(c[Pairs + p], c[3 * Pairs + p]);
            out[p] = to_bf16(gate_(vaddq_f32(gate.row0, bias_gate), vaddq_f32(up.row0, bias_up)),
                             gate_(vaddq_f32(gate.row1, bias_gate), vaddq_f32(up.row1, bias_up)));
        }
        uint16_t* to = reinterpret_cast<uint16_t*>(block_ + panel * Pairs * 16);
        const int64_t valid = channels_ - panel * kChannels;
        if (__builtin_expect(valid < kChannels, 0)) {
            const uint16x8_t mask = valid_channels(valid);
            for (int p = 0; p < Pairs; p++) out[p] = vandq_u16(out[p], mask);
        }
#pragma GCC unroll 6
        for (int p = 0; p < Pairs; p++) vst1q_u16(to + 8 * p, out[p]);
    }

    // c: two operands x Pairs, the first or second half of a panel: two channels.
    template <int Pairs>
    inline __attribute__((always_inline)) void half(const float32x4_t* c, int64_t panel, int which) const {
        float32x4_t bias_gate = vdupq_n_f32(0.0f), bias_up = bias_gate;
        if (bias_) {
            bias_gate = two_twice(bias_ + panel * kPanel + 4 * which);
            bias_up = two_twice(bias_ + panel * kPanel + 4 * which + 2);
        }
        const int64_t valid = channels_ - panel * kChannels - 2 * which;
        uint32_t* to = reinterpret_cast<uint32_t*>(block_ + panel * Pairs * 16) + which;
        // Two pairs of rows at a time: eight channels fill the conversion.
        static_assert(Pairs % 2 == 0, "half panels belong to 8 x 12");
#pragma GCC unroll 3
        for (int p = 0; p < Pairs; p += 2) {
            uint16x8_t out = to_bf16(gate_(vaddq_f32(c[p], bias_gate), vaddq_f32(c[Pairs + p], bias_up)),
                                     gate_(vaddq_f32(c[p + 1], bias_gate), vaddq_f32(c[Pairs + p + 1], bias_up)));
            if (__builtin_expect(valid < 2, 0)) {
                const uint32x4_t first = vdupq_n_u32(valid > 0 ? 0xffffu : 0u);
                out = vandq_u16(out, vreinterpretq_u16_u32(first));
            }
            const uint32x4_t two = vreinterpretq_u32_u16(out);
            vst1q_lane_u32(to + 4 * p, two, 0);
            vst1q_lane_u32(to + 4 * p + 2, two, 1);
            vst1q_lane_u32(to + 4 * p + 4, two, 2);
            vst1q_lane_u32(to + 4 * p + 6, two, 3);
        }
    }

  private:
    static uint16x8_t valid_channels(int64_t valid) {
        uint16_t lanes[8] = {};
        for (int i = 0; i < valid; i++) lanes[i] = lanes[i + 4] = 0xffff;
        return vld1q_u16(lanes);
    }

    GateFunction gate_;
    const float* bias_;
    int64_t channels_;
    char* h_;
    int64_t row_bytes_;
    char* block_ = nullptr;
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

    template <int Pairs>
    inline __attribute__((always_inline)) void half(const float32x4_t* c, int64_t panel, int which) const {
        const float32x4_t bias = bias_ ? vld1q_f32(bias_ + panel * kPanel + 4 * which) : vdupq_n_f32(0.0f);
        float* to = block_ + panel * kPanel + 4 * which;
#pragma GCC unroll 6
        for (int p = 0; p < Pairs; p++, to += 2 * stride_) {
            const TwoRows rows = two_rows<false>(c[p], c[Pairs + p]);
            vst1q_f32(to, vaddq_f32(rows.row0, bias));
            vst1q_f32(to + stride_, vaddq_f32(rows.row1, bias));
        }
    }

  private:
    const float* bias_;
    float* y_;
    int64_t stride_;
    float* block_ = nullptr;
};

}  // namespace
}  // namespace moelab
