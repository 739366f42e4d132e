// The trait list of activation.h on sixteen floats. With -mavx512bf16 NaN-safe rounding is one instruction.
#pragma once

// GCC's own AVX-512 header warns about its undefined() values (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "isa/activation.h"

namespace moelab {
namespace {

struct VecAvx512 {
    using F = __m512;
    using M = __mmask16;
    static constexpr int width = 16;

    MOELAB_INLINE __mmask16 lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
    MOELAB_INLINE __m256i to_bf16(F x) {
#ifdef __AVX512BF16__
        return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
        const __m512i u = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i r = _mm512_mask_or_epi32(rounded, is_nan, u, _mm512_set1_epi32(0x400000));
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
#endif
    }

    MOELAB_INLINE F set(float x) { return _mm512_set1_ps(x); }
    MOELAB_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
    MOELAB_INLINE F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
    MOELAB_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    MOELAB_INLINE void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x)); }
    MOELAB_INLINE void store_bf16_n(uint16_t* p, F x, int n) { _mm256_mask_storeu_epi16(p, lanes(n), to_bf16(x)); }

    MOELAB_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
    MOELAB_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    MOELAB_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    MOELAB_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
    MOELAB_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    MOELAB_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
    // minps and maxps return the second operand where either is NaN.
    MOELAB_INLINE F min(F limit, F x) { return _mm512_min_ps(limit, x); }
    MOELAB_INLINE F max(F limit, F x) { return _mm512_max_ps(limit, x); }
    MOELAB_INLINE F abs(F x) { return _mm512_abs_ps(x); }
    MOELAB_INLINE M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    MOELAB_INLINE bool any(M m) { return m != 0; }
    MOELAB_INLINE F select(M m, F if_true, F if_false) { return _mm512_mask_blend_ps(m, if_false, if_true); }
    MOELAB_INLINE F shift_add(F p, F z) {
        return _mm512_castsi512_ps(
            _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(z), 23)));
    }
};

}  // namespace
}  // namespace moelab
