// Cache blocks of the Arm kernels.
//
// Panels are taken in groups whose weights fit half of L2, so that every block of rows after the first finds
// them there. Within a group, k is cut so that the block of A fits half of L1: the wide tile then needs only its
// weights from L2, 64 bytes per 24 BFMMLA. The first block of rows reads weights from memory, where that is no
// bottleneck: it runs over the whole of k, in the order in which they lie there.
#pragma once

#include <cstdint>

#include "core_table.h"

namespace moelab {
namespace {

struct Blocking {
    int64_t panels;  // of a group
    int64_t k;       // of a block, from the second block of rows on
};

// panel_row_bytes: bytes of a panel per step of k; a_row_bytes: of a block of rows per step of k.
Blocking blocking(const CoreTuning& core, int64_t row_blocks, int64_t panels, int64_t max_panels, int64_t k,
                  int64_t panel_step, int64_t a_step, int64_t k_multiple) {
    if (row_blocks <= 1) return {panels, k};
    int64_t group = core.l2_bytes / 2 / (k * panel_step);
    if (group > max_panels) group = max_panels;
    group = group < 6 ? 6 : group - group % 6;  // whole tiles of two and three panels
    const int64_t fit = core.l1_bytes / 2 / a_step;
    const int64_t blocks = fit < k_multiple ? k / k_multiple : (k + fit - 1) / fit;
    const int64_t depth = (k + blocks - 1) / blocks;
    return {group, (depth + k_multiple - 1) / k_multiple * k_multiple};
}

}  // namespace
}  // namespace moelab
