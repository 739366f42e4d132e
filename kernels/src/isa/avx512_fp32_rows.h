// Rows of A widened to fp32 for AVX-512 without BF16: sixteen values, four rows interleaved by pairs of k.
#pragma once

#include "isa/vec_avx512.h"

namespace moelab {
namespace {

struct Fp32Rows512 {
    using V = VecAvx512;
    using Row = __m512;

    MOELAB_INLINE Row widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
    MOELAB_INLINE Row round(V::F x) { return widen(V::to_bf16(x)); }
    MOELAB_INLINE Row load(const uint16_t* x, int n) {
        if (n == 16) return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
        return widen(_mm256_maskz_loadu_epi16(V::lanes(n), x));
    }
    MOELAB_INLINE Row scale(Row x, float by) { return round(_mm512_mul_ps(x, _mm512_set1_ps(by))); }
    // [k / 2][4 rows][2]
    MOELAB_INLINE void store(char* a, const Row (&rows)[4]) {
        // pairs of k as one 64-bit lane each: a transpose of four rows of eight
        const __m512d r0 = _mm512_castps_pd(rows[0]), r1 = _mm512_castps_pd(rows[1]);
        const __m512d r2 = _mm512_castps_pd(rows[2]), r3 = _mm512_castps_pd(rows[3]);
        const __m512d even01 = _mm512_unpacklo_pd(r0, r1), odd01 = _mm512_unpackhi_pd(r0, r1);
        const __m512d even23 = _mm512_unpacklo_pd(r2, r3), odd23 = _mm512_unpackhi_pd(r2, r3);
        // even01 holds pairs 0 2 4 6 of rows 0 and 1, odd01 pairs 1 3 5 7
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        const __m512d p02 = _mm512_permutex2var_pd(even01, first, even23),
                      p46 = _mm512_permutex2var_pd(even01, last, even23);
        const __m512d p13 = _mm512_permutex2var_pd(odd01, first, odd23),
                      p57 = _mm512_permutex2var_pd(odd01, last, odd23);
        double* const out = reinterpret_cast<double*>(a);
        _mm512_storeu_pd(out, _mm512_shuffle_f64x2(p02, p13, 0x44));
        _mm512_storeu_pd(out + 8, _mm512_shuffle_f64x2(p02, p13, 0xee));
        _mm512_storeu_pd(out + 16, _mm512_shuffle_f64x2(p46, p57, 0x44));
        _mm512_storeu_pd(out + 24, _mm512_shuffle_f64x2(p46, p57, 0xee));
    }
};

}  // namespace
}  // namespace moelab
