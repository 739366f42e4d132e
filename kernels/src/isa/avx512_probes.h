// What the AVX-512 files measure the machine with: fp32 FMA from registers, and reads at full width.
#pragma once

#include "isa/vec_avx512.h"
#include "isa/x86_peak.h"

namespace moelab {
namespace {

// sum = 0.5 * sum + 1
double avx512_peak_fp32(int64_t iterations) {
    MOELAB_PEAK_LOOP(iterations, "vfmadd213ps", "zmm", _mm512_set1_ps(0.5f), _mm512_set1_ps(1.0f));
    return static_cast<double>(iterations) * kPeakChains * 16 * 2;
}

MOELAB_INLINE uint64_t fold(__m512i a, __m512i b, __m512i c, __m512i d) {
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    uint64_t sum = 0;
    for (uint64_t lane : lanes) sum += lane;
    return sum;
}

// Four accumulators, 256 bytes a step; stream s starts at s * distance.
template <int Streams>
MOELAB_INLINE uint64_t read_lines(const char* data, int64_t steps, int64_t distance) {
    __m512i sum[4];
    for (auto& s : sum) s = _mm512_setzero_si512();
    for (int64_t i = 0; i < steps; ++i, data += 256) {
#pragma GCC unroll 16
        for (int j = 0; j < 4 * Streams; ++j) {
            sum[j % 4] = _mm512_add_epi64(sum[j % 4], _mm512_loadu_si512(data + j / 4 * distance + j % 4 * 64));
        }
    }
    return fold(sum[0], sum[1], sum[2], sum[3]);
}

uint64_t avx512_read_linear(const void* data, int64_t bytes) {
    return read_lines<1>(static_cast<const char*>(data), bytes / 256, 0);
}

uint64_t avx512_read_streams4(const void* data, int64_t bytes) {
    return read_lines<4>(static_cast<const char*>(data), bytes / 1024, bytes / 4);
}

}  // namespace
}  // namespace moelab
