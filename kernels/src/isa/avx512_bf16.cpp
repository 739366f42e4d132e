// AVX-512 with BF16: vdpbf16ps for every number of rows. It multiplies pairs of k, rounds to nearest even and
// flushes denormals (both inputs and sums).
#include "cpu.h"
#include "isa/avx512_probes.h"
#include "isa/avx512_rows.h"
#include "isa/pack_avx512.h"
#include "isa/tile_driver.h"

namespace moelab {
namespace {

// In assembly, so that every compiler broadcasts in the instruction: no register and no slot for it.
MOELAB_INLINE void multiply_add(__m512& sum, __m512i b, const char* pair) {
    using Pair = int32_t __attribute__((may_alias));
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*reinterpret_cast<const Pair*>(pair)));
}

// Rows of A from one tile side by side: [k / 2][rows, up to a multiple of 4][2]. So a tile reads one stream of A beside
// the weights, which the prefetchers follow; with one stream for every four rows they lost the weights of memory.
template <int R>
constexpr int padded_rows = (R + 3) / 4 * 4;

// R x 32 outputs in 2R registers; one step is a pair of k: two loads of B and 2R multiplies, each with its pair of A
// broadcast from memory.
template <int R>
void dot_rows(const Dot& d) {
    constexpr int unroll = 4;
    __m512 acc[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    const char* b = d.b;
    const char *a = d.a, *ahead = d.ahead;
    for (const char* const end = b + d.k * 64; b < end; b += unroll * 128, a += unroll * padded_rows<R> * 4) {
        ahead = prefetch(ahead, d.ahead_lines);
#pragma GCC unroll 4
        for (int u = 0; u < unroll; ++u) {
            const __m512i gate = _mm512_load_si512(b + u * 128);
            const __m512i up = _mm512_load_si512(b + u * 128 + 64);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const char* const pair = a + (u * padded_rows<R> + r) * 4;
                multiply_add(acc[r][0], gate, pair);
                multiply_add(acc[r][1], up, pair);
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        _mm512_store_ps(d.out + r * 32, acc[r][0]);
        _mm512_store_ps(d.out + r * 32 + 16, acc[r][1]);
    }
}

struct Kernel : Bf16Rows {
    static constexpr Geometry geometry = {/*nr*/ 32,  /*kr*/ 2,      /*ra*/ 4,      /*k_align*/ 16,
                                          /*mr*/ 12,  /*a_bytes*/ 2, /*w_bytes*/ 2, /*gate_group*/ 16,
                                          /*split*/ 4};

    struct Place {
        char* at;
        int64_t step;  // bytes from one pair of k to the next
    };
    MOELAB_INLINE Place place(char* tile, int rows, int r, int64_t, int64_t c) {
        const int64_t padded = (rows + 3) / 4 * 4;
        return {tile + (c / 2 * padded + r) * 4, padded * 4};
    }
    MOELAB_INLINE void store(Place to, const Row (&rows)[4]) {
        alignas(64) char pairs[128];
        Bf16Rows::store(pairs, rows);
        for (int i = 0; i < 8; ++i) __builtin_memcpy(to.at + i * to.step, pairs + i * 16, 16);
    }

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
    "avx512_bf16",       CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16,
    Kernel::geometry,    gemm1<Kernel>,
    gemm2<Kernel>,       pack_rows<Kernel>,
    combine<VecAvx512>,  activate_all<VecAvx512>,
    peak_bf16,           avx512_peak_fp32,
    avx512_read_linear,  avx512_read_streams4,
    avx512_pack_weights,
};

}  // namespace moelab
