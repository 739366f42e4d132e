#include "partition.h"

namespace moelab {
namespace {

// A panel costs as much as its bytes or its multiplications take, whichever is more. Both scale with nr * K, so
// only their ratio matters: streaming a panel from memory takes a core about as long as multiplying it with
// this many rows (10 to 70 on the cores we know; the cut is not sensitive to it).
constexpr int64_t rows_worth_a_read = 16;
constexpr int64_t unit = 1024;  // fixed point, so that every thread computes the same boundaries

}  // namespace

Partition::Partition(const int64_t* rows, int64_t experts, int64_t panels, int64_t tile, int64_t split)
    : rows_(rows), experts_(experts), panels_(panels), tile_(tile), split_(split), total_(0) {
    for (int64_t e = 0; e < experts; ++e) {
        if (rows[e] == 0) continue;
        const Shape shape = shape_of(rows[e]);
        total_ += shape.tiles * panels * shape.cell_cost;
    }
}

Partition::Shape Partition::shape_of(int64_t rows) const {
    const int64_t tiles = (rows + tile_ - 1) / tile_;
    const int64_t panel_cost = (rows > rows_worth_a_read ? rows : rows_worth_a_read) * unit;
    return {tiles, (panel_cost + tiles - 1) / tiles};
}

int64_t Partition::boundary(int thread, int threads) const {
    // total * thread can exceed 2^63 for very long prefills on many threads.
    return static_cast<int64_t>(static_cast<__int128>(total_) * thread / threads);
}

int64_t Partition::cell_at(int64_t at, int64_t start, const Shape& shape) const {
    const int64_t cells = shape.tiles * panels_;
    const int64_t before = (at - start + shape.cell_cost / 2) / shape.cell_cost;
    return at <= start ? 0 : before < cells ? before : cells;
}

double Partition::cost(int thread, int threads) const {
    int64_t sum = 0;
    pieces(thread, threads,
           [&](int64_t, const Shape& shape, int64_t first, int64_t last) { sum += (last - first) * shape.cell_cost; });
    return static_cast<double>(sum);
}

}  // namespace moelab
