// The loops around a register-tile kernel: rows and panels of one expert, epilogues, gathering, combining.
//
// What a kernel K provides, all static:
//   using V                       vector of activation.h; nr = 2 * V::width
//   using Row                     V::width consecutive elements of a row of A, as A stores them
//   static constexpr Geometry geometry
//   K()                           one for the tiles of a job; the destructor undoes what it has set up
//   void dot(int rows, const Dot&)          1 <= rows <= mr; chains over ascending k; not static
//   Row round(V::F)                         to BF16, then as A stores it
//   Row load(const uint16_t*, int n)        n <= V::width BF16 values of x, zeros after them
//   Row scale(Row, float)                   bf16(x * scale)
//   auto place(char* tile, int rows, int r, int64_t k, int64_t c)
//                                           where rows [r, r + ra), columns from c of a tile of `rows` rows lie
//   void store(place, const Row (&)[ra])    V::width columns of ra rows
#pragma once

#include <cstdint>

#include "core_table.h"
#include "isa/activation.h"
#include "isa/tiles.h"

namespace moelab {
namespace {

struct Dot {
    const char* a;        // first row of the tile
    int64_t a_group;      // bytes from one group of `split` rows to the next
    const char* b;        // panel
    int64_t k;            // multiple of k_align
    float* out;           // [rows][nr]
    const char* ahead;    // weights that are needed soon, and
    int64_t ahead_lines;  // how many of their cache lines to prefetch per 512 bytes of the panel
};

// The layout of kernels that broadcast A: [row / ra][k / kr][ra][kr].
template <int ra, int a_bytes>
struct InterleavedRows {
    MOELAB_INLINE char* place(char* tile, int, int r, int64_t k, int64_t c) {
        return tile + (r * k + c * ra) * a_bytes;
    }
};

// What to prefetch while a panel is multiplied, so that memory is being read all the time: with one tile the same
// panel a little further on, with several the next panel, spread over all of them.
class Ahead {
  public:
    Ahead(const char* panel, int64_t panel_bytes, const char* last, int64_t tiles, int64_t distance)
        : at_(panel + (tiles == 1 ? distance : panel_bytes)),
          end_(tiles == 1 ? at_ + panel_bytes : last),
          lines_(tiles == 1 && distance == 0 ? 0 : (8 + tiles - 1) / tiles),
          step_(lines_ * (panel_bytes / 512) * 64) {}
    const char* at() const { return at_; }
    int64_t lines() const { return at_ < end_ ? lines_ : 0; }
    void next_tile() { at_ += step_; }

