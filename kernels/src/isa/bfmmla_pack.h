// Gathering rows into packed A of the BFMMLA kernels: blocks of `block_rows` rows (the last block: what is left,
// rounded up to two), each [k / 4][pair of rows][2][4].
#pragma once

#include "isa/arm_rows.h"

namespace moelab {
namespace {

MOELAB_INLINE void interleave(uint16x8_t row0, uint16x8_t row1, uint16_t* to, int64_t step) {
    const uint64x2_t a = vreinterpretq_u64_u16(row0), b = vreinterpretq_u64_u16(row1);
    vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
    vst1q_u16(to + step, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
}

// Two rows, both there, with nothing to scale: whole groups of 16 first.
MOELAB_INLINE int64_t pack_plain_pair(const uint16_t* row0, const uint16_t* row1, int64_t k, uint16_t* to,
                                      int64_t step) {
    int64_t i = 0;
    for (; i + 16 <= k; i += 16, to += 4 * step) {
        interleave(vld1q_u16(row0 + i), vld1q_u16(row1 + i), to, step);
        interleave(vld1q_u16(row0 + i + 8), vld1q_u16(row1 + i + 8), to + 2 * step, step);
    }
    return i;
}

void pack_pairs(const PackRows& p, int64_t block_rows) {
    for (int64_t row = 0; row < p.rows; row += 2) {
        const int64_t block = row - row % block_rows;
        const int64_t pairs = (min_of(block_rows, p.rows - block) + 1) / 2;
        const int64_t step = 8 * pairs;
        uint16_t* to = static_cast<uint16_t*>(p.a) + block * p.k_padded + 8 * ((row - block) / 2);
        const SourceRow first(p, row), second(p, row + 1);
        int64_t k = 0;
        if (first.plain() && second.plain()) k = pack_plain_pair(first.data(), second.data(), p.k, to, step);
        for (; k < p.k_padded; k += 8) interleave(first.at(k), second.at(k), to + k / 4 * step, step);
    }
}

}  // namespace
}  // namespace moelab
