// What block sizes derive from, per core and apart from the kernels.
#pragma once

#include <cstdint>
#include <string>

namespace moelab {

struct CoreTuning {
    const char* name;
    int64_t l1_bytes, l2_bytes;        // data caches of one core
    int64_t stream_ahead;              // how far ahead weights read once are prefetched, in bytes
    int64_t ahead_rows;                // by tiles of at least so many rows; fewer leave it to the hardware
    const char* slow_isa = nullptr;    // this instruction set is slower here than
    const char* faster_isa = nullptr;  // this one, against the order of registry.cpp
};

// The entry for a core as cpu_part() names it; a default for one that the table lacks.
CoreTuning tuning_of(const std::string& part);

// The entry of the core we run on; a default built from the cache sizes that the system reports where the
// table has none.
const CoreTuning& core_tuning();

}  // namespace moelab
