// Eight weights at a time as BF16, in the compiler's own vectors: SSE2 and NEON are baseline.
#pragma once

#include <cstdint>
#include <cstring>

#include "moelab.h"

namespace moelab {

using Vec = uint32_t __attribute__((vector_size(16)));  // eight BF16, the earlier of a pair in the low half

template <class T>
Vec load_vec(const T* from) {
    static_assert(sizeof(T) <= sizeof(Vec), "one vector");
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Bits of four floats, rounded to nearest even as float_to_bf16 does, in the low halves.
inline Vec round_to_bf16(Vec bits) {
    const Vec nan = (bits & 0x7fffffff) > 0x7f800000;
    const Vec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (rounded & ~nan) | ((bits >> 16 | 0x40) & nan);
}

// Four fp16 in the low halves, widened exactly. No denormal takes part, whatever the mode of the processor.
inline Vec widen_fp16(Vec half) {
    using Float = float __attribute__((vector_size(16)));
    const Vec magnitude = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
    const Vec small = (half & 0x7c00) == 0, special = (half & 0x7c00) == 0x7c00;
    const Vec normal = magnitude + (112u << 23);
    const Vec one = Vec{} + 0x38800000;  // 2^-14: a denormal m is (2^-14 + m * 2^-24) - 2^-14
    const Float denormal = reinterpret_cast<Float>(magnitude | one) - reinterpret_cast<Float>(one);
    const Vec finite = (normal & ~small) | (reinterpret_cast<Vec>(denormal) & small);
    return sign | (finite & ~special) | ((magnitude | 0x7f800000) & special);
}

// Eight weights from `index` on.
template <int dtype>
Vec load8(const void* data, int64_t index) {
    if constexpr (dtype == MOELAB_BF16) {
        return load_vec(static_cast<const uint16_t*>(data) + index);
    } else if constexpr (dtype == MOELAB_FP16) {
        const Vec pairs = load_vec(static_cast<const uint16_t*>(data) + index);
        return round_to_bf16(widen_fp16(pairs & 0xffff)) | round_to_bf16(widen_fp16(pairs >> 16)) << 16;
    } else {
        const auto* from = static_cast<const float*>(data) + index;
        const Vec a = round_to_bf16(load_vec(from)), b = round_to_bf16(load_vec(from + 4));
        return __builtin_shufflevector(a, b, 0, 2, 4, 6) | __builtin_shufflevector(a, b, 1, 3, 5, 7) << 16;
    }
}

}  // namespace moelab
