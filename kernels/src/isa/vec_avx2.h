// The trait list of activation.h on eight floats, and BF16 conversion for AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "isa/activation.h"

namespace moelab {
namespace {

struct VecAvx2 {
    using F = __m256;
    using M = __m256;
    static constexpr int width = 8;

    MOELAB_INLINE __m256i lanes(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    // Round to nearest even in the low 16 bits of each lane's upper half; NaN keeps its sign and gets the quiet bit.
    MOELAB_INLINE __m128i to_bf16(F x) {
        const __m256i u = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
        return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    }

    MOELAB_INLINE F set(float x) { return _mm256_set1_ps(x); }
    MOELAB_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
    MOELAB_INLINE F load_n(const float* p, int n) { return _mm256_maskload_ps(p, lanes(n)); }
    MOELAB_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    MOELAB_INLINE void store_bf16(uint16_t* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(x)); }
    MOELAB_INLINE void store_bf16_n(uint16_t* p, F x, int n) {
        alignas(16) uint16_t all[8];
        _mm_store_si128(reinterpret_cast<__m128i*>(all), to_bf16(x));
        __builtin_memcpy(p, all, static_cast<unsigned>(n) * sizeof(uint16_t));
    }

    MOELAB_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
    MOELAB_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    MOELAB_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    MOELAB_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
    MOELAB_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    MOELAB_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
    // minps and maxps return the second operand where either is NaN.
    MOELAB_INLINE F min(F limit, F x) { return _mm256_min_ps(limit, x); }
    MOELAB_INLINE F max(F limit, F x) { return _mm256_max_ps(limit, x); }
    MOELAB_INLINE F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
    MOELAB_INLINE M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
    MOELAB_INLINE bool any(M m) { return _mm256_movemask_ps(m) != 0; }
    MOELAB_INLINE F select(M m, F if_true, F if_false) { return _mm256_blendv_ps(if_false, if_true, m); }
    MOELAB_INLINE F shift_add(F p, F z) {
        return _mm256_castsi256_ps(
            _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(z), 23)));
    }
};

}  // namespace
}  // namespace moelab
