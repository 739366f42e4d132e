#include "core_table.h"

#include <unistd.h>

#include <cstring>
#include <string>

#include "cpu.h"

namespace moelab {
namespace {

// Keyed by a piece of cpu_part(). Arm block sizes follow Arm Compute Library's formula at K = 2880, N = 5760.
struct Entry {
    const char* part;
    CoreTuning tuning;
};

constexpr int64_t KiB = 1024, MiB = 1024 * KiB;

const Entry table[] = {
    {"Neoverse N1", {"Neoverse N1", 64 * KiB, 1 * MiB, 960, 444}},
    {"Neoverse N2", {"Neoverse N2", 64 * KiB, 1 * MiB, 960, 444}},
    {"Neoverse V1", {"Neoverse V1", 64 * KiB, 1 * MiB, 960, 444}},
    {"Neoverse V2", {"Neoverse V2", 64 * KiB, 2 * MiB, 960, 960}},
    {"Neoverse V3", {"Neoverse V3", 64 * KiB, 2 * MiB, 960, 960}},
    {"Cortex-A76", {"Cortex-A76", 64 * KiB, 512 * KiB, 960, 222}},
    {"AuthenticAMD family 25", {"Zen 3/4", 32 * KiB, 1 * MiB, 0, 0}},
    {"AuthenticAMD family 26", {"Zen 5", 48 * KiB, 1 * MiB, 0, 0}},
    {"GenuineIntel family 6 model 143", {"Sapphire Rapids", 48 * KiB, 2 * MiB, 0, 0}},
    {"GenuineIntel family 6 model 207", {"Emerald Rapids", 48 * KiB, 2 * MiB, 0, 0}},
};

CoreTuning from_system() {
    CoreTuning tuning{"default", 32 * KiB, 512 * KiB, 0, 0};
    const long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (l1 > 0) tuning.l1_bytes = l1;
    if (l2 > 0) tuning.l2_bytes = l2;
    return tuning;
}

CoreTuning find() {
    const std::string part = cpu_part();
    for (const Entry& entry : table)
        if (part.find(entry.part) != std::string::npos) return entry.tuning;
    return from_system();
}

}  // namespace

const CoreTuning& core_tuning() {
    static const CoreTuning tuning = find();
    return tuning;
}

}  // namespace moelab
