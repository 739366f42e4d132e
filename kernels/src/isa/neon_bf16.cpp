// BFMMLA kernels for cores with FEAT_BF16 (Neoverse N2, V1, V2, V3, Cortex-X2/A710 and later, Apple M2 and later).
//
//   tile                       rows of the block   accumulators   instructions per BFMMLA in the loop
//   12 x 8                     11-12               24             1.23
//   10 x 8                     9-10                20             1.28
//   8 x 12 (3 panels in two)   7-8                 24             1.23
//   6 x 16                     5-6                 24             1.27
//   4 x 24                     3-4                 24             1.31
//   2 x 24                     1-2                 12             1.58
//
// bfmmla_blocks.h cuts an expert's rows into blocks. One weight packing serves all tiles: panels of eight columns, 64
// bytes per four steps of k. Panels left over by a wide tile run on an 8-wide one of the same rows. A block of A is
// [k / 4][pair of rows][2][4]: the loop reads it front to back.
#include <cstdlib>
#include <cstring>

#include "cpu.h"
#include "isa/arm_blocking.h"
#include "isa/arm_rows.h"
#include "isa/bfmmla_outputs.h"
#include "isa/bfmmla_pack.h"
#include "isa/bfmmla_tiles.h"
#include "isa/isa.h"

namespace moelab {
namespace {

constexpr int kMaxPanels = 30;  // of a group: bounds the partial sums of one block of rows, 12 KiB

// MOELAB_NEON_TILE: the order of the main tile's loop, to be timed on cores that fall short of their peak.
Order order_of_main_tile() {
    static const Order order = [] {
        const char* name = std::getenv("MOELAB_NEON_TILE");
        if (name && std::strcmp(name, "12x8-rows") == 0) return Order::kRows;
        if (name && std::strcmp(name, "12x8-swapped") == 0) return Order::kSwapped;
        return Order::kColumns;
    }();
    return order;
}

struct Operands {
    const char* a;
    const char* b;
    int64_t k, row0, row1, panel0, panel1;
    const CoreTuning* core;
};

// The panels [panel0, panel1) of one block of rows.
template <int Pairs, Order O, class Output>
class RowBlock {
  public:
    RowBlock(const Operands& g, int64_t row, Output& out, float* partial)
        : a_(g.a + row * g.k * 2), b_(g.b), k_(g.k), panel_bytes_(g.k * 2 * kPanel), out_(out), partial_(partial) {}

    void run(int64_t panel0, int64_t panel1, int64_t k_block) {
        for (k0_ = 0; k0_ < k_; k0_ += k_block) {
            depth_ = min_of(k_block, k_ - k0_);
            const bool last = k0_ + depth_ == k_;
            part_ = partial_;
            for (int64_t panel = panel0; panel < panel1; panel += kStagedPanels) {
                const int64_t end = min_of(panel + kStagedPanels, panel1);
                if (last) out_.begin(panel);
                tiles(panel, end);
                if (last) out_.template end<Pairs>(end);
            }
        }
    }

  private:
    void tiles(int64_t panel, int64_t end) {
        if constexpr (Pairs == 4) {
            for (; panel + 3 <= end; panel += 3) three_panels(panel);
        } else if constexpr (Pairs < 4) {
            constexpr int kWide = Pairs == 3 ? 2 : 3;
            for (; panel + kWide <= end; panel += kWide) {
                tile<4 * kWide>(at(panel), panel_bytes_, [=](const float32x4_t* c) {
                    for (int i = 0; i < kWide; i++) out_.template panel<Pairs>(c + 4 * i * Pairs, panel + i);
                });
            }
        }
        for (; panel < end; panel++) {
            tile<4>(at(panel), 0,
                    [=](const float32x4_t* c) { out_.template panel<Pairs, O == Order::kSwapped>(c, panel); });
        }
    }

    // Two 8 x 12 tiles. The halves of the panel in the middle meet when both are done.
    void three_panels(int64_t panel) {
        const char* middle = at(panel + 1);
        float held[8 * 4];
        tile<6>(at(panel), middle - at(panel), [&](const float32x4_t* c) {
            out_.template panel<4>(c, panel);
            for (int i = 0; i < 8; i++) vst1q_f32(held + 4 * i, c[16 + i]);
        });
        tile<6>(at(panel + 2), middle + kPanelStep / 2 - at(panel + 2), [&](const float32x4_t* c) {
            float32x4_t both[16];
            for (int i = 0; i < 8; i++) both[i] = vld1q_f32(held + 4 * i);
            for (int i = 0; i < 8; i++) both[8 + i] = c[16 + i];
            out_.template panel<4>(both, panel + 1);
            out_.template panel<4>(c, panel + 2);
        });
    }

