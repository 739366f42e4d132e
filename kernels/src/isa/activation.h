// The gated activations of the epilogue: act(gate) * up, the same arithmetic for every ISA, lane and tail.
//
// Relative error of the fp32 result is below 2^-15 wherever it is a normal BF16, over the whole finite range of
// gate and up, so that the BF16 result is within one ulp of the rounded fp64 value and seldom differs at all:
//  - every activation is a product gate * s * up with s in [0, 1]; s is never formed as 1 + something small;
//  - a sigmoid or an erfc far out (s below 2^-124) may still meet a large `up`: a rare branch scales by the
//    power of two in three steps, and only the lanes far out take its result;
//  - the order of the product keeps intermediates from overflowing, or from being denormal, before the result is.
// NaN, infinities and signed zeros follow torch: silu(-inf) and gelu(-inf) are -inf * 0 = NaN.
//
// What a vector type V provides, all static and always inlined:
//   using F, M                      float vector and lane mask;   static constexpr int width
//   F set(float)
//   F load(const float*)            `width` lanes, any alignment
//   F load_n(const float*, int n)   the first n < width lanes, others anything finite; reads no other lane
//   void store(float*, F)           any alignment; only the loops of tile_driver.h need it
//   void store_bf16(uint16_t*, F)   round to nearest even; NaN stays NaN
//   void store_bf16_n(uint16_t*, F, int n)   writes n < width lanes
//   F add, sub, mul, div (F a, F b)
//   F fma(F a, F b, F c)            a * b + c, rounded once;   F fnma(a, b, c)   c - a * b, rounded once
//   F min(F limit, F x), max(...)   x where x is NaN
//   F abs(F)
//   M less(F a, F b)                false where either is NaN
//   bool any(M);  F select(M, F if_true, F if_false)
//   F shift_add(F p, F z)           bits: as_float(as_int(p) + (as_int(z) << 23)), wrapping
//
// Everything is in an unnamed namespace: two ISAs must never share a copy of an inline function.
#pragma once

#include <cstdint>

#include "isa/isa.h"
#include "moelab.h"

namespace moelab {
namespace {

#define MOELAB_INLINE static inline __attribute__((always_inline))

// One activation with its parameters in registers. `s` and `far` share these steps.
template <class V, int Kind>
struct Gate {
    using F = typename V::F;
    using M = typename V::M;
    F alpha, limit;

    // 1.5 * 2^23: adding it rounds to an integer that stays in the low bits of the sum.
    static constexpr float kRound = 12582912.0f;
    static constexpr float kLog2e = 1.44269504f;
    // ln 2 in two parts; kLn2Hi has 15 significant bits, so n * kLn2Hi is exact.
    static constexpr float kLn2Hi = 0.693145752f, kLn2Lo = 1.42860677e-6f;
    // exp(-kFar) = 2^-124: below, the common path's power of two would not be normal.
    static constexpr float kFar = 86.0f;
    static constexpr float kFarGelu = 13.1f;  // kFarGelu^2 / 2 < kFar

    explicit Gate(const Activation& act) : alpha(V::set(act.alpha)), limit(V::set(act.limit)) {}

    // exp(-q) for |q| <= ln(2) / 2, relative error 2^-18.4.
    static inline __attribute__((always_inline)) F exp_poly(F q) {
        F p = V::fma(V::set(0.041515082f), q, V::set(-0.167875975f));
        p = V::fma(p, q, V::set(0.500030041f));
        p = V::fma(p, q, V::set(-0.9999668f));
        return V::fma(p, q, V::set(1.0f));
    }

    // erfc(a / sqrt 2) * exp(a^2 / 2) / 2 for a >= 0, relative error 2^-18; tends to 0 like 1 / a.
    static inline __attribute__((always_inline)) F mills(F a) {
        const F t = V::div(V::set(1.0f), V::fma(a, V::set(0.28f), V::set(1.0f)));
        F p = V::fma(V::set(-0.0502232052f), t, V::set(0.105417192f));
        p = V::fma(p, t, V::set(0.0249834433f));
        p = V::fma(p, t, V::set(0.0944343731f));
        p = V::fma(p, t, V::set(0.101942904f));
        p = V::fma(p, t, V::set(0.111739546f));
        p = V::fma(p, t, V::set(0.111703902f));
        return V::mul(p, t);
    }

    // exp(-a) = poly * 2^n, n an integer: z = n + kRound. Exponent a >= 0, or a^2 / 2 for the error function.
    struct Split {
        F poly, n, z;
    };
    static inline __attribute__((always_inline)) Split split(F a) {
        F q, n, z;
        if constexpr (Kind == MOELAB_GELU) {
            // The residual takes the product a * a / 2 unrounded: its error would be magnified by a^2 / 2.
            const F h = V::mul(V::set(0.5f), a);
            z = V::fma(V::mul(h, a), V::set(-kLog2e), V::set(kRound));
            n = V::sub(z, V::set(kRound));
            q = V::fma(h, a, V::mul(n, V::set(kLn2Hi)));
            q = V::fma(n, V::set(kLn2Lo), q);
        } else {
            z = V::fma(a, V::set(-kLog2e), V::set(kRound));
            n = V::sub(z, V::set(kRound));
            q = V::fma(n, V::set(kLn2Hi), a);
            q = V::fma(n, V::set(kLn2Lo), q);
        }
        return {exp_poly(q), n, z};
    }

