// BFMMLA on SVE vectors, for cores whose vectors are longer than NEON's (Neoverse V1: 256 bits). One source for every
// length; the registry leaves 128 bits to neon_bf16, which gains nothing from it there.
//
//   tile at L segments of 128 bits    rows of the block    vector sums
//   12 x 8 L                          11-12                24
//   10 x 8 L, 8 x 8 L, 6 x 8 L        5-10                 20, 16, 12
//    4 x 16 L                         3-4                  16
//    2 x 16 L                         1-2                  8
//
// Two pipes of 256 bits need ten sums to keep busy, where four of 128 bits need twenty: so one panel is wide enough
// from six rows on. Rows, packed A and the order of every sum are those of neon_bf16, and so are the bits of a result.
// A panel is L of its panels side by side: weights packed for one vector length are refused at another.
//
// Bias, activation and combine use NEON's registers: they are the same work per cycle on V1, and vectors without a
// known size can be kept in no structure, such as the activation's constants.
#include <arm_sve.h>

#include "cpu.h"
#include "isa/arm_blocking.h"
#include "isa/arm_rows.h"
#include "isa/bfmmla_blocks.h"
#include "isa/bfmmla_epilogue.h"
#include "isa/bfmmla_pack.h"
#include "isa/isa.h"
#include "isa/sve_tiles.h"