    const char* at(int64_t panel) const { return b_ + panel * panel_bytes_ + k0_ * 2 * kPanel; }

    // `finish` gets the accumulators after the last block of k; before, they are kept as they are.
    template <int Columns, class Finish>
    inline __attribute__((always_inline)) void tile(const char* b, int64_t b_next, const Finish& finish) {
        float32x4_t c[Pairs * Columns];
        const TileArgs args{a_ + k0_ * 4 * Pairs, b, b_next, depth_ * 4 * Pairs, k0_ ? part_ : nullptr};
        run_tile<Pairs, Columns, O>(args, c);
        if (k0_ + depth_ == k_) {
            finish(c);
        } else {
#pragma GCC unroll 24
            for (int i = 0; i < Pairs * Columns; i++) vst1q_f32(part_ + 4 * i, c[i]);
        }
        part_ += 4 * Pairs * Columns;
    }

    const char* a_;
    const char* b_;
    int64_t k_, panel_bytes_;
    Output& out_;
    float* partial_;
    float* part_ = nullptr;
    int64_t k0_ = 0, depth_ = 0;
};

template <Order Main, class Output>
void run(const Operands& g, Output& out) {
    alignas(64) float partial[kMaxPanels * 2 * kMaxPairs * kPanel];
    const Blocking block = blocking(*g.core, row_blocks(g.row0, g.row1), g.panel1 - g.panel0, kMaxPanels, g.k,
                                    2 * kPanel, 4 * kMaxPairs, kTileK);
    for (int64_t panel0 = g.panel0; panel0 < g.panel1; panel0 += block.panels) {
        const int64_t panel1 = min_of(panel0 + block.panels, g.panel1);
        int64_t pairs = 0;
        for (int64_t row = g.row0; row < g.row1; row += 2 * pairs) {
            const int64_t k_block = row == g.row0 ? g.k : block.k;
            out.set_block(row);
            pairs = block_pairs(row, g.row1);
            switch (pairs) {
                case 6: RowBlock<6, Main, Output>(g, row, out, partial).run(panel0, panel1, k_block); break;
                case 5: RowBlock<5, Order::kColumns, Output>(g, row, out, partial).run(panel0, panel1, k_block); break;
                case 4: RowBlock<4, Order::kColumns, Output>(g, row, out, partial).run(panel0, panel1, k_block); break;
                case 3: RowBlock<3, Order::kColumns, Output>(g, row, out, partial).run(panel0, panel1, k_block); break;
                case 2: RowBlock<2, Order::kColumns, Output>(g, row, out, partial).run(panel0, panel1, k_block); break;
                default: RowBlock<1, Order::kColumns, Output>(g, row, out, partial).run(panel0, panel1, k_block);
            }
        }
    }
}

template <class Output>
void run_in_order(const Operands& g, Output&& out) {
    switch (order_of_main_tile()) {
        case Order::kRows: return run<Order::kRows>(g, out);
        case Order::kSwapped: return run<Order::kSwapped>(g, out);
        default: return run<Order::kColumns>(g, out);
    }
}

template <class Gemm>
Operands operands_of(const Gemm& g) {
    return {
        static_cast<const char*>(g.a), static_cast<const char*>(g.b), g.k, g.row0, g.row1, g.panel0, g.panel1, g.core};
}

void gemm1(const Gemm1& g) {
    run_in_order(operands_of(g), HiddenOutput(g));
}

void gemm2(const Gemm2& g) {
    run_in_order(operands_of(g), RowsOutput(g));
}

double peak_bfmmla(int64_t iterations) {
    if (iterations <= 0) return 0;
    MOELAB_PEAK_LOOP(iterations, "bfmmla v", ".4s, v0.8h, v1.8h");
    return static_cast<double>(iterations) * 96 * 32;
}

}  // namespace

extern const Isa kNeonBf16 = {"neon_bf16",
                              CPU_NEON | CPU_ARM_BF16,
                              {kPanel, 4, 2, kTileK, kTileRows, 2, 2, 2},
                              gemm1,
                              gemm2,
                              pack_rows,
                              combine,
                              activate_all<VecNeon>,
                              peak_bfmmla,
                              peak_fma,
                              read_all<1>,
                              read_all<4>};

}  // namespace moelab
