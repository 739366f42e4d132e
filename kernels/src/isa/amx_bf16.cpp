// AMX: tdpbf16ps for every number of rows. A row of the result depends on its own row of A alone, k in order; the
// instruction rounds to nearest even and flushes denormals.
//
// B tiles come straight from the panels: sixteen pairs of k by sixteen columns, 128 bytes from pair to pair. A is
// kept in the order of the tiles: [row / 16][k / 32][row][32], the last group with as many rows as there are.
#include "cpu.h"
#include "isa/avx512_probes.h"
#include "isa/avx512_rows.h"
#include "isa/pack_avx512.h"
#include "isa/tile_driver.h"

namespace moelab {
namespace {

constexpr int kGroup = 16;  // rows of a tile

// Tiles 0-3 are results (gate and up of the first sixteen rows, gate and up of the next), 4 and 5 rows of A,
// 6 and 7 gate and up of B.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit TileConfig(int n) {
        const int first = n < kGroup ? n : kGroup, second = n > kGroup ? n - kGroup : kGroup;
        const int by_tile[8] = {first, first, second, second, first, second, kGroup, kGroup};
        for (int i = 0; i < 8; ++i) {
            row_bytes[i] = 64;
            rows[i] = static_cast<uint8_t>(by_tile[i]);
        }
    }
};
static_assert(sizeof(TileConfig) == 64, "the operand of ldtilecfg");

// The compiler does not know that tile instructions read and write memory.
MOELAB_INLINE void memory_barrier() {
    __asm__ volatile("" ::: "memory");
}

// At most 16 rows.
__attribute__((noinline)) void dot_one_group(int rows, const Dot& d) {
    const char *a = d.a, *b = d.b, *ahead = d.ahead;
    const int64_t a_step = rows * 64;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t step = d.k / 32; step > 0; --step, a += a_step, b += 2048) {
        _tile_loadd(6, b, 128);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 64, 128);
        _tile_dpbf16ps(1, 4, 7);
        ahead = prefetch(ahead, 4 * d.ahead_lines);
    }
    _tile_stored(0, d.out, 128);
    _tile_stored(1, d.out + 16, 128);
}

// 17 to 32 rows.
__attribute__((noinline)) void dot_two_groups(int rows, const Dot& d) {
    const char *a0 = d.a, *a1 = d.a + d.a_group, *b = d.b, *ahead = d.ahead;
    const int64_t a1_step = (rows - kGroup) * 64;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = d.k / 32; step > 0; --step, a0 += kGroup * 64, a1 += a1_step, b += 2048) {
        _tile_loadd(6, b, 128);
        _tile_loadd(4, a0, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_loadd(7, b + 64, 128);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        ahead = prefetch(ahead, 4 * d.ahead_lines);
    }
    _tile_stored(0, d.out, 128);
    _tile_stored(1, d.out + 16, 128);
    _tile_stored(2, d.out + kGroup * 32, 128);
    _tile_stored(3, d.out + kGroup * 32 + 16, 128);
}

struct Kernel : Bf16Rows {
    static constexpr Geometry geometry = {/*nr*/ 32,       /*kr*/ 2,      /*ra*/ 1,      /*k_align*/ 32,
                                          /*mr*/ 32,       /*a_bytes*/ 2, /*w_bytes*/ 2, /*gate_group*/ 16,
                                          /*split*/ kGroup};

    MOELAB_INLINE char* place(char* tile, int rows, int r, int64_t k, int64_t c) {
        const int64_t group = r / kGroup;
        const int64_t in_group = rows - group * kGroup < kGroup ? rows - group * kGroup : kGroup;
        return tile + group * kGroup * k * 2 + (c / 32 * in_group + r % kGroup) * 64 + c % 32 * 2;
    }

    void dot(int rows, const Dot& d) {
        memory_barrier();
        if (rows != configured_) {
            const TileConfig config(rows);
            _tile_loadconfig(&config);
            configured_ = rows;
        }
        rows > kGroup ? dot_two_groups(rows, d) : dot_one_group(rows, d);
        memory_barrier();
    }
    // Back to the initial state, so that the kernel need not save eight kilobytes at every switch of threads.
    ~Kernel() { _tile_release(); }

  private:
    int configured_ = 0;
};

// Four result tiles, as the kernel has them.
double peak_bf16(int64_t iterations) {
    const TileConfig config(2 * kGroup);
    memory_barrier();
    _tile_loadconfig(&config);
    for (int64_t i = 0; i < iterations; ++i) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return static_cast<double>(iterations) * 4 * (16 * 16 * 32 * 2);
}

}  // namespace

extern const Isa kAmxBf16;
const Isa kAmxBf16 = {
    "amx_bf16",          CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16,
    Kernel::geometry,    gemm1<Kernel>,
    gemm2<Kernel>,       pack_rows<Kernel>,
    combine<VecAvx512>,  activate_all<VecAvx512>,
    peak_bf16,           avx512_peak_fp32,
    avx512_read_linear,  avx512_read_streams4,
    avx512_pack_weights,
};

}  // namespace moelab
