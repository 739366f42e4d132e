// How the rows of one expert are cut into tiles: the same cut for packing, for both GEMMs and for their division
// among threads, so that A can be laid out tile by tile.
#pragma once

#include <cstdint>

#include "isa/isa.h"

namespace moelab {
namespace {

// At most `mr` rows each. With `split` as even as multiples of it allow, 13 rows are 8 + 5 and not 12 + 1; without,
// all but the last have `mr`.
class Tiles {
  public:
    Tiles(int64_t rows, int64_t mr, int64_t split)
        : rows_(rows),
          split_(split ? split : mr),
          count_((rows + mr - 1) / mr),
          groups_((rows + split_ - 1) / split_) {}

    int64_t count() const { return count_; }
    // First row of tile `tile`; of tile count(), where the last one ends.
    int64_t row(int64_t tile) const {
        if (tile >= count_) return rows_;
        return split_ * ((groups_ * tile + count_ - 1) / count_);
    }
    // The tile that begins at `row`, which is the first row of one or the end.
    int64_t at(int64_t row) const { return row >= rows_ ? count_ : row / split_ * count_ / groups_; }

  private:
    int64_t rows_, split_, count_, groups_;
};

}  // namespace
}  // namespace moelab
