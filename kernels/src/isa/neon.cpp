// FMLA kernels for cores without BF16 (Neoverse N1, Cortex-A72 and A76, Armv8.0 and later).
//
//   tile     rows of the block   accumulators   SIMD instructions per FMLA in the loop
//   12 x 8   9-12                24             1.08
//   8 x 8    5-8                 16             1.13
//   4 x 24   3-4                 24             1.25
//   2 x 24   2                   12             1.5
//   1 x 24   1                   6              2
//
// Weights stay BF16 in memory and are widened in the loop, two ZIPs per eight weights: 92 % of the fp32 peak with 12
// rows. Widened at packing it would be 99 %, for twice the memory and twice the bytes that a small batch reads, and
// a small batch is where these cores are used. A is widened when it is packed: it is small and read many times.
#include "cpu.h"
#include "isa/arm_blocking.h"
#include "isa/arm_rows.h"
#include "isa/fmla_outputs.h"
#include "isa/fmla_tiles.h"
#include "isa/isa.h"

namespace moelab {
namespace {

constexpr int kRows = 12;
constexpr int kMaxPanels = 30;  // of a group: bounds the partial sums of one block of rows

struct Operands {
    const float* a;
    const uint16_t* b;
    int64_t k, row0, row1, panel0, panel1;
    const CoreTuning* core;
};

// The panels [panel0, panel1) of one block of rows.
template <int Rows, class Output>
void run_block(const Operands& g, int64_t row, int64_t panel0, int64_t panel1, int64_t k_block, const Output& out,
               float* partial) {
    constexpr int kWide = Rows <= 4 ? 3 : 1;
    const int64_t panel_elements = g.k * kPanel;
    for (int64_t k0 = 0; k0 < g.k; k0 += k_block) {
        const int64_t depth = min_of(k_block, g.k - k0);
        const bool last = k0 + depth == g.k;
        float* part = partial;
        const auto tile = [&](int64_t panel, auto panels) __attribute__((always_inline)) {
            constexpr int kPanels = decltype(panels)::value;
            float32x4_t c[Rows * 2 * kPanels];
            const TileArgs args{g.a + row * g.k + k0 * Rows, g.b + panel * panel_elements + k0 * kPanel,
                                panel_elements * 2, depth * Rows * 4, k0 ? part : nullptr};
            run_tile<Rows, kPanels>(args, c);
            if (last) {
                for (int i = 0; i < kPanels; i++) out.template panel<Rows>(c + 2 * Rows * i, panel + i);
            } else {
#pragma GCC unroll 24
                for (int i = 0; i < Rows * 2 * kPanels; i++) vst1q_f32(part + 4 * i, c[i]);
            }
            part += Rows * 8 * kPanels;
        };
        int64_t panel = panel0;
        for (; panel + kWide <= panel1; panel += kWide) tile(panel, Count<kWide>{});
        for (; panel < panel1; panel++) tile(panel, Count<1>{});
    }
}

template <class Output>
void run(const Operands& g, Output&& out) {
    alignas(64) float partial[kMaxPanels * kRows * kPanel];
    const Blocking block = blocking(*g.core, (g.row1 - g.row0 + kRows - 1) / kRows, g.panel1 - g.panel0, kMaxPanels,
                                    g.k, 2 * kPanel, 4 * kRows, kTileK);
    for (int64_t panel0 = g.panel0; panel0 < g.panel1; panel0 += block.panels) {
        const int64_t panel1 = min_of(panel0 + block.panels, g.panel1);
        for (int64_t row = g.row0; row < g.row1; row += kRows) {
            const int64_t k_block = row == g.row0 ? g.k : block.k;
            const int64_t rows = min_of(kRows, g.row1 - row);
            out.set_block(row, rows);
            switch (block_of(rows)) {
                case 12: run_block<12>(g, row, panel0, panel1, k_block, out, partial); break;
                case 8: run_block<8>(g, row, panel0, panel1, k_block, out, partial); break;
                case 4: run_block<4>(g, row, panel0, panel1, k_block, out, partial); break;
                case 2: run_block<2>(g, row, panel0, panel1, k_block, out, partial); break;
                default: run_block<1>(g, row, panel0, panel1, k_block, out, partial);
            }
        }
    }
}

template <class Gemm>
Operands operands_of(const Gemm& g) {
    return {static_cast<const float*>(g.a),
            static_cast<const uint16_t*>(g.b),
            g.k,
            g.row0,
            g.row1,
            g.panel0,
            g.panel1,
            g.core};
}

void gemm1(const Gemm1& g) {
    with_gate<VecNeon>(g.act, [&](auto gate) { run(operands_of(g), HiddenOutput<decltype(gate)>(g, gate)); });
}

void gemm2(const Gemm2& g) {
    run(operands_of(g), RowsOutput(g));
}

void pack_rows(const PackRows& p) {
    for (int64_t row = 0; row < p.rows; row += kRows) {
        float* to = static_cast<float*>(p.a) + row * p.k_padded;
        switch (block_of(p.rows - row)) {
            case 12: pack_block<12>(p, row, to); break;
            case 8: pack_block<8>(p, row, to); break;
            case 4: pack_block<4>(p, row, to); break;
            case 2: pack_block<2>(p, row, to); break;
            default: pack_block<1>(p, row, to);
        }
    }
}

}  // namespace

extern const Isa kNeon = {"neon",
                          CPU_NEON,
                          {kPanel, 1, 4, kTileK, kRows, 4, 2, 4},
                          gemm1,
                          gemm2,
                          pack_rows,
                          combine,
                          activate_all<VecNeon>,
                          peak_fma,
                          peak_fma,
                          read_all<1>,
                          read_all<4>};

}  // namespace moelab