  private:
    const char *at_, *end_;
    int64_t lines_, step_;
};

// Into how many blocks of at most `fits` tiles `tiles` tiles go; four at least are worth a panel's way through L1.
MOELAB_INLINE int64_t blocks_of(int64_t tiles, int64_t fits) {
    const int64_t block = fits < 4 ? 4 : fits;
    return (tiles + block - 1) / block;
}

MOELAB_INLINE const char* prefetch(const char* at, int64_t lines) {
#ifdef __clang__
#pragma clang loop unroll(disable)
#endif
    for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    return at + lines * 64;
}

// Calls epilogue(row, rows, panel, acc) for every tile of [row0, row1) x [panel0, panel1). Blocks of rows small
// enough that their A stays in half of L2 while the panels go by; a panel stays there for all tiles of a block.
template <class K, class Job, class Function>
MOELAB_INLINE void multiply(const Job& job, const Function& epilogue) {
    constexpr Geometry g = K::geometry;
    alignas(64) float acc[g.mr * g.nr];
    K kernel;
    const int64_t k = job.k, row_bytes = k * g.a_bytes, panel_bytes = k * g.nr * g.w_bytes;
    const char* const b = static_cast<const char*>(job.b);
    const char* const last = b + job.panel1 * panel_bytes;
    const Tiles tiles(job.rows, g.mr, g.split);
    const int64_t end = tiles.at(job.row1), fits = job.core->l2_bytes / 2 / (row_bytes * g.mr);
    for (int64_t tile0 = tiles.at(job.row0), blocks = blocks_of(end - tile0, fits), tile1; blocks > 0; --blocks) {
        tile1 = tile0 + (end - tile0 + blocks - 1) / blocks;
        const bool large = tiles.row(tile0 + 1) - tiles.row(tile0) >= job.core->ahead_rows;
        const int64_t distance = large ? job.core->stream_ahead : 0;
        for (int64_t panel = job.panel0; panel < job.panel1; ++panel) {
            const char* const weights = b + panel * panel_bytes;
            Ahead ahead(weights, panel_bytes, last, tile1 - tile0, distance);
            for (int64_t tile = tile0; tile < tile1; ++tile) {
                const int64_t row = tiles.row(tile);
                const int rows = static_cast<int>(tiles.row(tile + 1) - row);
                const char* const first = static_cast<const char*>(job.a) + row * row_bytes;
                kernel.dot(rows, Dot{first, g.split * row_bytes, weights, k, acc, ahead.at(), ahead.lines()});
                ahead.next_tile();
                epilogue(row, rows, panel, acc);
            }
        }
        tile0 = tile1;
    }
}

// V::width lanes, or the first n and zeros.
template <class V>
MOELAB_INLINE typename V::F load_part(const float* p, int n) {
    return n == V::width ? V::load(p) : V::load_n(p, n);
}

// One tile of act(acc + bias) into h. Lanes past `channels` are loaded as zeros, and act(0) * 0 = 0.
template <class K, class Gated>
MOELAB_INLINE void store_tile(const Gemm1& g, const Gated& gated, int64_t row, int rows, int64_t panel,
                              const float* acc) {
    using V = typename K::V;
    using F = typename V::F;
    using Row = typename K::Row;
    constexpr int w = V::width, ra = K::geometry.ra, nr = K::geometry.nr;
    static_assert(nr == 2 * w && K::geometry.gate_group == w, "a panel is one vector of gates and one of ups");
    const int64_t channel = panel * w;
    const int64_t left = g.channels - channel;
    const int n = left >= w ? w : left > 0 ? static_cast<int>(left) : 0;
    const F zero = V::set(0.0f);
    const F gate_bias = g.bias ? load_part<V>(g.bias + panel * nr, n) : zero;
    const F up_bias = g.bias ? load_part<V>(g.bias + panel * nr + w, n) : zero;
    char* const h = static_cast<char*>(g.h) + row * g.h_k * K::geometry.a_bytes;
    for (int r = 0; r < rows; r += ra) {
        Row group[ra];
        for (int i = 0; i < ra; ++i) {
            const float* const sums = acc + (r + i) * nr;
            if (r + i < rows) {
                const F gate = V::add(load_part<V>(sums, n), gate_bias);
                group[i] = K::round(gated(gate, V::add(load_part<V>(sums + w, n), up_bias)));
            } else {
                group[i] = K::round(zero);
            }
        }
        K::store(K::place(h, rows, r, g.h_k, channel), group);
    }
}

template <class K>
void gemm1(const Gemm1& g) {
    with_gate<typename K::V>(g.act, [&](auto gated) __attribute__((always_inline)) {
        multiply<K>(g, [&](int64_t row, int rows, int64_t panel, const float* acc)
                           __attribute__((always_inline)) { store_tile<K>(g, gated, row, rows, panel, acc); });
    });
}

template <class K>
MOELAB_INLINE void store_tile(const Gemm2& g, int64_t row, int rows, int64_t panel, const float* acc) {
    using V = typename K::V;
    using F = typename V::F;
    constexpr int w = V::width, nr = K::geometry.nr;
    const F zero = V::set(0.0f);
    const F low = g.bias ? V::load(g.bias + panel * nr) : zero;
    const F high = g.bias ? V::load(g.bias + panel * nr + w) : zero;
    float* y = g.y + row * g.y_stride + panel * nr;
    for (int r = 0; r < rows; ++r, y += g.y_stride) {
        V::store(y, V::add(V::load(acc + r * nr), low));
        V::store(y + w, V::add(V::load(acc + r * nr + w), high));
    }
}

template <class K>
void gemm2(const Gemm2& g) {
    multiply<K>(g, [&](int64_t row, int rows, int64_t panel, const float* acc)
                       __attribute__((always_inline)) { store_tile<K>(g, row, rows, panel, acc); });
}

template <class K>
void pack_rows(const PackRows& p) {
    constexpr int w = K::V::width, ra = K::geometry.ra;
    static const uint16_t kZeros[w] = {};
    const Tiles tiles(p.expert_rows, K::geometry.mr, K::geometry.split);
    int64_t tile_row = 0;
    for (int64_t tile = tiles.at(p.row0); tile_row < p.rows; ++tile) {
        const int rows = static_cast<int>(tiles.row(tile + 1) - tiles.row(tile));
        char* const to = static_cast<char*>(p.a) + tile_row * p.k_padded * K::geometry.a_bytes;
        for (int r = 0; r < rows; r += ra) {
            const int64_t row = tile_row + r;
            const uint16_t* source[ra];
            for (int i = 0; i < ra; ++i) source[i] = r + i < rows ? p.x + p.token[row + i] * p.x_stride : nullptr;
            for (int64_t k = 0; k < p.k_padded; k += w) {
                const int64_t left = p.k - k;
                const int n = left >= w ? w : left > 0 ? static_cast<int>(left) : 0;
                typename K::Row group[ra];
                for (int i = 0; i < ra; ++i) {
                    group[i] = source[i] && n ? K::load(source[i] + k, n) : K::load(kZeros, w);
                    if (source[i] && p.scale) group[i] = K::scale(group[i], p.scale[row + i]);
                }
                K::store(K::place(to, rows, r, p.k_padded, k), group);
            }
        }
        tile_row += rows;
    }
}

template <class V>
void combine(const Combine& c) {
    constexpr int w = V::width, step = 4 * w;
    int64_t n = 0;
    for (; n + step <= c.n; n += step) {
        typename V::F sum[4];
        for (auto& s : sum) s = V::set(0.0f);
        for (int64_t slot = 0; slot < c.slots; ++slot) {
            if (c.row[slot] < 0) continue;
            const float* const y = c.y + c.row[slot] * c.y_stride + n;
            const auto weight = V::set(c.weight[slot]);
            for (int i = 0; i < 4; ++i) sum[i] = V::fma(weight, V::load(y + i * w), sum[i]);
        }
        for (int i = 0; i < 4; ++i) V::store_bf16(c.out + n + i * w, sum[i]);
    }
    for (; n < c.n; n += w) {
        auto sum = V::set(0.0f);
        for (int64_t slot = 0; slot < c.slots; ++slot) {
            if (c.row[slot] < 0) continue;
            sum = V::fma(V::set(c.weight[slot]), V::load(c.y + c.row[slot] * c.y_stride + n), sum);
        }
        if (c.n - n >= w) {
            V::store_bf16(c.out + n, sum);
        } else {
            V::store_bf16_n(c.out + n, sum, static_cast<int>(c.n - n));
        }
    }
}

}  // namespace
}  // namespace moelab
