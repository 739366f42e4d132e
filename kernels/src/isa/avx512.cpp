// AVX-512 without BF16: fp32 FMA, ascending k. Weights stay BF16 in memory and are widened in the loop, four
// integer operations for up to 48 FMA; A is widened once when packed.
#include "cpu.h"
#include "isa/avx512_fp32_rows.h"
#include "isa/avx512_probes.h"
#include "isa/pack_avx512.h"
#include "isa/tile_driver.h"

namespace moelab {
namespace {

// In assembly, so that under any compiler a sum stays in its register and no register holds weights not yet widened.
MOELAB_INLINE void multiply_add(__m512& sum, __m512 a, __m512 b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Sixteen columns of a pair of k, widened: its even k, or its odd k.
MOELAB_INLINE __m512 even_k(const char* pairs) {
    __m512 x;
    __asm__("vpslld $16, %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const __m512i*>(pairs)));
    return x;
}
MOELAB_INLINE __m512 odd_k(const char* pairs, __m512i upper_half) {
    __m512 x;
    __asm__("vpandd %1, %2, %0" : "=v"(x) : "m"(*reinterpret_cast<const __m512i*>(pairs)), "v"(upper_half));
    return x;
}

// R x 32 outputs in 2R registers.
template <int R>
void dot_rows(const Dot& d) {
    constexpr int unroll = 4;
    __m512 acc[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    const char* b = d.b;
    const char* const a[3] = {d.a, d.a + d.a_group, d.a + 2 * d.a_group};
    const __m512i upper_half = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
    const char* ahead = d.ahead;
    for (int64_t at = 0; at < d.k * 16; at += unroll * 32) {
        ahead = prefetch(ahead, d.ahead_lines);
#pragma GCC unroll 4
        for (int u = 0; u < unroll; ++u) {
            const char *gate = b + u * 128, *up = b + u * 128 + 64;
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const __m512 g = i ? odd_k(gate, upper_half) : even_k(gate);
                const __m512 h = i ? odd_k(up, upper_half) : even_k(up);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    float value;
                    __builtin_memcpy(&value, a[r / 4] + at + u * 32 + r % 4 * 8 + i * 4, sizeof value);
                    const __m512 x = _mm512_set1_ps(value);
                    multiply_add(acc[r][0], x, g);
                    multiply_add(acc[r][1], x, h);
                }
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

struct Kernel : Fp32Rows512, InterleavedRows<4, 4> {
    static constexpr Geometry geometry = {/*nr*/ 32,  /*kr*/ 2,      /*ra*/ 4,      /*k_align*/ 16,
                                          /*mr*/ 12,  /*a_bytes*/ 4, /*w_bytes*/ 2, /*gate_group*/ 16,
                                          /*split*/ 4};

    void dot(int rows, const Dot& d) const {
        static constexpr void (*kByRows[])(const Dot&) = {dot_rows<1>, dot_rows<2>,  dot_rows<3>,  dot_rows<4>,
                                                          dot_rows<5>, dot_rows<6>,  dot_rows<7>,  dot_rows<8>,
                                                          dot_rows<9>, dot_rows<10>, dot_rows<11>, dot_rows<12>};
        kByRows[rows - 1](d);
    }
};

}  // namespace

// The multiply instruction is fp32, so both peaks are that of the fp32 FMA.
extern const Isa kAvx512;
const Isa kAvx512 = {
    "avx512",           CPU_AVX2 | CPU_AVX512, Kernel::geometry,        gemm1<Kernel>,    gemm2<Kernel>,
    pack_rows<Kernel>,  combine<VecAvx512>,    activate_all<VecAvx512>, avx512_peak_fp32, avx512_peak_fp32,
    avx512_read_linear, avx512_read_streams4,  avx512_pack_weights,
};

}  // namespace moelab
