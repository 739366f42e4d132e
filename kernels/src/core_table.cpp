#include "core_table.h"

#include <unistd.h>

#include <cstring>
#include <string>

#include "cpu.h"

namespace moelab {
namespace {

// Keyed by a piece of cpu_part().
struct Entry {
    const char* part;
    CoreTuning tuning;
};

constexpr int64_t KiB = 1024, MiB = 1024 * KiB;

// On Intel's server cores the hardware alone reads one stream at two thirds of what it reaches with a prefetch of
// 8 to 32 KiB ahead (measured on Emerald Rapids).
constexpr int64_t intel_ahead = 16 * KiB;

// Zen 4 alone reads best while a tile is small (up to 58 GB/s, 40 with a prefetch). Behind the multiplies of a large
// one too few loads are in flight, and the prefetch makes up for them (measured with 1 to 12 rows).
constexpr int64_t zen4_ahead = 8 * KiB, zen4_ahead_rows = 7;

// vdpbf16ps starts every second cycle there, and two FMAs every cycle: 165 against 323 GFLOP/s on two cores of Emerald
// Rapids. Where memory binds the two are equal, from 64 tokens on avx512 is up to 1.6x as fast.
constexpr const char *slow_dot = "avx512_bf16", *fma = "avx512";

const Entry table[] = {
    {"Neoverse N1", {"Neoverse N1", 64 * KiB, 1 * MiB, 0, 0}},
    {"Neoverse N2", {"Neoverse N2", 64 * KiB, 1 * MiB, 0, 0}},
    {"Neoverse V1", {"Neoverse V1", 64 * KiB, 1 * MiB, 0, 0}},
    {"Neoverse V2", {"Neoverse V2", 64 * KiB, 2 * MiB, 0, 0}},
    {"Neoverse V3", {"Neoverse V3", 64 * KiB, 2 * MiB, 0, 0}},
    {"Cortex-A76", {"Cortex-A76", 64 * KiB, 512 * KiB, 0, 0}},
    // Of a performance core: its L1, and its share of the L2 that four of them have together.
    {"Apple M1", {"Apple M1", 128 * KiB, 3 * MiB, 0, 0}},
    {"Apple M2", {"Apple M2", 128 * KiB, 4 * MiB, 0, 0}},
    {"AuthenticAMD family 25", {"Zen 3/4", 32 * KiB, 1 * MiB, zen4_ahead, zen4_ahead_rows}},
    {"AuthenticAMD family 26", {"Zen 5", 48 * KiB, 1 * MiB, 0, 0}},
    {"GenuineIntel family 6 model 143", {"Sapphire Rapids", 48 * KiB, 2 * MiB, intel_ahead, 0, slow_dot, fma}},
    {"GenuineIntel family 6 model 207", {"Emerald Rapids", 48 * KiB, 2 * MiB, intel_ahead, 0, slow_dot, fma}},
};

CoreTuning from_system(const std::string& part) {
    CoreTuning tuning{"default", 32 * KiB, 512 * KiB, 0, 0};
    if (part.find("GenuineIntel") != std::string::npos) tuning.stream_ahead = intel_ahead;
    const long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (l1 > 0) tuning.l1_bytes = l1;
    if (l2 > 0) tuning.l2_bytes = l2;
    return tuning;
}

}  // namespace

CoreTuning tuning_of(const std::string& part) {
    for (const Entry& entry : table)
        if (part.find(entry.part) != std::string::npos) return entry.tuning;
    return from_system(part);
}

const CoreTuning& core_tuning() {
    static const CoreTuning tuning = tuning_of(cpu_part());
    return tuning;
}

}  // namespace moelab
