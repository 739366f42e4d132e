#pragma once

#include <cstdint>

#include "isa/isa.h"

namespace moelab {

int isa_count();
const Isa* isa_at(int index);          // nullptr outside [0, count)
uint64_t isa_missing(const Isa& isa);  // feature bits this CPU lacks; 0: it can run

}  // namespace moelab
