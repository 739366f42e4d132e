// Rows of A widened to fp32 for AVX2: eight values, two rows interleaved by pairs of k.
#pragma once

#include "isa/vec_avx2.h"

namespace moelab {
namespace {

struct Fp32Rows256 {
    using V = VecAvx2;
    using Row = __m256;

    MOELAB_INLINE Row widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
    MOELAB_INLINE Row round(V::F x) { return widen(V::to_bf16(x)); }
    MOELAB_INLINE Row load(const uint16_t* x, int n) {
        if (n == 8) return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
        alignas(16) uint16_t part[8] = {};
        __builtin_memcpy(part, x, static_cast<unsigned>(n) * sizeof(uint16_t));
        return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(part)));
    }
    MOELAB_INLINE Row scale(Row x, float by) { return round(_mm256_mul_ps(x, _mm256_set1_ps(by))); }
    // [k / 2][2 rows][2]
    MOELAB_INLINE void store(char* a, const Row (&rows)[2]) {
        const __m256d r0 = _mm256_castps_pd(rows[0]), r1 = _mm256_castps_pd(rows[1]);
        const __m256d p02 = _mm256_unpacklo_pd(r0, r1), p13 = _mm256_unpackhi_pd(r0, r1);
        double* const out = reinterpret_cast<double*>(a);
        _mm256_storeu_pd(out, _mm256_permute2f128_pd(p02, p13, 0x20));
        _mm256_storeu_pd(out + 4, _mm256_permute2f128_pd(p02, p13, 0x31));
    }
};

}  // namespace
}  // namespace moelab
