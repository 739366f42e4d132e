// The trait list of activation.h on one float.
#pragma once

#include <cstdint>

#include "isa/activation.h"

namespace moelab {
namespace {

struct VecScalar {
    using F = float;
    using M = bool;
    static constexpr int width = 1;

    static uint32_t bits(float x) {
        uint32_t u;
        __builtin_memcpy(&u, &x, sizeof u);
        return u;
    }
    static float from_bits(uint32_t u) {
        float x;
        __builtin_memcpy(&x, &u, sizeof x);
        return x;
    }
    static uint16_t to_bf16(float x) {
        const uint32_t u = bits(x);
        if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
        return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }

    static F set(float x) { return x; }
    static F load(const float* p) { return *p; }
    static F load_n(const float*, int) { return 0.0f; }
    static void store_bf16(uint16_t* p, F x) { *p = to_bf16(x); }
    static void store_bf16_n(uint16_t*, F, int) {}

    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    // Without an FMA instruction this is a libm call: right, and slow.
    static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
    static F fnma(F a, F b, F c) { return __builtin_fmaf(-a, b, c); }
    static F min(F limit, F x) { return limit < x ? limit : x; }
    static F max(F limit, F x) { return limit > x ? limit : x; }
    static F abs(F x) { return __builtin_fabsf(x); }
    static M less(F a, F b) { return a < b; }
    static bool any(M m) { return m; }
    static F select(M m, F if_true, F if_false) { return m ? if_true : if_false; }
    static F shift_add(F p, F z) { return from_bits(bits(p) + (bits(z) << 23)); }
};

}  // namespace
}  // namespace moelab
