// Packing weights with AVX-512, for panels of [k / 2][32 columns][2]: any type, rows or columns contiguous.
//
// A group of panels is packed a block of k after the other into a small buffer, from which it goes on to its place and
// into the checksums. So the sources are read in pieces that prefetches can follow, what is written is written in long
// runs, and eight panels' checksums, each a chain of slow multiplies, are computed side by side.
#pragma once

#include "checksum.h"
#include "isa/vec_avx512.h"
#include "moelab.h"

namespace moelab {
namespace {

namespace pack512 {

constexpr int nr = 32, half = 16;  // columns of a panel, and of its gates or ups
constexpr int64_t line = nr * 4;   // bytes of a pair of k
constexpr int64_t block_k = 256;   // per portion: what is prefetched, packed and checked stays in L2
constexpr int64_t block_bytes = block_k / 2 * line;
constexpr int64_t rows_ahead = 16;  // from the k that is packed to the one that is prefetched, columns contiguous

MOELAB_INLINE uint32_t first(int64_t n) {  // a mask of the first n of at most 32
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1u;
}
MOELAB_INLINE __mmask16 mask16(uint32_t bits) {
    return static_cast<__mmask16>(bits);
}

// fp32 rounded to nearest even in the upper halves; the lower ones hold anything. Denormals are rounded too, and NaN
// stays NaN, as float_to_bf16 has it; the conversions of AVX512_BF16 would flush denormals.
MOELAB_INLINE __m512i rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}

// Upper halves of `even` below those of `odd`.
MOELAB_INLINE __m512i pairs(__m512i even, __m512i odd) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, _mm512_set1_epi32(-0x10000), 0xd8);
}

// Up to sixteen weights from `at` on, as BF16 in the upper halves.
template <int dtype>
MOELAB_INLINE __m512i load16(const void* data, int64_t at, uint32_t mask) {
    if constexpr (dtype == MOELAB_FP32) {
        return rounded(_mm512_maskz_loadu_ps(mask16(mask), static_cast<const float*>(data) + at));
    } else {
        const __m256i bits = _mm256_maskz_loadu_epi16(mask16(mask), static_cast<const uint16_t*>(data) + at);
        if constexpr (dtype == MOELAB_FP16) return rounded(_mm512_cvtph_ps(bits));
        return _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
    }
}

// Up to 32 weights from `at` on as pairs of neighbours: pair pair_of<dtype>(i) in lane i.
template <int dtype>
MOELAB_INLINE __m512i load_pairs(const void* data, int64_t at, uint32_t mask) {
    if constexpr (dtype == MOELAB_BF16) {
        return _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + at);
    } else {
        const __m512 a = _mm512_castsi512_ps(load16<dtype>(data, at, mask & 0xffff));
        const __m512 b = _mm512_castsi512_ps(load16<dtype>(data, at + 16, mask >> 16));
        return pairs(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                     _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    }
}
template <int dtype>
constexpr int pair_of(int lane) {
    return dtype == MOELAB_BF16 ? lane : lane / 4 * 2 + lane % 2 + (lane % 4 >= 2 ? 8 : 0);
}

// Transposes 16 x 16 words.
MOELAB_INLINE void transpose(__m512i (&r)[16]) {
    __m512i t[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]), d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);  // words 0, 4, 8, 12 of four rows
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// Half of a panel. Its columns with a row of the matrix come first.
struct Half {
    int64_t row;       // source row of the first column
    uint32_t columns;  // mask of those that have one
};
MOELAB_INLINE Half half_of(const int64_t* source_row) {
    int n = 0;
    while (n < half && source_row[n] >= 0) ++n;
    return {n ? source_row[0] : 0, first(n)};
}

