// Rows of A as BF16 for the AVX-512 and AMX kernels: sixteen values at a time.
#pragma once

#include "isa/vec_avx512.h"

namespace moelab {
namespace {

struct Bf16Rows {
    using V = VecAvx512;
    using Row = __m256i;

    MOELAB_INLINE Row round(V::F x) { return V::to_bf16(x); }
    MOELAB_INLINE Row load(const uint16_t* x, int n) {
        if (n == 16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
        return _mm256_maskz_loadu_epi16(V::lanes(n), x);
    }
    MOELAB_INLINE Row scale(Row x, float by) {
        const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        return V::to_bf16(_mm512_mul_ps(wide, _mm512_set1_ps(by)));
    }
    MOELAB_INLINE void store(char* a, const Row (&rows)[1]) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), rows[0]);
    }
    // [k / 2][4 rows][2]
    MOELAB_INLINE void store(char* a, const Row (&rows)[4]) {
        const __m512i r01 = _mm512_inserti64x4(_mm512_castsi256_si512(rows[0]), rows[1], 1);
        const __m512i r23 = _mm512_inserti64x4(_mm512_castsi256_si512(rows[2]), rows[3], 1);
        const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
        const __m512i high = _mm512_or_si512(low, _mm512_set1_epi32(4));
        _mm512_storeu_si512(a, _mm512_permutex2var_epi32(r01, low, r23));
        _mm512_storeu_si512(a + 64, _mm512_permutex2var_epi32(r01, high, r23));
    }
};

}  // namespace
}  // namespace moelab
