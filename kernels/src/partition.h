// Who computes what: a pure function of routing, shape and number of threads. No kernel runs here.
#pragma once

#include <cstdint>

#include "isa/tiles.h"

namespace moelab {

// Rows [row0, row1) by panels [panel0, panel1) of one expert.
struct Span {
    int64_t expert, panel0, panel1, row0, row1;
};

// One GEMM over all experts, as a line of cells (expert, panel, row tile), each with a cost; every thread gets
// one contiguous piece of the line. So a thread streams the weights of its piece in the order they lie in
// memory, and the cut falls on equal cost, not on a fixed number of columns.
class Partition {
  public:
    // rows[experts] rows per expert; at most `tile` rows per cell, cut as isa/tiles.h says.
    Partition(const int64_t* rows, int64_t experts, int64_t panels, int64_t tile, int64_t split = 0);

    double cost(int thread, int threads) const;

    // Calls visit(Span) for at most three rectangles per expert, in memory order.
    template <typename Visit>
    void spans(int thread, int threads, Visit visit) const {
        pieces(thread, threads, [&](int64_t e, const Shape& shape, int64_t first, int64_t last) {
            const int64_t tiles = shape.tiles, p0 = first / tiles, t0 = first % tiles;
            const int64_t p1 = last / tiles, t1 = last % tiles;
            const Tiles cut(rows_[e], tile_, split_);
            const auto row = [&](int64_t t) { return cut.row(t); };
            if (p0 == p1) {
                visit(Span{e, p0, p0 + 1, row(t0), row(t1)});
                return;
            }
            if (t0) visit(Span{e, p0, p0 + 1, row(t0), rows_[e]});
            const int64_t whole = p0 + (t0 != 0);
            if (whole < p1) visit(Span{e, whole, p1, 0, rows_[e]});
            if (t1) visit(Span{e, p1, p1 + 1, 0, row(t1)});
        });
    }

  private:
    struct Shape {
        int64_t tiles, cell_cost;
    };

    // Calls visit(expert, shape, first, last) for every expert of which the thread has cells [first, last).
    template <typename Visit>
    void pieces(int thread, int threads, Visit visit) const {
        const int64_t begin = boundary(thread, threads), end = boundary(thread + 1, threads);
        int64_t start = 0;
        for (int64_t e = 0; e < experts_ && start < end; ++e) {
            if (rows_[e] == 0) continue;
            const Shape shape = shape_of(rows_[e]);
            const int64_t next = start + shape.tiles * panels_ * shape.cell_cost;
            if (next > begin) {
                const int64_t first = cell_at(begin, start, shape), last = cell_at(end, start, shape);
                if (first < last) visit(e, shape, first, last);
            }
            start = next;
        }
    }

    Shape shape_of(int64_t rows) const;
    int64_t boundary(int thread, int threads) const;
    // The number of cells of an expert, which starts at cost `start`, that lie before cost `at`.
    int64_t cell_at(int64_t at, int64_t start, const Shape& shape) const;

    const int64_t* rows_;
    int64_t experts_, panels_, tile_, split_, total_;
};

}  // namespace moelab
