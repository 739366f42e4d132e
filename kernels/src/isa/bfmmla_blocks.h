// How the rows of an expert are cut into blocks. Rows come in tiles of 24; a whole one is two blocks of twelve, and
// the last one is cut so that neither block is small: 14 rows as 8 + 6 take 2 % fewer instructions than as 12 + 2,
// and a tile of two rows cannot keep four BFMMLA pipes busy.
#pragma once

#include <cstdint>

namespace moelab {
namespace {

constexpr int kTileRows = 24;
constexpr int kMaxPairs = 6;  // of rows in a block

// Pairs of rows in the block that starts at `row`, of an expert whose rows end at `end`.
inline int block_pairs(int64_t row, int64_t end) {
    static constexpr int8_t kFirst[kTileRows / 2 + 1] = {0, 1, 2, 3, 4, 5, 6, 4, 4, 5, 6, 6, 6};
    const int64_t tile = row - row % kTileRows;
    const int64_t rest = (end - tile + 1) / 2;
    const int pairs = static_cast<int>(rest < kTileRows / 2 ? rest : kTileRows / 2);
    return row == tile ? kFirst[pairs] : pairs - kFirst[pairs];
}

inline int64_t row_blocks(int64_t row0, int64_t row1) {
    const int64_t rows = row1 - row0, rest = rows % kTileRows;
    return rows / kTileRows * 2 + (rest > 2 * kMaxPairs ? 2 : rest > 0 ? 1 : 0);
}

}  // namespace
}  // namespace moelab
