// Inner loops of the BFMMLA kernels, in assembly: gcc 12 spills tiles of 24 accumulators, and some unrolled
// loops get register moves in the accumulator chain. ci/arm_loops.py reads the built object and checks them.
//
// One BFMMLA takes two rows of A (an operand of 2 x 4 BF16), two columns of the weights (2 x 4) and adds the
// 2 x 2 products to four floats (row 0 column 0, row 0 column 1, row 1 column 0, row 1 column 1).
//
//   A        [k / 4][pair of rows][2][4]     one block of 2 * Pairs rows
//   weights  [k / 4][8 columns][4]           one panel; 64 bytes a step, so that a step is one cache line
//   c        [operand of columns][pair of rows]
//
// 24 accumulators leave eight registers for operands. Reusing one of them soon after its last use costs nothing:
// every core with BFMMLA renames registers. Each loop makes four steps of k: the pointers move once (post-index),
// and the end of A is the end of the loop.
//
// c[i] is reloaded from `init` (exact fp32, the partial sums of an earlier block of k) or starts at zero.
#pragma once

#include "isa/tile_asm.h"

namespace moelab {
namespace {

// Order of the 12 x 8 loop. The second and third exist to be timed on cores whose measured rate is half of what
// their manual gives (kernels/README.md).
enum class Order { kColumns, kRows, kSwapped };

#define MM(c, a, b) "bfmmla %[c" #c "].4s, v" #a ".8h, v" #b ".8h\n\t"
#define MM_SWAPPED(c, a, b) "bfmmla %[c" #c "].4s, v" #b ".8h, v" #a ".8h\n\t"

// clang-format off
// One operand of columns (register b) against the pairs of rows in v0...
#define BY1(M, b, c0) M(c0, 0, b)
#define BY2(M, b, c0, c1) BY1(M, b, c0) M(c1, 1, b)
#define BY3(M, b, c0, c1, c2) BY2(M, b, c0, c1) M(c2, 2, b)
#define BY4(M, b, c0, c1, c2, c3) BY3(M, b, c0, c1, c2) M(c3, 3, b)
#define BY5(M, b, c0, c1, c2, c3, c4) BY4(M, b, c0, c1, c2, c3) M(c4, 4, b)
#define BY6(M, b, c0, c1, c2, c3, c4, c5) BY5(M, b, c0, c1, c2, c3, c4) M(c5, 5, b)

// 12 x 8. `lead` loads the first pair of operands of A and B and, in the first step, moves the pointers.
#define STEP_12X8(M, lead_a, lead_b, a, b)                                                                    \
    lead_a LDP(2, 3, A_AT, a + 32) LDP(4, 5, A_AT, a + 64) lead_b                                             \
    BY6(M, 6, 0, 1, 2, 3, 4, 5) BY6(M, 7, 6, 7, 8, 9, 10, 11) LDP(6, 7, B_AT, b + 32)                         \
    BY6(M, 6, 12, 13, 14, 15, 16, 17) BY6(M, 7, 18, 19, 20, 21, 22, 23)
#define LOOP_12X8(STEP, M)                                                                                    \
    STEP(M, LDP_MOVE(0, 1, A_AT, 384), LDP_MOVE(6, 7, B_AT, 256), -384, -256)                                 \
    STEP(M, LDP(0, 1, A_AT, -288), LDP(6, 7, B_AT, -192), -288, -192)                                         \
    STEP(M, LDP(0, 1, A_AT, -192), LDP(6, 7, B_AT, -128), -192, -128)                                         \
    STEP(M, LDP(0, 1, A_AT, -96), LDP(6, 7, B_AT, -64), -96, -64)

// The same products, neighbours sharing the operand of A.
#define ROW2(M, a, c0, c1) M(c0, a, 6) M(c1, a, 7)
#define STEP_12X8_ROWS(M, lead_a, lead_b, a, b)                                                               \
    lead_a LDP(2, 3, A_AT, a + 32) LDP(4, 5, A_AT, a + 64) lead_b                                             \
    ROW2(M, 0, 0, 6) ROW2(M, 1, 1, 7) ROW2(M, 2, 2, 8) ROW2(M, 3, 3, 9) ROW2(M, 4, 4, 10) ROW2(M, 5, 5, 11)   \
    LDP(6, 7, B_AT, b + 32)                                                                                   \
    ROW2(M, 0, 12, 18) ROW2(M, 1, 13, 19) ROW2(M, 2, 14, 20) ROW2(M, 3, 15, 21) ROW2(M, 4, 16, 22)            \
    ROW2(M, 5, 17, 23)

// 10 x 8
#define STEP_10X8(lead_a, lead_b, a, b)                                                                       \
    lead_a LDP(2, 3, A_AT, a + 32) LDR(4, A_AT, a + 64) lead_b                                                \
    BY5(MM, 6, 0, 1, 2, 3, 4) BY5(MM, 7, 5, 6, 7, 8, 9) LDP(6, 7, B_AT, b + 32)                               \
    BY5(MM, 6, 10, 11, 12, 13, 14) BY5(MM, 7, 15, 16, 17, 18, 19)
#define LOOP_10X8                                                                                             \
    STEP_10X8(LDP_MOVE(0, 1, A_AT, 320), LDP_MOVE(6, 7, B_AT, 256), -320, -256)                               \
    STEP_10X8(LDP(0, 1, A_AT, -240), LDP(6, 7, B_AT, -192), -240, -192)                                       \
    STEP_10X8(LDP(0, 1, A_AT, -160), LDP(6, 7, B_AT, -128), -160, -128)                                       \
    STEP_10X8(LDP(0, 1, A_AT, -80), LDP(6, 7, B_AT, -64), -80, -64)

// 8 x 8
#define STEP_8X8(lead_a, lead_b, a, b)                                                                        \
    lead_a LDP(2, 3, A_AT, a + 32) lead_b LDP(6, 7, B_AT, b + 32)                                             \
    BY4(MM, 4, 0, 1, 2, 3) BY4(MM, 5, 4, 5, 6, 7) BY4(MM, 6, 8, 9, 10, 11) BY4(MM, 7, 12, 13, 14, 15)
#define LOOP_8X8                                                                                              \
    STEP_8X8(LDP_MOVE(0, 1, A_AT, 256), LDP_MOVE(4, 5, B_AT, 256), -256, -256)                                \
    STEP_8X8(LDP(0, 1, A_AT, -192), LDP(4, 5, B_AT, -192), -192, -192)                                        \
    STEP_8X8(LDP(0, 1, A_AT, -128), LDP(4, 5, B_AT, -128), -128, -128)                                        \
    STEP_8X8(LDP(0, 1, A_AT, -64), LDP(4, 5, B_AT, -64), -64, -64)

// 8 x 12: a panel and, at B2, half of another one. Loads are spread out: all of them at the head of a step, with three
// moving a pointer in the first, leave a core that takes eight micro-operations a cycle short of multiplications.
#define STEP_8X12(lead_a, lead_b, lead_b2, a, b)                                                              \
    lead_a LDP(2, 3, A_AT, a + 32) lead_b                                                                     \
    BY4(MM, 4, 0, 1, 2, 3) LDP(6, 7, B_AT, b + 32) BY4(MM, 5, 4, 5, 6, 7) lead_b2                             \
    BY4(MM, 6, 8, 9, 10, 11) BY4(MM, 7, 12, 13, 14, 15) BY4(MM, 4, 16, 17, 18, 19) BY4(MM, 5, 20, 21, 22, 23)
#define LOOP_8X12                                                                                             \
    STEP_8X12(LDP_MOVE(0, 1, A_AT, 256), LDP_MOVE(4, 5, B_AT, 256), LDP_MOVE(4, 5, B2_AT, 256), -256, -256)   \
    STEP_8X12(LDP(0, 1, A_AT, -192), LDP(4, 5, B_AT, -192), LDP(4, 5, B2_AT, -192), -192, -192)               \
    STEP_8X12(LDP(0, 1, A_AT, -128), LDP(4, 5, B_AT, -128), LDP(4, 5, B2_AT, -128), -128, -128)               \
    STEP_8X12(LDP(0, 1, A_AT, -64), LDP(4, 5, B_AT, -64), LDP(4, 5, B2_AT, -64), -64, -64)

// 6 x 8 and 6 x 16
#define STEP_6X8(lead_a, lead_b, a, b)                                                                        \
    lead_a LDR(2, A_AT, a + 32) lead_b LDP(6, 7, B_AT, b + 32)                                                \
    BY3(MM, 4, 0, 1, 2) BY3(MM, 5, 3, 4, 5) BY3(MM, 6, 6, 7, 8) BY3(MM, 7, 9, 10, 11)
#define HALF_6X16(lead_b2, b)                                                                                 \
    lead_b2 LDP(6, 7, B2_AT, b + 32)                                                                          \
    BY3(MM, 4, 12, 13, 14) BY3(MM, 5, 15, 16, 17) BY3(MM, 6, 18, 19, 20) BY3(MM, 7, 21, 22, 23)
#define FIRST_6X8 STEP_6X8(LDP_MOVE(0, 1, A_AT, 192), LDP_MOVE(4, 5, B_AT, 256), -192, -256)
#define NEXT_6X8(a, b) STEP_6X8(LDP(0, 1, A_AT, a), LDP(4, 5, B_AT, b), a, b)
#define LOOP_6X8 FIRST_6X8 NEXT_6X8(-144, -192) NEXT_6X8(-96, -128) NEXT_6X8(-48, -64)
#define LOOP_6X16                                                                                             \
    FIRST_6X8 HALF_6X16(LDP_MOVE(4, 5, B2_AT, 256), -256)                                                     \
    NEXT_6X8(-144, -192) HALF_6X16(LDP(4, 5, B2_AT, -192), -192)                                              \
    NEXT_6X8(-96, -128) HALF_6X16(LDP(4, 5, B2_AT, -128), -128)                                               \
    NEXT_6X8(-48, -64) HALF_6X16(LDP(4, 5, B2_AT, -64), -64)

// 4 x 8 and 4 x 24
#define PANEL_4(lead_b, base, b, c0, c1, c2, c3, c4, c5, c6, c7)                                              \
    lead_b LDP(6, 7, base, b + 32)                                                                            \
    BY2(MM, 4, c0, c1) BY2(MM, 5, c2, c3) BY2(MM, 6, c4, c5) BY2(MM, 7, c6, c7)
#define STEP_4X8(lead_a, lead_b, b) lead_a PANEL_4(lead_b, B_AT, b, 0, 1, 2, 3, 4, 5, 6, 7)
#define WIDE_4X24(lead_b2, lead_b3, b)                                                                        \
    PANEL_4(lead_b2, B2_AT, b, 8, 9, 10, 11, 12, 13, 14, 15)                                                  \
    PANEL_4(lead_b3, B3_AT, b, 16, 17, 18, 19, 20, 21, 22, 23)
#define FIRST_4X8 STEP_4X8(LDP_MOVE(0, 1, A_AT, 128), LDP_MOVE(4, 5, B_AT, 256), -256)
#define NEXT_4X8(a, b) STEP_4X8(LDP(0, 1, A_AT, a), LDP(4, 5, B_AT, b), b)
#define LOOP_4X8 FIRST_4X8 NEXT_4X8(-96, -192) NEXT_4X8(-64, -128) NEXT_4X8(-32, -64)
#define LOOP_4X24                                                                                             \
    FIRST_4X8 WIDE_4X24(LDP_MOVE(4, 5, B2_AT, 256), LDP_MOVE(4, 5, B3_AT, 256), -256)                         \
    NEXT_4X8(-96, -192) WIDE_4X24(LDP(4, 5, B2_AT, -192), LDP(4, 5, B3_AT, -192), -192)                       \
    NEXT_4X8(-64, -128) WIDE_4X24(LDP(4, 5, B2_AT, -128), LDP(4, 5, B3_AT, -128), -128)                       \
    NEXT_4X8(-32, -64) WIDE_4X24(LDP(4, 5, B2_AT, -64), LDP(4, 5, B3_AT, -64), -64)

// 2 x 8 and 2 x 24: one load of A serves two steps
#define PANEL_2(a, lead_b, base, b, c0, c1, c2, c3)                                                           \
    lead_b LDP(6, 7, base, b + 32) MM(c0, a, 4) MM(c1, a, 5) MM(c2, a, 6) MM(c3, a, 7)
#define WIDE_2X24(a, lead_b2, lead_b3, b)                                                                     \
    PANEL_2(a, lead_b2, B2_AT, b, 4, 5, 6, 7) PANEL_2(a, lead_b3, B3_AT, b, 8, 9, 10, 11)
#define FIRST_2X8 LDP_MOVE(0, 1, A_AT, 64) PANEL_2(0, LDP_MOVE(4, 5, B_AT, 256), B_AT, -256, 0, 1, 2, 3)
#define NEXT_2X8(a, b) PANEL_2(a, LDP(4, 5, B_AT, b), B_AT, b, 0, 1, 2, 3)
#define LOOP_2X8 FIRST_2X8 NEXT_2X8(1, -192) LDP(0, 1, A_AT, -32) NEXT_2X8(0, -128) NEXT_2X8(1, -64)
#define NEXT_2X24(a, b) NEXT_2X8(a, b) WIDE_2X24(a, LDP(4, 5, B2_AT, b), LDP(4, 5, B3_AT, b), b)
#define LOOP_2X24                                                                                             \
    FIRST_2X8 WIDE_2X24(0, LDP_MOVE(4, 5, B2_AT, 256), LDP_MOVE(4, 5, B3_AT, 256), -256)                      \
    NEXT_2X24(1, -192) LDP(0, 1, A_AT, -32) NEXT_2X24(0, -128) NEXT_2X24(1, -64)
// clang-format on

// Steps of the loops above: k of a block is a multiple of this.
constexpr int kTileK = 16;

// Operands: how many operands of two columns the tile is wide.
template <int Pairs, int Operands, Order O = Order::kColumns>
MOELAB_INLINE void run_tile(const TileArgs& t, float32x4_t* c) {
    if constexpr (Pairs == 6) {
        static_assert(Operands == 4, "12 x 8");
        if constexpr (O == Order::kColumns) {
            TILE(24, "", LOOP_12X8(STEP_12X8, MM));
        } else if constexpr (O == Order::kRows) {
            TILE(24, "", LOOP_12X8(STEP_12X8_ROWS, MM));
        } else {
            TILE(24, "", LOOP_12X8(STEP_12X8, MM_SWAPPED));
        }
    } else if constexpr (Pairs == 5) {
        static_assert(Operands == 4, "10 x 8");
        TILE(20, "", LOOP_10X8);
    } else if constexpr (Pairs == 4) {
        static_assert(Operands == 4 || Operands == 6, "8 x 8 or 8 x 12");
        if constexpr (Operands == 6) {
            TILE(24, "", LOOP_8X12);
        } else {
            TILE(16, "", LOOP_8X8);
        }
    } else if constexpr (Pairs == 3) {
        static_assert(Operands == 4 || Operands == 8, "6 x 8 or 6 x 16");
        if constexpr (Operands == 8) {
            TILE(24, "", LOOP_6X16);
        } else {
            TILE(12, "", LOOP_6X8);
        }
    } else if constexpr (Pairs == 2) {
        static_assert(Operands == 4 || Operands == 12, "4 x 8 or 4 x 24");
        if constexpr (Operands == 12) {
            TILE(24, "", LOOP_4X24);
        } else {
            TILE(8, "", LOOP_4X8);
        }
    } else {
        static_assert(Operands == 4 || Operands == 12, "2 x 8 or 2 x 24");
        if constexpr (Operands == 12) {
            TILE(12, "", LOOP_2X24);
        } else {
            TILE(4, "", LOOP_2X8);
        }
    }
}

}  // namespace
}  // namespace moelab