// k [k0, k1) of one panel, along the rows.
template <int dtype>
void pack_rows_of_panel(const PackWeights& p, const int64_t* source_row, int64_t k0, int64_t k1, char* out) {
    const moelab_matrix& m = *p.matrix;
    constexpr int64_t size = dtype == MOELAB_FP32 ? 4 : 2;
    const auto* const data = static_cast<const char*>(m.data);
    for (int c = 0; c < nr; c += half) {
        for (int i = 0; i < half; ++i) {  // what the next block takes: no prefetcher follows so many rows
            const int64_t row = source_row[c + i], end = k1 + block_k < p.k ? k1 + block_k : p.k;
            for (int64_t k = k1; row >= 0 && k < end; k += 64 / size)
                __builtin_prefetch(data + (row * m.row_stride + k) * size, 0, 2);
        }
        for (int64_t k = k0; k < k1; k += 32) {
            const uint32_t inside = first(p.k - k);
            __m512i r[16];
#pragma GCC unroll 16
            for (int i = 0; i < half; ++i) {
                const int64_t row = source_row[c + i];
                r[i] = load_pairs<dtype>(data, row >= 0 ? row * m.row_stride + k : 0, row >= 0 ? inside : 0);
            }
            transpose(r);
            char* const to = out + (k - k0) / 2 * line + c * 4;
            if (k + 32 <= k1) {
#pragma GCC unroll 16
                for (int i = 0; i < 16; ++i) _mm512_store_si512(to + pair_of<dtype>(i) * line, r[i]);
            } else {  // k_align is 16
#pragma GCC unroll 16
                for (int i = 0; i < 16; ++i)
                    if (pair_of<dtype>(i) < 8) _mm512_store_si512(to + pair_of<dtype>(i) * line, r[i]);
            }
        }
    }
}

// One pair of k of half a panel, along the columns; `odd` says whether the second k is inside the matrix.
template <int dtype>
MOELAB_INLINE void pack_columns_of_half(const void* data, int64_t at, int64_t stride, uint32_t columns, bool odd,
                                        char* out) {
    const __m512i even = load16<dtype>(data, at, columns);
    _mm512_store_si512(out, pairs(even, load16<dtype>(data, odd ? at + stride : at, odd ? columns : 0)));
}

// One pair of k of a panel whose gates and ups take turns in the matrix.
template <int dtype>
MOELAB_INLINE void pack_interleaved_columns(const void* data, int64_t at, int64_t stride, uint32_t columns, bool odd,
                                            char* out) {
    __m512i gate[2], up[2];  // of even k, of odd k; BF16 in the upper halves
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        const int64_t from = i && odd ? at + stride : at;
        const uint32_t mask = i && !odd ? 0 : columns;
        if constexpr (dtype == MOELAB_BF16) {
            up[i] = _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(data) + from);
            gate[i] = _mm512_slli_epi32(up[i], 16);
        } else {
            const __m512i a = load16<dtype>(data, from, mask & 0xffff);
            const __m512i b = load16<dtype>(data, from + 16, mask >> 16);
            const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            gate[i] = _mm512_permutex2var_epi32(a, evens, b);
            up[i] = _mm512_permutex2var_epi32(a, _mm512_or_si512(evens, _mm512_set1_epi32(1)), b);
        }
    }
    _mm512_store_si512(out, pairs(gate[0], gate[1]));
    _mm512_store_si512(out + 64, pairs(up[0], up[1]));
}

// k [k0, k1) of panels that lie `block_bytes` apart, along the columns.
template <int dtype>
void pack_columns(const PackWeights& p, int64_t k0, int64_t k1, char* out) {
    const moelab_matrix& m = *p.matrix;
    constexpr int64_t size = dtype == MOELAB_FP32 ? 4 : 2;
    const auto* const data = static_cast<const char*>(m.data);
    Half halves[pack_group_most][2];
    bool interleaved[pack_group_most];
    for (int64_t i = 0; i < p.panels; ++i) {
        const int64_t* const row = p.source_row + i * nr;
        halves[i][0] = half_of(row);
        halves[i][1] = half_of(row + half);
        interleaved[i] = row[1] == row[0] + 2;
    }
    for (int64_t k = k0; k < k1; k += 2, out += line) {
        const bool even = k < p.k, odd = k + 1 < p.k;
        for (int64_t i = 0; i < p.panels; ++i) {
            char* const to = out + i * block_bytes;
            for (int64_t next = k + rows_ahead; next < k + rows_ahead + 2; ++next) {
                if (next >= p.k) break;
                const char* const lines = data + (halves[i][0].row + next * m.col_stride) * size;
                __builtin_prefetch(lines, 0, 2);
                if (size == 4) __builtin_prefetch(lines + 64, 0, 2);
                if (interleaved[i] || halves[i][1].row == halves[i][0].row + half) continue;
                __builtin_prefetch(data + (halves[i][1].row + next * m.col_stride) * size, 0, 2);
            }
            if (interleaved[i]) {
                const uint32_t half_mask = halves[i][0].columns;
                const uint32_t columns = even ? first(2 * __builtin_popcount(half_mask)) : 0;
                pack_interleaved_columns<dtype>(data, halves[i][0].row + k * m.col_stride, m.col_stride, columns, odd,
                                                to);
            } else {
                for (int h = 0; h < 2; ++h) {
                    const Half& part = halves[i][h];
                    pack_columns_of_half<dtype>(data, part.row + k * m.col_stride, m.col_stride,
                                                even ? part.columns : 0, odd, to + h * 64);
                }
            }
        }
    }
}

