// AVX2: fp32 FMA, ascending k. Weights stay BF16 in memory and are widened in the loop, four integer operations
// for up to 24 FMA; A is widened once when packed.
#include "cpu.h"
#include "isa/avx2_rows.h"
#include "isa/tile_driver.h"
#include "isa/x86_peak.h"

namespace moelab {
namespace {

// In assembly, so that under any compiler a sum stays in its register and no register holds weights not yet widened.
MOELAB_INLINE void multiply_add(__m256& sum, __m256 a, __m256 b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

alignas(32) constexpr uint32_t kUpperHalf[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

// Eight columns of a pair of k, widened: its even k, or its odd k.
MOELAB_INLINE __m256 even_k(const char* pairs) {
    __m256 x;
    __asm__("vmovdqa %1, %0\n\tvpslld $16, %0, %0" : "=x"(x) : "m"(*reinterpret_cast<const __m256i*>(pairs)));
    return x;
}
MOELAB_INLINE __m256 odd_k(const char* pairs) {
    __m256 x;  // the mask stays in memory: six rows leave no register for it
    __asm__("vmovdqa %1, %0\n\tvpand %2, %0, %0"
            : "=x"(x)
            : "m"(*reinterpret_cast<const __m256i*>(pairs)), "m"(kUpperHalf));
    return x;
}

// R x 16 outputs in 2R of the sixteen registers.
template <int R>
void dot_rows(const Dot& d) {
    constexpr int unroll = 8;
    __m256 acc[R][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    const char* b = d.b;
    const char* const a[3] = {d.a, d.a + d.a_group, d.a + 2 * d.a_group};
    const char* ahead = d.ahead;
    for (int64_t at = 0; at < d.k * 8; at += unroll * 16) {
        ahead = prefetch(ahead, d.ahead_lines);
#pragma GCC unroll 16
        for (int u = 0; u < 2 * unroll; ++u) {
            const char *gate = b + u / 2 * 64, *up = gate + 32;
            const __m256 g = u % 2 ? odd_k(gate) : even_k(gate);
            const __m256 h = u % 2 ? odd_k(up) : even_k(up);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                float value;
                __builtin_memcpy(&value, a[r / 2] + at + u / 2 * 16 + r % 2 * 8 + u % 2 * 4, sizeof value);
                const __m256 x = _mm256_set1_ps(value);
                multiply_add(acc[r][0], x, g);
                multiply_add(acc[r][1], x, h);
            }
        }
        b += unroll * 64;
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
        _mm256_store_ps(d.out + r * 16, acc[r][0]);
        _mm256_store_ps(d.out + r * 16 + 8, acc[r][1]);
    }
}

struct Kernel : Fp32Rows256, InterleavedRows<2, 4> {
    static constexpr Geometry geometry = {/*nr*/ 16,  /*kr*/ 2,      /*ra*/ 2,      /*k_align*/ 16,
                                          /*mr*/ 6,   /*a_bytes*/ 4, /*w_bytes*/ 2, /*gate_group*/ 8,
                                          /*split*/ 2};

    void dot(int rows, const Dot& d) const {
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
    "avx2",        CPU_AVX2,          Kernel::geometry, gemm1<Kernel>,
    gemm2<Kernel>, pack_rows<Kernel>, combine<VecAvx2>, activate_all<VecAvx2>,
    peak_fp32,     peak_fp32,         read_linear,      read_streams4,
};

}  // namespace moelab
