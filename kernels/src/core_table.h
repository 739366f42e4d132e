// What block sizes derive from, per core and apart from the kernels.
#pragma once

#include <cstdint>

namespace moelab {

struct CoreTuning {
    const char* name;
    int64_t l1_bytes, l2_bytes;  // data caches of one core
    int64_t stream_ahead;        // how far ahead weights read once are prefetched, in bytes
    int64_t ahead_rows;          // by tiles of at least so many rows; fewer leave it to the hardware
};

// The entry of the core we run on; a default built from the cache sizes that the system reports where the
// table has none.
const CoreTuning& core_tuning();

}  // namespace moelab
