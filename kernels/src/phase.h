// Marks the end of a phase for the instruction counter (ci/armmix.c) in builds with MOELAB_TOOLS; elsewhere nothing.
#pragma once

namespace moelab {

// HINT #0x70 and up are unallocated: every Arm core executes them as NOP.
template <int phase>
inline void mark_phase() {
#if defined(MOELAB_PHASE_MARKS) && defined(__aarch64__)
    static_assert(phase >= 0 && phase < 16, "sixteen hints are free");
    __asm__ volatile("hint %0" ::"i"(0x70 + phase) : "memory");
#endif
}

}  // namespace moelab
