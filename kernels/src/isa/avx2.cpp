// AVX2: fp32 FMA, ascending k. Weights stay BF16 in memory and are widened in the loop, four integer operations
// for up to 24 FMA; A is widened once when packed.
#include "cpu.h"
#include "isa/avx2_rows.h"
#include "isa/tile_driver.h"
#include "isa/x86_peak.h"

namespace moelab {
namespace {

// Columns [0, 8) or [8, 16) of one pair of k, its even or its odd k.
MOELAB_INLINE __m256 widen(const char* pairs, int odd) {
    const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
    if (!odd) return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
}

// R x 16 outputs in 2R of the sixteen registers.
template <int R>
void dot_rows(const Dot& d) {
    constexpr int unroll = 2, groups = (R + 1) / 2;
    __m256 acc[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    const char* b = d.b;
    const char* a[groups];
    for (int i = 0; i < groups; ++i) a[i] = d.a + i * d.a_group;
    for (int64_t step = d.k / (2 * unroll); step > 0; --step) {
#pragma GCC unroll 4
        for (int u = 0; u < 2 * unroll; ++u) {
            const __m256 g = widen(b + u / 2 * 64, u % 2), h = widen(b + u / 2 * 64 + 32, u % 2);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                float value;
                __builtin_memcpy(&value, a[r / 2] + u / 2 * 16 + r % 2 * 8 + u % 2 * 4, sizeof value);
                const __m256 x = _mm256_set1_ps(value);
                acc[r][0] = _mm256_fmadd_ps(x, g, acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(x, h, acc[r][1]);
            }
        }
        b += unroll * 64;
        for (auto& p : a) p += unroll * 16;
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        _mm256_store_ps(d.out + r * 16, acc[r][0]);
        _mm256_store_ps(d.out + r * 16 + 8, acc[r][1]);
    }
}

struct Kernel : Fp32Rows256, InterleavedRows<2, 4> {
    static constexpr Geometry geometry = {/*nr*/ 16, /*kr*/ 2,      /*ra*/ 2,      /*k_align*/ 8,
                                          /*mr*/ 6,  /*a_bytes*/ 4, /*w_bytes*/ 2, /*gate_group*/ 8};

    static void dot(int rows, const Dot& d) {
        static constexpr void (*kByRows[])(const Dot&) = {dot_rows<1>, dot_rows<2>, dot_rows<3>,
                                                          dot_rows<4>, dot_rows<5>, dot_rows<6>};
        kByRows[rows - 1](d);
    }
};

// sum = 0.5 * sum + 1
double peak_fp32(int64_t iterations) {
    MOELAB_PEAK_LOOP(iterations, "vfmadd213ps", "ymm", _mm256_set1_ps(0.5f), _mm256_set1_ps(1.0f));
    return static_cast<double>(iterations) * kPeakChains * 8 * 2;
}

// Four accumulators, 128 bytes a step; stream s starts at s * distance.
template <int Streams>
MOELAB_INLINE uint64_t read_lines(const char* data, int64_t steps, int64_t distance) {
    __m256i sum[4];
    for (auto& s : sum) s = _mm256_setzero_si256();
    for (int64_t i = 0; i < steps; ++i, data += 128) {
#pragma GCC unroll 16
        for (int j = 0; j < 4 * Streams; ++j) {
            const char* const at = data + j / 4 * distance + j % 4 * 32;
            sum[j % 4] = _mm256_add_epi64(sum[j % 4], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
        }
    }
    alignas(32) uint64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes),
                       _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3])));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

uint64_t read_linear(const void* data, int64_t bytes) {
    return read_lines<1>(static_cast<const char*>(data), bytes / 128, 0);
}

uint64_t read_streams4(const void* data, int64_t bytes) {
    return read_lines<4>(static_cast<const char*>(data), bytes / 512, bytes / 4);
}

}  // namespace

// The multiply instruction is fp32, so both peaks are that of the fp32 FMA.
extern const Isa kAvx2;
const Isa kAvx2 = {
    "avx2",           CPU_AVX2,
    Kernel::geometry, gemm1<Kernel>,
    gemm2<Kernel>,    pack_rows<Kernel>,
    combine<VecAvx2>, activate_all<VecAvx2>,
    peak_fp32,        peak_fp32,
    read_linear,      read_streams4,
};

}  // namespace moelab
