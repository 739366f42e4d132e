// What the assembly loops of the Arm kernels have in common: `count` accumulators as outputs, eight registers
// v0..v7 for operands, pointers in x9..x12, the end of A in x13.
//
// A compiler that is given the loop as text can neither spill an accumulator inside it nor move one.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "isa/activation.h"

namespace moelab {
namespace {

struct TileArgs {
    const void* a;
    const void* b;
    int64_t b_next;   // bytes from one group of columns to the next
    int64_t a_bytes;  // of this block of k
    const float* init;
};

#define A_AT "x9"
#define B_AT "x10"
#define B2_AT "x11"
#define B3_AT "x12"
#define LDP(r0, r1, base, offset) "ldp q" #r0 ", q" #r1 ", [" base ", #" #offset "]\n\t"
#define LDR(r0, base, offset) "ldr q" #r0 ", [" base ", #" #offset "]\n\t"
#define LDP_MOVE(r0, r1, base, bytes) "ldp q" #r0 ", q" #r1 ", [" base "], #" #bytes "\n\t"

#define OUT2 [c0] "=&w"(c[0]), [c1] "=&w"(c[1])
#define OUT4 OUT2, [c2] "=&w"(c[2]), [c3] "=&w"(c[3])
#define OUT6 OUT4, [c4] "=&w"(c[4]), [c5] "=&w"(c[5])
#define OUT8 OUT6, [c6] "=&w"(c[6]), [c7] "=&w"(c[7])
#define OUT12 OUT8, [c8] "=&w"(c[8]), [c9] "=&w"(c[9]), [c10] "=&w"(c[10]), [c11] "=&w"(c[11])
#define OUT16 OUT12, [c12] "=&w"(c[12]), [c13] "=&w"(c[13]), [c14] "=&w"(c[14]), [c15] "=&w"(c[15])
#define OUT20 OUT16, [c16] "=&w"(c[16]), [c17] "=&w"(c[17]), [c18] "=&w"(c[18]), [c19] "=&w"(c[19])
#define OUT24 OUT20, [c20] "=&w"(c[20]), [c21] "=&w"(c[21]), [c22] "=&w"(c[22]), [c23] "=&w"(c[23])

#define ZERO(i) "movi %[c" #i "].2d, #0\n\t"
#define ZERO2 ZERO(0) ZERO(1)
#define ZERO4 ZERO2 ZERO(2) ZERO(3)
#define ZERO6 ZERO4 ZERO(4) ZERO(5)
#define ZERO8 ZERO6 ZERO(6) ZERO(7)
#define ZERO12 ZERO8 ZERO(8) ZERO(9) ZERO(10) ZERO(11)
#define ZERO16 ZERO12 ZERO(12) ZERO(13) ZERO(14) ZERO(15)
#define ZERO20 ZERO16 ZERO(16) ZERO(17) ZERO(18) ZERO(19)
#define ZERO24 ZERO20 ZERO(20) ZERO(21) ZERO(22) ZERO(23)

#define INIT(i, j, offset) "ldp %q[c" #i "], %q[c" #j "], [%[init], #" #offset "]\n\t"
#define INIT2 INIT(0, 1, 0)
#define INIT4 INIT2 INIT(2, 3, 32)
#define INIT6 INIT4 INIT(4, 5, 64)
#define INIT8 INIT6 INIT(6, 7, 96)
#define INIT12 INIT8 INIT(8, 9, 128) INIT(10, 11, 160)
#define INIT16 INIT12 INIT(12, 13, 192) INIT(14, 15, 224)
#define INIT20 INIT16 INIT(16, 17, 256) INIT(18, 19, 288)
#define INIT24 INIT20 INIT(20, 21, 320) INIT(22, 23, 352)

// `setup` runs once, `loop` while A is not at its end.
// clang-format off
#define TILE(count, setup, loop)                                                                              \
    asm(setup "mov " A_AT ", %[a]\n\t"                                                                         \
        "mov " B_AT ", %[b]\n\t"                                                                              \
        "add " B2_AT ", %[b], %[next]\n\t"                                                                    \
        "add " B3_AT ", " B2_AT ", %[next]\n\t"                                                               \
        "add x13, %[a], %[bytes]\n\t"                                                                         \
        "cbz %[init], 1f\n\t" INIT##count "b 2f\n"                                                            \
        "1:\n\t" ZERO##count "2:\n\t" loop "cmp " A_AT ", x13\n\t"                                            \
        "b.ne 2b\n\t"                                                                                         \
        : OUT##count                                                                                          \
        : [a] "r"(t.a), [b] "r"(t.b), [next] "r"(t.b_next), [bytes] "r"(t.a_bytes), [init] "r"(t.init)        \
        : "x9", "x10", "x11", "x12", "x13", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "cc", "memory")
// clang-format on

}  // namespace
}  // namespace moelab
