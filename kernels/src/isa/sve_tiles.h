// Inner loops of the SVE kernel, in assembly, for every vector length: no instruction names one.
//
// A vector of L 128-bit segments holds 2 L columns of the weights; BFMMLA multiplies each segment with the same two
// rows of A, which LD1RQH has copied into all of them. A tile is up to six pairs of rows by the four vectors of a
// panel; one or two pairs take two panels at a time, since four or eight chains cannot keep the pipes busy.
//
//   A        [k / 4][pair of rows][2][4]       one block, as for NEON
//   weights  [k / 4][8 L columns][4]           one panel
//   sums     [panel][pair of rows][8 L columns in twos][2 rows][2 columns]
//
// Loops make two steps of k, which is as far as the offsets of LD1RQH reach. Sums start at zero or where an earlier
// block of k left them, and end in memory: the epilogue reads them from L1.
#pragma once

#include <cstdint>

#include "isa/activation.h"

namespace moelab {
namespace {

struct SveTile {
    const char* a;
    const char* b;
    int64_t b_next;   // bytes from one panel to the next
    int64_t a_bytes;  // of this block of k
    float* sums;
    int64_t resume;  // not 0: the sums go on from what is there
};

constexpr int kVectors = 4;  // of a panel
constexpr int kStepsK = 8;   // k of a block is a multiple of two steps

// clang-format off
// Operands of A in z0..z5, of the weights in z6 and z7. Sum v of pair p is z(8 + 6 v + p), and number 4 p + v in memory.
// Of two panels, the second one's pairs come after the first one's.
#define ROWS(i, pairs, step) "ld1rqh {z" #i ".h}, p0/z, [x9, #16 * (" #i " + (" #step " - 1) * " #pairs ")]\n\t"
#define ROWS1(pairs, step) ROWS(0, pairs, step)
#define ROWS2(pairs, step) ROWS1(pairs, step) ROWS(1, pairs, step)
#define ROWS3(pairs, step) ROWS2(pairs, step) ROWS(2, pairs, step)
#define ROWS4(pairs, step) ROWS3(pairs, step) ROWS(3, pairs, step)
#define ROWS5(pairs, step) ROWS4(pairs, step) ROWS(4, pairs, step)
#define ROWS6(pairs, step) ROWS5(pairs, step) ROWS(5, pairs, step)

#define COLUMNS(z, base, step, vector) "ldr z" #z ", [" base ", #4 * " #step " + " #vector ", mul vl]\n\t"
#define SVE_MM(c, a, b) "bfmmla z" #c ".s, z" #a ".h, z" #b ".h\n\t"
// One vector of columns (register b) against the pairs of rows.
#define TIMES1(b, c0, c1, c2, c3, c4, c5) SVE_MM(c0, 0, b)
#define TIMES2(b, c0, c1, c2, c3, c4, c5) TIMES1(b, c0, c1, c2, c3, c4, c5) SVE_MM(c1, 1, b)
#define TIMES3(b, c0, c1, c2, c3, c4, c5) TIMES2(b, c0, c1, c2, c3, c4, c5) SVE_MM(c2, 2, b)
#define TIMES4(b, c0, c1, c2, c3, c4, c5) TIMES3(b, c0, c1, c2, c3, c4, c5) SVE_MM(c3, 3, b)
#define TIMES5(b, c0, c1, c2, c3, c4, c5) TIMES4(b, c0, c1, c2, c3, c4, c5) SVE_MM(c4, 4, b)
#define TIMES6(b, c0, c1, c2, c3, c4, c5) TIMES5(b, c0, c1, c2, c3, c4, c5) SVE_MM(c5, 5, b)

#define PANEL(pairs, base, step)                                                                              \
    COLUMNS(6, base, step, 0) COLUMNS(7, base, step, 1)                                                       \
    TIMES##pairs(6, 8, 9, 10, 11, 12, 13) TIMES##pairs(7, 14, 15, 16, 17, 18, 19)                             \
    COLUMNS(6, base, step, 2) COLUMNS(7, base, step, 3)                                                       \
    TIMES##pairs(6, 20, 21, 22, 23, 24, 25) TIMES##pairs(7, 26, 27, 28, 29, 30, 31)
// The second panel of one or of two pairs.
#define SECOND_PANEL1(base, step)                                                                             \
    COLUMNS(6, base, step, 0) COLUMNS(7, base, step, 1) SVE_MM(9, 0, 6) SVE_MM(15, 0, 7)                      \
    COLUMNS(6, base, step, 2) COLUMNS(7, base, step, 3) SVE_MM(21, 0, 6) SVE_MM(27, 0, 7)
#define SECOND_PANEL2(base, step)                                                                             \
    COLUMNS(6, base, step, 0) COLUMNS(7, base, step, 1)                                                       \
    SVE_MM(10, 0, 6) SVE_MM(11, 1, 6) SVE_MM(16, 0, 7) SVE_MM(17, 1, 7)                                       \
    COLUMNS(6, base, step, 2) COLUMNS(7, base, step, 3)                                                       \
    SVE_MM(22, 0, 6) SVE_MM(23, 1, 6) SVE_MM(28, 0, 7) SVE_MM(29, 1, 7)

#define ONE_PANEL(pairs)                                                                                      \
    ROWS##pairs(pairs, 0) PANEL(pairs, "x10", 0) ROWS##pairs(pairs, 1) PANEL(pairs, "x10", 1)
#define TWO_PANELS(pairs)                                                                                     \
    ROWS##pairs(pairs, 0) PANEL(pairs, "x10", 0) SECOND_PANEL##pairs("x11", 0)                                \
    ROWS##pairs(pairs, 1) PANEL(pairs, "x10", 1) SECOND_PANEL##pairs("x11", 1)                                \
    "addvl x11, x11, #8\n\t"

#define SUMS1(OP) OP(8, 0) OP(14, 1) OP(20, 2) OP(26, 3)
#define SUMS2(OP) SUMS1(OP) OP(9, 4) OP(15, 5) OP(21, 6) OP(27, 7)
#define SUMS3(OP) SUMS2(OP) OP(10, 8) OP(16, 9) OP(22, 10) OP(28, 11)
#define SUMS4(OP) SUMS3(OP) OP(11, 12) OP(17, 13) OP(23, 14) OP(29, 15)
#define SUMS5(OP) SUMS4(OP) OP(12, 16) OP(18, 17) OP(24, 18) OP(30, 19)
#define SUMS6(OP) SUMS5(OP) OP(13, 20) OP(19, 21) OP(25, 22) OP(31, 23)
#define SUM_ZERO(z, i) "mov z" #z ".s, #0\n\t"
#define SUM_LOAD(z, i) "ldr z" #z ", [%[sums], #" #i ", mul vl]\n\t"
#define SUM_STORE(z, i) "str z" #z ", [%[sums], #" #i ", mul vl]\n\t"

#define SVE_TILE(pairs, SUMS, loop)                                                                           \
    asm volatile("ptrue p0.b\n\t"                                                                             \
                 "add x9, %[a], #16 * " #pairs "\n\t"                                                         \
                 "mov x10, %[b]\n\t"                                                                          \
                 "add x11, %[b], %[next]\n\t"                                                                 \
                 "add x13, x9, %[bytes]\n\t"                                                                  \
                 "cbnz %[resume], 1f\n\t" SUMS(SUM_ZERO) "b 2f\n1:\n\t" SUMS(SUM_LOAD) "2:\n\t" loop         \
                 "add x9, x9, #32 * " #pairs "\n\t"                                                           \
                 "addvl x10, x10, #8\n\t"                                                                     \
                 "cmp x9, x13\n\t"                                                                            \
                 "b.ne 2b\n\t" SUMS(SUM_STORE)                                                               \
                 :                                                                                            \
                 : [a] "r"(t.a), [b] "r"(t.b), [next] "r"(t.b_next), [bytes] "r"(t.a_bytes),                  \
                   [sums] "r"(t.sums), [resume] "r"(t.resume)                                                 \
                 : "x9", "x10", "x11", "x13", "p0", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8",     \
                   "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",  \
                   "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory")
// clang-format on

// 2 * Pairs rows by one or two panels.
template <int Pairs, int Panels>
MOELAB_INLINE void run_sve_tile(const SveTile& t) {
    if constexpr (Panels == 2) {
        static_assert(Pairs <= 2, "three pairs have sums enough in one panel");
        if constexpr (Pairs == 2) SVE_TILE(2, SUMS4, TWO_PANELS(2));
        if constexpr (Pairs == 1) SVE_TILE(1, SUMS2, TWO_PANELS(1));
    } else {
        if constexpr (Pairs == 6) SVE_TILE(6, SUMS6, ONE_PANEL(6));
        if constexpr (Pairs == 5) SVE_TILE(5, SUMS5, ONE_PANEL(5));
        if constexpr (Pairs == 4) SVE_TILE(4, SUMS4, ONE_PANEL(4));
        if constexpr (Pairs == 3) SVE_TILE(3, SUMS3, ONE_PANEL(3));
        if constexpr (Pairs == 2) SVE_TILE(2, SUMS2, ONE_PANEL(2));
        if constexpr (Pairs == 1) SVE_TILE(1, SUMS1, ONE_PANEL(1));
    }
}

}  // namespace
}  // namespace moelab
