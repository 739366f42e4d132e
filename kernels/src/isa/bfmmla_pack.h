// Gathering rows into packed A of the BFMMLA kernels: blocks of rows (bfmmla_blocks.h), each
// [k / 4][pair of rows][2][4].
#pragma once

#include "isa/arm_rows.h"
#include "isa/bfmmla_blocks.h"

namespace moelab {
namespace {

MOELAB_INLINE void interleave(uint16x8_t row0, uint16x8_t row1, uint16_t* to, int64_t step) {
    const uint64x2_t a = vreinterpretq_u64_u16(row0), b = vreinterpretq_u64_u16(row1);
    vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
    vst1q_u16(to + step, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
}

// Two rows, or one and zeros, with nothing to scale: whole groups of 16 first.
template <bool Both>
MOELAB_INLINE int64_t pack_plain(const uint16_t* row0, const uint16_t* row1, int64_t k, uint16_t* to, int64_t step) {
    const auto second = [=](int64_t i) { return Both ? vld1q_u16(row1 + i) : vdupq_n_u16(0); };
    int64_t i = 0;
    for (; i + 16 <= k; i += 16, to += 4 * step) {
        interleave(vld1q_u16(row0 + i), second(i), to, step);
        interleave(vld1q_u16(row0 + i + 8), second(i + 8), to + 2 * step, step);
    }
    return i;
}

void pack_rows(const PackRows& job) {
    int64_t pairs = 0;
    for (int64_t block = 0; block < job.rows; block += 2 * pairs) {
        pairs = block_pairs(block, job.rows);
        const int64_t step = 8 * pairs;
        for (int64_t pair = 0; pair < pairs; pair++) {
            uint16_t* to = static_cast<uint16_t*>(job.a) + block * job.k_padded + 8 * pair;
            const SourceRow first(job, block + 2 * pair), second(job, block + 2 * pair + 1);
            int64_t k = 0;
            if (first.plain() && second.plain()) {
                k = pack_plain<true>(first.data(), second.data(), job.k, to, step);
            } else if (first.plain() && second.data() == nullptr) {  // an odd number of rows
                k = pack_plain<false>(first.data(), nullptr, job.k, to, step);
            }
            for (; k < job.k_padded; k += 8) interleave(first.at(k), second.at(k), to + k / 4 * step, step);
        }
    }
}

}  // namespace
}  // namespace moelab
