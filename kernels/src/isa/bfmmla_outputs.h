// Where the accumulators of a BFMMLA tile go: through the activation into packed A of GEMM2 (GEMM1), or with the
// bias into rows of y (GEMM2). An accumulator holds two rows by two columns; two of them are four columns.
#pragma once

#include <cstdint>

#include "isa/bfmmla_blocks.h"
#include "isa/bfmmla_epilogue.h"

namespace moelab {
namespace {

constexpr int kPanel = 8;              // columns of a weight panel
constexpr int kStagedPanels = 12;      // whole tiles of two and three panels; see Epilogue
constexpr int kPanelStep = 8 * 4 * 2;  // bytes of a panel per four steps of k

// GEMM1. A panel is one quad. The accumulators of a few panels are staged in L1 (at most 4.5 KiB) as rows of four gates
// and four ups.
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
        Epilogue<Staged>(g_, block_).run({staged_}, Pairs, first_, panel1);
    }

  private:
    struct Staged {
        const float* data;
        static constexpr int64_t next() { return 16; }
        static const float* behind(const float* place, int, int64_t) { return place; }
        static GatesAndUps read(const float* p) {
            return {{vld1q_f32(p), vld1q_f32(p + 8)}, {vld1q_f32(p + 4), vld1q_f32(p + 12)}};
        }
    };

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
