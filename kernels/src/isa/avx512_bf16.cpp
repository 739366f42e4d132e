// AVX-512 with BF16: vdpbf16ps for every number of rows. It multiplies pairs of k, rounds to nearest even and
// flushes denormals (both inputs and sums).
#include "cpu.h"
#include "isa/avx512_probes.h"
#include "isa/avx512_rows.h"
#include "isa/tile_driver.h"

namespace moelab {
namespace {

MOELAB_INLINE __m512 dpbf16(__m512 acc, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// R x 32 outputs in 2R registers; one step is a pair of k: two loads of B, R broadcasts, 2R multiplies.
template <int R>
void dot_rows(const Dot& d) {
    constexpr int unroll = 4;
    __m512 acc[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    const char* b = d.b;
    const char* const a[3] = {d.a, d.a + d.a_group, d.a + 2 * d.a_group};
    const char* ahead = d.ahead;
    for (int64_t at = 0; at < d.k * 8; at += unroll * 16) {
        ahead = prefetch(ahead, d.ahead_lines);
#pragma GCC unroll 4
        for (int u = 0; u < unroll; ++u) {
            const __m512i gate = _mm512_load_si512(b + u * 128);
            const __m512i up = _mm512_load_si512(b + u * 128 + 64);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                int32_t pair;
                __builtin_memcpy(&pair, a[r / 4] + at + u * 16 + r % 4 * 4, sizeof pair);
                const __m512i x = _mm512_set1_epi32(pair);
                acc[r][0] = dpbf16(acc[r][0], x, gate);
                acc[r][1] = dpbf16(acc[r][1], x, up);
            }
        }
        b += unroll * 128;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        _mm512_store_ps(d.out + r * 32, acc[r][0]);
        _mm512_store_ps(d.out + r * 32 + 16, acc[r][1]);
    }
}

struct Kernel : Bf16Rows, InterleavedRows<4, 2> {
    static constexpr Geometry geometry = {/*nr*/ 32, /*kr*/ 2,      /*ra*/ 4,      /*k_align*/ 16,
                                          /*mr*/ 12, /*a_bytes*/ 2, /*w_bytes*/ 2, /*gate_group*/ 16};

    void dot(int rows, const Dot& d) const {
        static constexpr void (*kByRows[])(const Dot&) = {dot_rows<1>, dot_rows<2>,  dot_rows<3>,  dot_rows<4>,
                                                          dot_rows<5>, dot_rows<6>,  dot_rows<7>,  dot_rows<8>,
                                                          dot_rows<9>, dot_rows<10>, dot_rows<11>, dot_rows<12>};
        kByRows[rows - 1](d);
    }
};

// sum += 1 * 1 + 1 * -1
double peak_bf16(int64_t iterations) {
    MOELAB_PEAK_LOOP(iterations, "vdpbf16ps", "zmm", _mm512_set1_epi32(0x3f803f80), _mm512_set1_epi32(0x3f80bf80));
    return static_cast<double>(iterations) * kPeakChains * 16 * 4;
}

}  // namespace

extern const Isa kAvx512Bf16;
const Isa kAvx512Bf16 = {
    "avx512_bf16",      CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16,
    Kernel::geometry,   gemm1<Kernel>,
    gemm2<Kernel>,      pack_rows<Kernel>,
    combine<VecAvx512>, activate_all<VecAvx512>,
    peak_bf16,          avx512_peak_fp32,
    avx512_read_linear, avx512_read_streams4,
};

}  // namespace moelab
