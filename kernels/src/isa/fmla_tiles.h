// Inner loops of the FMLA kernels (fp32, for cores without BF16), in assembly for the reasons that tile_asm.h gives.
//
//   A        [k][rows]        one block of 12, 8, 4, 2 or 1 rows, fp32
//   weights  [k][8 columns]   one panel, BF16: 16 bytes a step
//   c        [four columns][row]
//
// A BF16 becomes an fp32 when it is interleaved with zeros (v7): ZIP runs on every SIMD pipe, SHLL on half of
// them. Each value of A multiplies four columns as a lane (FMLA by element). Each loop makes four steps of k.
#pragma once

#include "isa/tile_asm.h"

namespace moelab {
namespace {

#define FMLA(c, b, a, lane) "fmla %[c" #c "].4s, v" #b ".4s, v" #a ".s[" #lane "]\n\t"
#define WIDEN(low, high, raw) "zip1 v" #low ".8h, v7.8h, v" #raw ".8h\n\tzip2 v" #high ".8h, v7.8h, v" #raw ".8h\n\t"
#define LDR_MOVE(r0, base, bytes) "ldr q" #r0 ", [" base "], #" #bytes "\n\t"
#define FMLA_SETUP "movi v7.2d, #0\n\t"

// clang-format off
// Four columns (register b) against four rows (the lanes of a).
#define ROWS4(b, a, c0, c1, c2, c3) FMLA(c0, b, a, 0) FMLA(c1, b, a, 1) FMLA(c2, b, a, 2) FMLA(c3, b, a, 3)

// 12 x 8
#define STEP_FMLA_12X8(lead_a, lead_b, raw, a)                                                                \
    lead_a LDR(2, A_AT, a + 32) lead_b WIDEN(4, 5, raw)                                                       \
    ROWS4(4, 0, 0, 1, 2, 3) ROWS4(4, 1, 4, 5, 6, 7) ROWS4(4, 2, 8, 9, 10, 11)                                 \
    ROWS4(5, 0, 12, 13, 14, 15) ROWS4(5, 1, 16, 17, 18, 19) ROWS4(5, 2, 20, 21, 22, 23)
#define LOOP_FMLA_12X8                                                                                        \
    STEP_FMLA_12X8(LDP_MOVE(0, 1, A_AT, 192), LDP_MOVE(3, 6, B_AT, 64), 3, -192)                              \
    STEP_FMLA_12X8(LDP(0, 1, A_AT, -144), "", 6, -144)                                                        \
    STEP_FMLA_12X8(LDP(0, 1, A_AT, -96), LDP(3, 6, B_AT, -32), 3, -96)                                        \
    STEP_FMLA_12X8(LDP(0, 1, A_AT, -48), "", 6, -48)

// 8 x 8
#define STEP_FMLA_8X8(lead_a, lead_b, raw)                                                                    \
    lead_a lead_b WIDEN(4, 5, raw)                                                                            \
    ROWS4(4, 0, 0, 1, 2, 3) ROWS4(4, 1, 4, 5, 6, 7) ROWS4(5, 0, 8, 9, 10, 11) ROWS4(5, 1, 12, 13, 14, 15)
#define LOOP_FMLA_8X8                                                                                         \
    STEP_FMLA_8X8(LDP_MOVE(0, 1, A_AT, 128), LDP_MOVE(3, 6, B_AT, 64), 3)                                     \
    STEP_FMLA_8X8(LDP(0, 1, A_AT, -96), "", 6)                                                                \
    STEP_FMLA_8X8(LDP(0, 1, A_AT, -64), LDP(3, 6, B_AT, -32), 3)                                              \
    STEP_FMLA_8X8(LDP(0, 1, A_AT, -32), "", 6)

// 4 x 8 and 4 x 24
#define PANEL_FMLA_4(lead, low, high, a, c0, c1, c2, c3, c4, c5, c6, c7)                                      \
    lead WIDEN(low, high, 6) ROWS4(low, a, c0, c1, c2, c3) ROWS4(high, a, c4, c5, c6, c7)
#define STEP_FMLA_4X8(lead, a) PANEL_FMLA_4(lead, 4, 5, a, 0, 1, 2, 3, 4, 5, 6, 7)
#define WIDE_FMLA_4X24(lead2, lead3, a)                                                                       \
    PANEL_FMLA_4(lead2, 2, 3, a, 8, 9, 10, 11, 12, 13, 14, 15)                                                \
    PANEL_FMLA_4(lead3, 4, 5, a, 16, 17, 18, 19, 20, 21, 22, 23)
#define FIRST_FMLA_4X8 LDP_MOVE(0, 1, A_AT, 64) STEP_FMLA_4X8(LDR_MOVE(6, B_AT, 64), 0)
#define THIRD_FMLA_4X8 LDP(0, 1, A_AT, -32) STEP_FMLA_4X8(LDR(6, B_AT, -32), 0)
#define NEXT_FMLA_4X8(b) STEP_FMLA_4X8(LDR(6, B_AT, b), 1)
#define NEXT_WIDE_FMLA_4X24(b, a) WIDE_FMLA_4X24(LDR(6, B2_AT, b), LDR(6, B3_AT, b), a)
#define LOOP_FMLA_4X8 FIRST_FMLA_4X8 NEXT_FMLA_4X8(-48) THIRD_FMLA_4X8 NEXT_FMLA_4X8(-16)
#define LOOP_FMLA_4X24                                                                                        \
    FIRST_FMLA_4X8 WIDE_FMLA_4X24(LDR_MOVE(6, B2_AT, 64), LDR_MOVE(6, B3_AT, 64), 0)                          \
    NEXT_FMLA_4X8(-48) NEXT_WIDE_FMLA_4X24(-48, 1) THIRD_FMLA_4X8 NEXT_WIDE_FMLA_4X24(-32, 0)                 \
    NEXT_FMLA_4X8(-16) NEXT_WIDE_FMLA_4X24(-16, 1)

// 2 x 8 and 2 x 24: an operand of A holds two rows of two steps, lanes l0 and l1 of one step
#define PANEL_FMLA_2(lead, low, high, a, l0, l1, c0, c1, c2, c3)                                              \
    lead WIDEN(low, high, 6)                                                                                  \
    FMLA(c0, low, a, l0) FMLA(c1, low, a, l1) FMLA(c2, high, a, l0) FMLA(c3, high, a, l1)
#define STEP_FMLA_2X8(lead, a, l0, l1) PANEL_FMLA_2(lead, 4, 5, a, l0, l1, 0, 1, 2, 3)
#define WIDE_FMLA_2X24(lead2, lead3, a, l0, l1)                                                               \
    PANEL_FMLA_2(lead2, 2, 3, a, l0, l1, 4, 5, 6, 7) PANEL_FMLA_2(lead3, 4, 5, a, l0, l1, 8, 9, 10, 11)
#define FIRST_FMLA_2X8 LDP_MOVE(0, 1, A_AT, 32) STEP_FMLA_2X8(LDR_MOVE(6, B_AT, 64), 0, 0, 1)
#define NEXT_FMLA_2X8(b, a, l0, l1) STEP_FMLA_2X8(LDR(6, B_AT, b), a, l0, l1)
#define NEXT_FMLA_2X24(b, a, l0, l1)                                                                          \
    NEXT_FMLA_2X8(b, a, l0, l1) WIDE_FMLA_2X24(LDR(6, B2_AT, b), LDR(6, B3_AT, b), a, l0, l1)
#define LOOP_FMLA_2X8                                                                                         \
    FIRST_FMLA_2X8 NEXT_FMLA_2X8(-48, 0, 2, 3) NEXT_FMLA_2X8(-32, 1, 0, 1) NEXT_FMLA_2X8(-16, 1, 2, 3)
#define LOOP_FMLA_2X24                                                                                        \
    FIRST_FMLA_2X8 WIDE_FMLA_2X24(LDR_MOVE(6, B2_AT, 64), LDR_MOVE(6, B3_AT, 64), 0, 0, 1)                    \
    NEXT_FMLA_2X24(-48, 0, 2, 3) NEXT_FMLA_2X24(-32, 1, 0, 1) NEXT_FMLA_2X24(-16, 1, 2, 3)

// 1 x 8 and 1 x 24: an operand of A holds four steps
#define PANEL_FMLA_1(lead, low, high, lane, c0, c1)                                                           \
    lead WIDEN(low, high, 6) FMLA(c0, low, 0, lane) FMLA(c1, high, 0, lane)
#define STEP_FMLA_1X8(lead, lane) PANEL_FMLA_1(lead, 4, 5, lane, 0, 1)
#define WIDE_FMLA_1X24(lead2, lead3, lane)                                                                    \
    PANEL_FMLA_1(lead2, 2, 3, lane, 2, 3) PANEL_FMLA_1(lead3, 4, 5, lane, 4, 5)
#define FIRST_FMLA_1X8 LDR_MOVE(0, A_AT, 16) STEP_FMLA_1X8(LDR_MOVE(6, B_AT, 64), 0)
#define NEXT_FMLA_1X8(b, lane) STEP_FMLA_1X8(LDR(6, B_AT, b), lane)
#define NEXT_FMLA_1X24(b, lane)                                                                               \
    NEXT_FMLA_1X8(b, lane) WIDE_FMLA_1X24(LDR(6, B2_AT, b), LDR(6, B3_AT, b), lane)
#define LOOP_FMLA_1X8 FIRST_FMLA_1X8 NEXT_FMLA_1X8(-48, 1) NEXT_FMLA_1X8(-32, 2) NEXT_FMLA_1X8(-16, 3)
#define LOOP_FMLA_1X24                                                                                        \
    FIRST_FMLA_1X8 WIDE_FMLA_1X24(LDR_MOVE(6, B2_AT, 64), LDR_MOVE(6, B3_AT, 64), 0)                          \
    NEXT_FMLA_1X24(-48, 1) NEXT_FMLA_1X24(-32, 2) NEXT_FMLA_1X24(-16, 3)
// clang-format on

// Steps of the loops above: k of a block is a multiple of this.
constexpr int kTileK = 4;

// Panels: 1, or 3 for the wide tiles of few rows.
template <int Rows, int Panels>
MOELAB_INLINE void run_tile(const TileArgs& t, float32x4_t* c) {
    static_assert(Panels == 1 || (Panels == 3 && Rows <= 4), "a tile that exists");
    if constexpr (Rows == 12) {
        TILE(24, FMLA_SETUP, LOOP_FMLA_12X8);
    } else if constexpr (Rows == 8) {
        TILE(16, FMLA_SETUP, LOOP_FMLA_8X8);
    } else if constexpr (Rows == 4 && Panels == 3) {
        TILE(24, FMLA_SETUP, LOOP_FMLA_4X24);
    } else if constexpr (Rows == 4) {
        TILE(8, FMLA_SETUP, LOOP_FMLA_4X8);
    } else if constexpr (Rows == 2 && Panels == 3) {
        TILE(12, FMLA_SETUP, LOOP_FMLA_2X24);
    } else if constexpr (Rows == 2) {
        TILE(4, FMLA_SETUP, LOOP_FMLA_2X8);
    } else if constexpr (Panels == 3) {
        static_assert(Rows == 1, "12, 8, 4, 2 or 1 rows");
        TILE(6, FMLA_SETUP, LOOP_FMLA_1X24);
    } else {
        static_assert(Rows == 1, "12, 8, 4, 2 or 1 rows");
        TILE(2, FMLA_SETUP, LOOP_FMLA_1X8);
    }
}

}  // namespace
}  // namespace moelab