    // y such that act(x) = x * sigmoid(y); for the error function act(x) = x * Phi(y).
    inline __attribute__((always_inline)) F argument(F x) const {
        if constexpr (Kind == MOELAB_GELU_TANH) {
            // 0.5 (1 + tanh u) = sigmoid(2u)
            return V::mul(x, V::fma(V::mul(x, x), V::set(0.0713548163f), V::set(1.59576912f)));
        } else if constexpr (Kind == MOELAB_SWIGLUOAI) {
            return V::mul(alpha, x);
        } else {
            return x;
        }
    }

    // Lanes with y < -kFar: x * (poly * 2^n) * w in an order where no partial product leaves the normal range
    // unless the result does. 2^n is 0 where the fp64 definition has 0, so that infinities give NaN there.
    static __attribute__((noinline)) F far_product(F x, F w, F y) {
        constexpr float kUnder = Kind == MOELAB_GELU ? 38.6f : 709.78271f;
        constexpr float kClamp = Kind == MOELAB_GELU ? 22.8f : 261.0f;  // n >= -378: a third of it is a normal power
        const F a = V::abs(y);
        const Split e = split(V::min(V::set(kClamp), a));
        const F third_z = V::fma(e.n, V::set(1.0f / 3.0f), V::set(kRound));
        const F third = V::sub(third_z, V::set(kRound));
        const F rest_z = V::add(V::fnma(third, V::set(2.0f), e.n), V::set(kRound));
        const F one = V::set(1.0f);
        const F power = V::select(V::less(V::set(kUnder), a), V::set(0.0f), V::shift_add(one, third_z));
        F m = V::mul(V::mul(x, power), e.poly);
        if constexpr (Kind == MOELAB_GELU) m = V::mul(m, mills(a));
        m = V::mul(V::mul(m, w), power);
        return V::mul(m, V::shift_add(one, rest_z));
    }

    // act(gate) * up.
    inline __attribute__((always_inline)) F operator()(F gate, F up) const {
        F x, w, y;
        M far;
        const F r = near(gate, up, &x, &w, &y, &far);
        if (__builtin_expect(V::any(far), 0)) return V::select(far, far_product(x, w, y), r);
        return r;
    }

    // The same where no lane is far out; `far` says which lanes are. For loops that look at many results at once.
    inline __attribute__((always_inline)) F near(F gate, F up, M* far) const {
        F x, w, y;
        return near(gate, up, &x, &w, &y, far);
    }

  private:
    inline __attribute__((always_inline)) F near(F gate, F up, F* x_out, F* w_out, F* y_out, M* far) const {
        constexpr float kLimit = Kind == MOELAB_GELU ? kFarGelu : kFar;
        const F one = V::set(1.0f);
        F x = gate, w = up;
        if constexpr (Kind == MOELAB_SWIGLUOAI) {
            x = V::min(limit, gate);
            w = V::add(V::min(limit, V::max(V::sub(V::set(0.0f), limit), up)), one);
        }
        const F y = argument(x);
        const F a = V::min(V::set(kLimit), V::abs(y));
        const Split split_a = split(a);
        const F e = V::shift_add(split_a.poly, split_a.z);
        const M negative = V::less(y, V::set(0.0f));
        F s;
        if constexpr (Kind == MOELAB_GELU) {
            const F tail = V::mul(e, mills(a));
            s = V::select(negative, tail, V::sub(one, tail));
        } else {
            s = V::div(V::select(negative, e, one), V::add(one, e));
        }
        // Below 1 the product x * s might be denormal where a large w still makes the result normal; from 1 on
        // x * w might overflow where s still brings the result back.
        const M small = V::less(V::abs(x), one);
        *far = V::less(y, V::set(-kLimit));
        *x_out = x;
        *w_out = w;
        *y_out = y;
        return V::mul(V::mul(x, V::select(small, w, s)), V::select(small, s, w));
    }
};

// Calls f(Gate<V, kind>) for the activation's kind: one branch outside the loops.
template <class V, class Function>
MOELAB_INLINE void with_gate(const Activation& act, const Function& f) {
    switch (act.kind) {
        case MOELAB_SILU: return f(Gate<V, MOELAB_SILU>(act));
        case MOELAB_GELU: return f(Gate<V, MOELAB_GELU>(act));
        case MOELAB_GELU_TANH: return f(Gate<V, MOELAB_GELU_TANH>(act));
        default: return f(Gate<V, MOELAB_SWIGLUOAI>(act));
    }
}

// Isa::activate: out[i] = bf16(act(gate[i]) * up[i]).
template <class V>
void activate_all(const Activation& act, const float* gate, const float* up, uint16_t* out, int64_t n) {
    with_gate<V>(act, [=](auto gated) __attribute__((always_inline)) {
        int64_t i = 0;
        for (; i + V::width <= n; i += V::width) {
            V::store_bf16(out + i, gated(V::load(gate + i), V::load(up + i)));
        }
        if (i < n) {
            const int rest = static_cast<int>(n - i);
            V::store_bf16_n(out + i, gated(V::load_n(gate + i, rest), V::load_n(up + i, rest)), rest);
        }
    });
}

}  // namespace
}  // namespace moelab