// The checksums of eight panels that lie `block_bytes` apart: two to a register.
MOELAB_INLINE void add_eight(__m512i (&lanes)[4], const char* data, int64_t bytes) {
    const __m512i prime = _mm512_set1_epi64(static_cast<int64_t>(checksum_prime));
    const auto words = [](const char* panel) __attribute__((always_inline)) {
        const __m512i low = _mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(panel)));
        return _mm512_inserti64x4(low, _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + block_bytes)), 1);
    };
    for (int64_t at = 0; at < bytes; at += 32) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            lanes[i] = _mm512_mullo_epi64(_mm512_xor_si512(lanes[i], words(data + 2 * i * block_bytes + at)), prime);
            lanes[i] = _mm512_xor_si512(lanes[i], _mm512_srli_epi64(lanes[i], 29));
        }
    }
}

// Past the caches: an ordinary store reads each line first, which makes the copy half as fast.
MOELAB_INLINE void store_run(char* to, const char* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 256) {
#pragma GCC unroll 4
        for (int i = 0; i < 256; i += 64)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + i), _mm512_load_si512(from + at + i));
    }
}

template <int dtype>
void pack(const PackWeights& p) {
    alignas(64) char buffer[pack_group_most * block_bytes];
    __m512i lanes[4];
    Checksum sums[pack_group_most];
    for (auto& pair : lanes) pair = _mm512_setr_epi64(1, 2, 3, 4, 1, 2, 3, 4);
    const int64_t panel_bytes = p.k_padded / 2 * line;
    for (int64_t k0 = 0; k0 < p.k_padded; k0 += block_k) {
        const int64_t k1 = k0 + block_k < p.k_padded ? k0 + block_k : p.k_padded;
        if (p.matrix->col_stride == 1) {
            for (int64_t i = 0; i < p.panels; ++i)
                pack_rows_of_panel<dtype>(p, p.source_row + i * nr, k0, k1, buffer + i * block_bytes);
        } else {
            pack_columns<dtype>(p, k0, k1, buffer);
        }
        const int64_t bytes = (k1 - k0) / 2 * line;
        if (p.panels == pack_group_most) add_eight(lanes, buffer, bytes);
        for (int64_t i = 0; i < p.panels; ++i) {
            const char* const from = buffer + i * block_bytes;
            if (p.panels < pack_group_most) sums[i].add(from, bytes);
            store_run(static_cast<char*>(p.out) + i * panel_bytes + k0 / 2 * line, from, bytes);
        }
    }
    _mm_sfence();
    alignas(64) uint64_t ends[pack_group_most][4];
    static_assert(sizeof ends == sizeof lanes, "two panels to a register");
    for (int i = 0; i < 4; ++i) _mm512_store_si512(ends[2 * i], lanes[i]);
    for (int64_t i = 0; i < p.panels; ++i)
        p.checksums[i] = (p.panels == pack_group_most ? Checksum(ends[i], panel_bytes) : sums[i]).value();
}

}  // namespace pack512

void avx512_pack_weights(const PackWeights& p) {
    switch (p.matrix->dtype) {
        case MOELAB_BF16: return pack512::pack<MOELAB_BF16>(p);
        case MOELAB_FP16: return pack512::pack<MOELAB_FP16>(p);
        default: return pack512::pack<MOELAB_FP32>(p);
    }
}

}  // namespace
}  // namespace moelab
