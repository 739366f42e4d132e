// Around the FMLA tiles: gathering rows into packed A, and where the accumulators go.
#pragma once

#include "isa/arm_rows.h"
#include "isa/isa.h"
#include "isa/vec_neon.h"

namespace moelab {
namespace {

constexpr int kPanel = 8;     // columns of a weight panel
constexpr int kChannels = 4;  // channels of a GEMM1 panel: four gates, four ups

// Rows of the block that `rows` rows are packed into.
MOELAB_INLINE int block_of(int64_t rows) {
    return rows > 8 ? 12 : rows > 4 ? 8 : rows > 2 ? 4 : rows > 1 ? 2 : 1;
}

// Four values of four rows, to rows of four columns `step` apart.
MOELAB_INLINE void store_transposed(float32x4_t r0, float32x4_t r1, float32x4_t r2, float32x4_t r3, float* to,
                                    int64_t step) {
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)), b = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)), d = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
    vst1q_f32(to, vreinterpretq_f32_f64(vzip1q_f64(a, c)));
    vst1q_f32(to + step, vreinterpretq_f32_f64(vzip1q_f64(b, d)));
    vst1q_f32(to + 2 * step, vreinterpretq_f32_f64(vzip2q_f64(a, c)));
    vst1q_f32(to + 3 * step, vreinterpretq_f32_f64(vzip2q_f64(b, d)));
}

// Four values of each of Rows rows into A [k][Rows].
template <int Rows>
MOELAB_INLINE void store_rows(const float32x4_t* row, float* to) {
    if constexpr (Rows == 1) {
        vst1q_f32(to, row[0]);
    } else if constexpr (Rows == 2) {
        vst1q_f32(to, vzip1q_f32(row[0], row[1]));
        vst1q_f32(to + 4, vzip2q_f32(row[0], row[1]));
    } else {
        for (int r = 0; r < Rows; r += 4) store_transposed(row[r], row[r + 1], row[r + 2], row[r + 3], to + r, Rows);
    }
}

template <int Rows>
void pack_block(const PackRows& p, int64_t row0, float* to) {
    constexpr int kAtOnce = Rows < 4 ? Rows : 4;
    for (int r = 0; r < Rows; r += kAtOnce) {
        const SourceRow source[4] = {{p, row0 + r}, {p, row0 + r + 1}, {p, row0 + r + 2}, {p, row0 + r + 3}};
        for (int64_t k = 0; k < p.k_padded; k += 8) {
            float32x4_t low[kAtOnce], high[kAtOnce];
            for (int i = 0; i < kAtOnce; i++) {
                const uint16x8_t x = source[i].at(k);
                low[i] = widen_low(x);
                high[i] = widen_high(x);
            }
            // Rows of a quarter of the block are Rows apart in A, as those of the whole block are.
            float* at = to + k * Rows + r;
            if constexpr (Rows < 4) {
                store_rows<Rows>(low, at);
                if (k + 4 < p.k_padded) store_rows<Rows>(high, at + 4 * Rows);
            } else {
                store_transposed(low[0], low[1], low[2], low[3], at, Rows);
                if (k + 4 < p.k_padded) store_transposed(high[0], high[1], high[2], high[3], at + 4 * Rows, Rows);
            }
        }
    }
}

// GEMM1: through the activation, rounded to BF16, into A of GEMM2.
template <class GateFunction>
class HiddenOutput {
  public:
    HiddenOutput(const Gemm1& g, const GateFunction& gate)
        : gate_(gate), bias_(g.bias), channels_(g.channels), h_(static_cast<float*>(g.h)), h_k_(g.h_k) {}

    void set_block(int64_t row, int64_t) { block_ = h_ + row * h_k_; }

    template <int Rows>
    inline __attribute__((always_inline)) void panel(const float32x4_t* c, int64_t panel) const {
        float32x4_t bias_gate = vdupq_n_f32(0.0f), bias_up = bias_gate;
        if (bias_) {
            bias_gate = vld1q_f32(bias_ + panel * kPanel);
            bias_up = vld1q_f32(bias_ + panel * kPanel + 4);
        }
        const int64_t valid = channels_ - panel * kChannels;
        const uint32x4_t lane = {0, 1, 2, 3};
        const uint32x4_t keep = vcltq_u32(lane, vdupq_n_u32(valid > 4   ? 4u
                                                            : valid < 0 ? 0u
                                                                        : static_cast<uint32_t>(valid)));
        float32x4_t out[Rows];
#pragma GCC unroll 12
        for (int r = 0; r < Rows; r++) {
            const float32x4_t x = gate_(vaddq_f32(c[r], bias_gate), vaddq_f32(c[Rows + r], bias_up));
            out[r] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(round_to_bf16(x)), keep));
        }
        store_rows<Rows>(out, block_ + panel * kChannels * Rows);
    }

  private:
    GateFunction gate_;
    const float* bias_;
    int64_t channels_;
    float* h_;
    int64_t h_k_;
    float* block_ = nullptr;
};

// GEMM2. A block may be wider than what is left of the rows: only those are written.
class RowsOutput {
  public:
    explicit RowsOutput(const Gemm2& g) : bias_(g.bias), y_(g.y), stride_(g.y_stride) {}

    void set_block(int64_t row, int64_t rows) {
        block_ = y_ + row * stride_;
        rows_ = rows;
    }

    template <int Rows>
    inline __attribute__((always_inline)) void panel(const float32x4_t* c, int64_t panel) const {
        float32x4_t bias0 = vdupq_n_f32(0.0f), bias1 = bias0;
        if (bias_) {
            bias0 = vld1q_f32(bias_ + panel * kPanel);
            bias1 = vld1q_f32(bias_ + panel * kPanel + 4);
        }
        float* to = block_ + panel * kPanel;
#pragma GCC unroll 12
        for (int r = 0; r < Rows; r++, to += stride_) {
            if (r >= rows_) break;
            vst1q_f32(to, vaddq_f32(c[r], bias0));
            vst1q_f32(to + 4, vaddq_f32(c[Rows + r], bias1));
        }
    }

  private:
    const float* bias_;
    float* y_;
    int64_t stride_, rows_ = 0;
    float* block_ = nullptr;
};

}  // namespace
}  // namespace moelab
