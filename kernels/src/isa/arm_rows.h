// What the Arm kernels share besides the GEMMs: gathering rows, the weighted combine, the read probes.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "isa/isa.h"
#include "isa/vec_neon.h"

namespace moelab {
namespace {

MOELAB_INLINE int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// A number that is known when the code is compiled.
template <int N>
struct Count {
    static constexpr int value = N;
};

// x * scale rounded to BF16; NaN and infinities pass.
MOELAB_INLINE uint16x8_t scaled(uint16x8_t x, float scale) {
    return to_bf16(vmulq_n_f32(widen_low(x), scale), vmulq_n_f32(widen_high(x), scale));
}

// One gathered row of x, read eight values at a time. An absent row (beyond the last one) is zero.
class SourceRow {
  public:
    SourceRow(const PackRows& p, int64_t row) : k_(p.k), scaled_(p.scale != nullptr) {
        if (row >= p.rows) return;
        x_ = p.x + p.token[row] * p.x_stride;
        if (scaled_) scale_ = p.scale[row];
    }
    // Values k..k+7; zero from the end of the row on.
    inline __attribute__((always_inline)) uint16x8_t at(int64_t k) const {
        if (x_ == nullptr) return vdupq_n_u16(0);
        uint16x8_t v;
        if (k + 8 <= k_) {
            v = vld1q_u16(x_ + k);
        } else {
            uint16_t rest[8] = {};
            for (int64_t i = 0; i < 8 && k + i < k_; i++) rest[i] = x_[k + i];
            v = vld1q_u16(rest);
        }
        return scaled_ ? scaled(v, scale_) : v;
    }

    bool plain() const { return x_ != nullptr && !scaled_; }
    const uint16_t* data() const { return x_; }

  private:
    const uint16_t* x_ = nullptr;
    int64_t k_;
    bool scaled_;
    float scale_ = 1.0f;
};

template <int Quads>
MOELAB_INLINE void combine_columns(const Combine& c, int64_t column, float32x4_t* sum) {
    for (int q = 0; q < Quads; q++) sum[q] = vdupq_n_f32(0.0f);
    for (int64_t s = 0; s < c.slots; s++) {
        if (c.row[s] < 0) continue;
        const float* y = c.y + c.row[s] * c.y_stride + column;
        const float32x4_t weight = vdupq_n_f32(c.weight[s]);
        for (int q = 0; q < Quads; q++) sum[q] = vfmaq_f32(sum[q], weight, vld1q_f32(y + 4 * q));
    }
}

void combine(const Combine& c) {
    int64_t column = 0;
    float32x4_t sum[8];
    for (; column + 32 <= c.n; column += 32) {
        combine_columns<8>(c, column, sum);
        for (int q = 0; q < 8; q += 2) vst1q_u16(c.out + column + 4 * q, to_bf16(sum[q], sum[q + 1]));
    }
    for (; column < c.n; column += 8) {
        combine_columns<2>(c, column, sum);
        uint16_t rest[8];
        vst1q_u16(rest, to_bf16(sum[0], sum[1]));
        memcpy(c.out + column, rest, static_cast<size_t>(2 * min_of(8, c.n - column)));
    }
}

// Every byte changes the result: what is read cannot be left out.
template <int Streams>
uint64_t read_all(const void* data, int64_t bytes) {
    constexpr int kPerStream = 8 / Streams;
    const int64_t part = bytes / Streams;
    const uint8_t* p = static_cast<const uint8_t*>(data);
    uint8x16_t sum[8];
    for (auto& s : sum) s = vdupq_n_u8(0);
    for (int64_t i = 0; i < part; i += 16 * kPerStream) {
        for (int s = 0; s < Streams; s++) {
            for (int q = 0; q < kPerStream; q++) {
                uint8x16_t& lane = sum[s * kPerStream + q];
                lane = vaddq_u8(lane, vld1q_u8(p + s * part + i + 16 * q));
            }
        }
    }
    uint8x16_t all = sum[0];
    for (int s = 1; s < 8; s++) all = vaddq_u8(all, sum[s]);
    return vaddvq_u64(vreinterpretq_u64_u8(all));
}

// 24 independent chains of one instruction, `head` its name and the letter of registers, `tail` what follows the number
// of the sum; 96 of them per iteration, on zeros.
// clang-format off
#define MOELAB_CHAIN(i, head, tail) head #i tail "\n\t"
#define MOELAB_CHAINS4(a, b, c, d, ...)                                                                    \
    MOELAB_CHAIN(a, __VA_ARGS__) MOELAB_CHAIN(b, __VA_ARGS__) MOELAB_CHAIN(c, __VA_ARGS__) MOELAB_CHAIN(d, __VA_ARGS__)
#define MOELAB_CHAINS24(...)                                                                               \
    MOELAB_CHAINS4(8, 9, 10, 11, __VA_ARGS__) MOELAB_CHAINS4(12, 13, 14, 15, __VA_ARGS__)                  \
    MOELAB_CHAINS4(16, 17, 18, 19, __VA_ARGS__) MOELAB_CHAINS4(20, 21, 22, 23, __VA_ARGS__)                \
    MOELAB_CHAINS4(24, 25, 26, 27, __VA_ARGS__) MOELAB_CHAINS4(28, 29, 30, 31, __VA_ARGS__)
#define MOELAB_PEAK_LOOP(iterations, ...)                                                                  \
    do {                                                                                                   \
        int64_t left = iterations;                                                                         \
        asm volatile("movi v0.2d, #0\n\tmovi v1.2d, #0\n\t1:\n\t"                                         \
                     MOELAB_CHAINS24(__VA_ARGS__) MOELAB_CHAINS24(__VA_ARGS__)                             \
                     MOELAB_CHAINS24(__VA_ARGS__) MOELAB_CHAINS24(__VA_ARGS__)                             \
                     "subs %0, %0, #1\n\tb.ne 1b\n\t"                                                     \
                     : "+r"(left)                                                                          \
                     :                                                                                     \
                     : "v0", "v1", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",     \
                       "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", \
                       "v30", "v31", "cc");                                                                \
    } while (0)
// clang-format on

[[maybe_unused]] double peak_fma(int64_t iterations) {
    if (iterations <= 0) return 0;
    MOELAB_PEAK_LOOP(iterations, "fmla v", ".4s, v0.4s, v1.4s");
    return static_cast<double>(iterations) * 96 * 8;
}

}  // namespace
}  // namespace moelab
