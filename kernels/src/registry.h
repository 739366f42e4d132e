#pragma once

#include <cstdint>
#include <vector>

#include "isa/isa.h"

namespace moelab {

struct CoreTuning;

// Every instruction set of this build, weakest first, on such a core.
std::vector<const Isa*> isas_of(const CoreTuning& core);

// On the core we run on.
int isa_count();
const Isa* isa_at(int index);          // nullptr outside [0, count)
uint64_t isa_missing(const Isa& isa);  // feature bits this CPU lacks; 0: it can run

}  // namespace moelab