namespace moelab {
namespace {

constexpr int kSegmentColumns = 8;  // of a panel, per segment of its vectors
constexpr int kMostSegments = 16;   // 2048 bits
constexpr int kMostPanels = 6;      // of a group, where a panel is as wide as that

int64_t segments() {
    return static_cast<int64_t>(svcntb() / 16);
}

// Sums of one pair of rows and four columns, or four channels, are 16 floats or 8; a panel's are [pair][L][16].
struct TileSums {
    const float* data;
    int64_t segments;
    int64_t next() const { return 16 * segments; }
    const float* behind(const float* place, int pairs, int64_t quad) const {
        const bool last = (quad + 1) % segments == 0;  // of its panel
        return place - 16 * segments * (last ? 1 : pairs) + 16;
    }
    static GatesAndUps read(const float* p) {
        return {two_rows<false>(vld1q_f32(p), vld1q_f32(p + 8)), two_rows<false>(vld1q_f32(p + 4), vld1q_f32(p + 12))};
    }
};

template <int Pairs>
void finish(const Gemm1& g, int64_t row, int64_t panel0, int64_t panel1, const float* sums) {
    const int64_t length = segments();
    uint16_t* block = static_cast<uint16_t*>(g.h) + row * g.h_k;
    const int64_t quad0 = panel0 * length;
    Epilogue<TileSums>(g, block).run({sums, length}, Pairs, quad0, panel1 * length);
}

template <int Pairs>
void finish(const Gemm2& g, int64_t row, int64_t panel0, int64_t panel1, const float* sums) {
    const int64_t columns = segments() * kSegmentColumns;
    for (int64_t panel = panel0; panel < panel1; panel++) {
        const float* bias = g.bias ? g.bias + panel * columns : nullptr;
        float* to = g.y + row * g.y_stride + panel * columns;
        for (int p = 0; p < Pairs; p++, to += 2 * g.y_stride) {
            for (int64_t c = 0; c < columns; c += 4, sums += 8) {
                const float32x4_t add = bias ? vld1q_f32(bias + c) : vdupq_n_f32(0.0f);
                const TwoRows rows = two_rows<false>(vld1q_f32(sums), vld1q_f32(sums + 4));
                vst1q_f32(to + c, vaddq_f32(rows.row0, add));
                vst1q_f32(to + g.y_stride + c, vaddq_f32(rows.row1, add));
            }
        }
    }
}

// The panels [panel0, panel1) of the block of rows at `row`, in blocks of k. The sums of one block of k are kept for
// all panels; over the whole of k, only those of a few panels, which the epilogue takes from L1.
template <int Pairs, class Gemm>
void run_block(const Gemm& g, int64_t row, int64_t panel0, int64_t panel1, int64_t k_block, float* sums) {
    const int64_t length = segments();
    const int64_t panel_bytes = g.k * 2 * kSegmentColumns * length, panel_sums = 16 * Pairs * length;
    const int64_t at_once = length < 8 ? 16 / length : 2;
    for (int64_t k0 = 0; k0 < g.k; k0 += k_block) {
        const int64_t depth = min_of(k_block, g.k - k0);
        const char* a = static_cast<const char*>(g.a) + row * g.k * 2 + k0 * 4 * Pairs;
        const char* b = static_cast<const char*>(g.b) + k0 * 2 * kSegmentColumns * length;
        float* to = sums;
        for (int64_t first = panel0; first < panel1; first += at_once) {
            const int64_t end = min_of(first + at_once, panel1);
            if (k_block >= g.k) to = sums;
            const float* const done = to;
            int64_t panel = first;
            const auto tile = [&](auto panels) {
                run_sve_tile<Pairs, panels.value>({a, b + panel * panel_bytes, panel_bytes, depth * 4 * Pairs, to, k0});
                panel += panels.value;
                to += panels.value * panel_sums;
            };
            if constexpr (Pairs <= 2) {
                while (panel + 2 <= end) tile(Count<2>());
            }
            while (panel < end) tile(Count<1>());
            if (k0 + depth == g.k) finish<Pairs>(g, row, first, end, done);
        }
    }
}

template <class Gemm>
void run(const Gemm& g) {
    const int64_t length = segments();
    alignas(64) float sums[kMostPanels * 16 * kMaxPairs * kMostSegments];
    const int64_t most = 32 / length > kMostPanels ? 32 / length : kMostPanels;
    const Blocking block = blocking(*g.core, row_blocks(g.row0, g.row1), g.panel1 - g.panel0, most, g.k,
                                    2 * kSegmentColumns * length, 4 * kMaxPairs, kStepsK);
    for (int64_t panel0 = g.panel0; panel0 < g.panel1; panel0 += block.panels) {
        const int64_t panel1 = min_of(panel0 + block.panels, g.panel1);
        int64_t pairs = 0;
        for (int64_t row = g.row0; row < g.row1; row += 2 * pairs) {
            const int64_t k_block = row == g.row0 ? g.k : block.k;
            pairs = block_pairs(row, g.row1);
            switch (pairs) {
                case 6: run_block<6>(g, row, panel0, panel1, k_block, sums); break;
                case 5: run_block<5>(g, row, panel0, panel1, k_block, sums); break;
                case 4: run_block<4>(g, row, panel0, panel1, k_block, sums); break;
                case 3: run_block<3>(g, row, panel0, panel1, k_block, sums); break;
                case 2: run_block<2>(g, row, panel0, panel1, k_block, sums); break;
                default: run_block<1>(g, row, panel0, panel1, k_block, sums);
            }
        }
    }
}

double peak_sve_bfmmla(int64_t iterations) {
    if (iterations <= 0) return 0;
    MOELAB_PEAK_LOOP(iterations, "bfmmla z", ".s, z0.h, z1.h");
    return static_cast<double>(iterations * segments()) * 96 * 32;
}

double peak_sve_fma(int64_t iterations) {
    if (iterations <= 0) return 0;
    MOELAB_PEAK_LOOP(iterations, "fmla z", ".s, z0.s, z1.s[0]");
    return static_cast<double>(iterations * segments()) * 96 * 8;
}

}  // namespace

// As for vectors of 128 bits: registry.cpp widens the panels to this machine's.
extern const Isa kSveBf16 = {"sve_bf16",
                             CPU_NEON | CPU_ARM_BF16 | CPU_SVE | CPU_SVE_BF16 | CPU_SVE_256,
                             {kSegmentColumns, 4, 2, kStepsK, kTileRows, 2, 2, 2},
                             run<Gemm1>,
                             run<Gemm2>,
                             pack_rows,
                             combine,
                             activate_all<VecNeon>,
                             peak_sve_bfmmla,
                             peak_sve_fma,
                             read_all<1>,
                             read_all<4>};

}  // namespace moelab
