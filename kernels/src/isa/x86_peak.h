// A loop of one multiply instruction over independent chains, in assembly: with intrinsics compilers keep the
// accumulators in memory here, and the loop measures store forwarding.
#pragma once

#include <cstdint>

// `instruction` y, x, accumulator (AT&T order) on twelve registers named `prefix`0 to 11: a fused multiply-add
// takes 4 cycles at two a cycle, vdpbf16ps up to 6 at one or two.
constexpr int kPeakChains = 12;
#define MOELAB_PEAK_LOOP(iterations, instruction, prefix, x, y)                                                        \
    do {                                                                                                               \
        int64_t left = (iterations);                                                                                   \
        if (left <= 0) break;                                                                                          \
        __asm__ volatile(                                                                                              \
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"                                                                     \
            "vxorps %%xmm\\r, %%xmm\\r, %%xmm\\r\n\t"                                                                  \
            ".endr\n"                                                                                                  \
            "1:\n\t"                                                                                                   \
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t" instruction " %2, %1, %%" prefix                                    \
            "\\r\n\t"                                                                                                  \
            ".endr\n\t"                                                                                                \
            "sub $1, %0\n\t"                                                                                           \
            "jnz 1b"                                                                                                   \
            : "+r"(left)                                                                                               \
            : "x"(x), "x"(y)                                                                                           \
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"); \
    } while (0)
