// Block sizes per core, apart from the kernels.
#pragma once

#include <cstdint>

namespace moelab {

struct CoreTuning {
    const char* name;
    int64_t l1_bytes, l2_bytes;  // data caches of one core
    int64_t kc;                  // k per cache block, 0: the kernel derives it from l1_bytes
    int64_t nc;                  // columns per cache block, 0: derived from l2_bytes
};

// The entry of the core we run on; a default built from the cache sizes that the system reports where the
// table has none.
const CoreTuning& core_tuning();

}  // namespace moelab
