// Packing: unpacking is its exact inverse, from any type and strides; what is not whole is refused.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "layer_case.h"

namespace {

struct Source {  // one matrix in some type and some layout
    Guarded memory;
    moelab_matrix view;
};

uint16_t to_fp16(float value) {  // exact values only
    if (value == 0) return std::signbit(value) ? 0x8000 : 0;
    int exponent;
    const float m = std::frexp(std::fabs(value), &exponent);
    const int mantissa = static_cast<int>(std::ldexp(m, 11)) & 0x3ff;
    return static_cast<uint16_t>((std::signbit(value) ? 0x8000 : 0) | (exponent + 14) << 10 | mantissa);
}

enum Layout { kRows, kTransposed, kGaps, kReversed, kLayouts };

// Room for a matrix, filled with 0x7f.
Source room(int64_t rows, int64_t columns, int dtype, int layout) {
    int64_t row_stride = columns, col_stride = 1, first = 0;
    if (layout == kTransposed) row_stride = 1, col_stride = rows;
    if (layout == kGaps) col_stride = 3, row_stride = 3 * columns + 5;
    if (layout == kReversed) row_stride = -columns, first = (rows - 1) * columns;
    const int64_t last_row = (rows - 1) * std::abs(row_stride), last_column = (columns - 1) * col_stride;
    const int64_t size = last_row + last_column + 1;
    const size_t width = dtype == MOELAB_FP32 ? 4 : 2;
    Source s;
    s.memory = Guarded(static_cast<size_t>(size) * width, Guarded::kEnd, width);
    std::memset(s.memory.data(), 0x7f, s.memory.size());
    s.view = {s.memory.as<char>() + first * static_cast<int64_t>(width), dtype, row_stride, col_stride};
    return s;
}

Source store(const std::vector<float>& values, int64_t rows, int64_t columns, int dtype, int layout) {
    Source s = room(rows, columns, dtype, layout);
    const int64_t width = dtype == MOELAB_FP32 ? 4 : 2;
    const int64_t first = (static_cast<const char*>(s.view.data) - s.memory.as<char>()) / width;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const int64_t at = first + r * s.view.row_stride + c * s.view.col_stride;
            const float v = values[static_cast<size_t>(r * columns + c)];
            if (dtype == MOELAB_FP32) s.memory.as<float>()[at] = v;
            if (dtype == MOELAB_FP16) s.memory.as<uint16_t>()[at] = to_fp16(v);
            if (dtype == MOELAB_BF16) s.memory.as<uint16_t>()[at] = reference::to_bf16(v);
        }
    s.memory.read_only();
    return s;
}

// Any bits at all: NaN, denormals and infinities of every type.
Source any_bits(Random& random, int64_t rows, int64_t columns, int dtype, int layout) {
    Source s = room(rows, columns, dtype, layout);
    for (size_t i = 0; i + 2 <= s.memory.size(); i += 2)
        s.memory.as<uint16_t>()[i / 2] = static_cast<uint16_t>(random.below(65536));
    s.memory.read_only();
    return s;
}

// The same matrix with gaps between its elements.
Source with_gaps(const Source& from, int64_t rows, int64_t columns) {
    const size_t width = from.view.dtype == MOELAB_FP32 ? 4 : 2;
    Source s = room(rows, columns, from.view.dtype, kGaps);
    const auto at = [&](const moelab_matrix& m, int64_t r, int64_t c) {
        return (r * m.row_stride + c * m.col_stride) * static_cast<int64_t>(width);
    };
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            std::memcpy(s.memory.as<char>() + at(s.view, r, c),
                        static_cast<const char*>(from.view.data) + at(from.view, r, c), width);
    s.memory.read_only();
    return s;
}

// One expert, packed: every byte, in memory that was not zero before.
std::vector<char> packed_bytes(int isa, int64_t hidden, int64_t intermediate, const Source& w13, const Source& w2,
                               bool interleaved, int threads) {
    const moelab_layer layer = {isa, MOELAB_SILU, 1, hidden, intermediate, 0, 0, 0};
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    const Guarded packed(bytes, Guarded::kEnd, 64);
    std::memset(packed.data(), 0x7f, bytes);
    CHECK_STATUS(moelab_pack_begin(&layer, packed.data(), bytes), MOELAB_OK);
    CHECK_STATUS(
        moelab_pack_expert(packed.data(), bytes, 0, &w13.view, &w2.view, nullptr, nullptr, interleaved, threads),
        MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(packed.data(), bytes), MOELAB_OK);
    moelab_layer found;
    CHECK_STATUS(moelab_packed_layer(packed.data(), bytes, 1, &found), MOELAB_OK);  // the checksums too
    return {packed.as<char>(), packed.as<char>() + bytes};
}

// Values that BF16 and fp16 both hold, so that every type must give the same bits.
std::vector<float> values(Random& random, int64_t n) {
    std::vector<float> v;
    for (int64_t i = 0; i < n; i++) {
        const float x =
            static_cast<float>(random.below(256) - 128) * std::ldexp(1.0f, static_cast<int>(random.below(12)) - 10);
        v.push_back(x);
    }
    return v;
}

void round_trip(int isa, int64_t hidden, int64_t intermediate, int dtype, int layout, bool interleaved, bool bias) {
    const std::string what =
        testing::format("hidden %ld, intermediate %ld, dtype %d, layout %d, interleaved %d", static_cast<long>(hidden),
                        static_cast<long>(intermediate), dtype, layout, interleaved);
    Random random(7);
    const int64_t experts = 3;
    const moelab_layer layer = {isa, MOELAB_SWIGLUOAI, experts, hidden, intermediate, bias, 1.5f, 6.0f};
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    const Guarded packed(bytes, Guarded::kEnd, 64);
    CHECK_STATUS(moelab_pack_begin(&layer, packed.data(), bytes), MOELAB_OK);
    std::vector<std::vector<float>> all[4];
    for (int64_t e = 0; e < experts; e++) {
        all[0].push_back(values(random, 2 * intermediate * hidden));
        all[1].push_back(values(random, hidden * intermediate));
        all[2].push_back(values(random, 2 * intermediate));
        all[3].push_back(values(random, hidden));
    }
    for (const int64_t e : {2, 0, 1}) {  // any order
        const size_t n = static_cast<size_t>(e);
        const Source w13 = store(all[0][n], 2 * intermediate, hidden, dtype, layout);
        const Source w2 = store(all[1][n], hidden, intermediate, dtype, layout);
        const Source b13 = store(all[2][n], 2 * intermediate, 1, dtype, layout);
        const Source b2 = store(all[3][n], hidden, 1, dtype, layout);
        CHECK_STATUS(moelab_pack_expert(packed.data(), bytes, e, &w13.view, &w2.view, bias ? &b13.view : nullptr,
                                        bias ? &b2.view : nullptr, interleaved, 2),
                     MOELAB_OK);
    }
    CHECK_STATUS(moelab_pack_finish(packed.data(), bytes), MOELAB_OK);
    packed.read_only();

    moelab_layer found;
    CHECK_STATUS(moelab_packed_layer(packed.data(), bytes, 1, &found), MOELAB_OK);
    CHECK(found.isa == isa && found.activation == layer.activation && found.num_experts == experts &&
              found.hidden == hidden && found.intermediate == intermediate && found.has_bias == bias &&
              found.alpha == 1.5f && found.limit == 6.0f,
          "the header does not give the layer back: %s", what.c_str());
    for (int64_t e = 0; e < experts; e++) {
        const size_t n = static_cast<size_t>(e);
        const Guarded w13(all[0][n].size() * 2, Guarded::kEnd, 2), w2(all[1][n].size() * 2, Guarded::kEnd, 2);
        const Guarded b13(all[2][n].size() * 4, Guarded::kEnd, 4), b2(all[3][n].size() * 4, Guarded::kEnd, 4);
        CHECK_STATUS(moelab_unpack_expert(packed.data(), bytes, e, w13.as<uint16_t>(), w2.as<uint16_t>(),
                                          bias ? b13.as<float>() : nullptr, bias ? b2.as<float>() : nullptr),
                     MOELAB_OK);
        for (size_t i = 0; i < all[0][n].size(); i++)
            CHECK(w13.as<uint16_t>()[i] == reference::to_bf16(all[0][n][i]), "w13[%zu] of expert %zu: %s", i, n,
                  what.c_str());
        for (size_t i = 0; i < all[1][n].size(); i++)
            CHECK(w2.as<uint16_t>()[i] == reference::to_bf16(all[1][n][i]), "w2[%zu] of expert %zu: %s", i, n,
                  what.c_str());
        for (size_t i = 0; bias && i < all[2][n].size(); i++)
            CHECK(b13.as<float>()[i] == all[2][n][i], "b13[%zu] of expert %zu: %s", i, n, what.c_str());
        for (size_t i = 0; bias && i < all[3][n].size(); i++)
            CHECK(b2.as<float>()[i] == all[3][n][i], "b2[%zu] of expert %zu: %s", i, n, what.c_str());
    }
}

}  // namespace

TEST_EACH_ISA(packing, round_trip_of_types_and_strides) {
    for (int dtype = MOELAB_BF16; dtype <= MOELAB_FP32; dtype++)
        for (int layout = 0; layout < kLayouts; layout++)
            for (const bool interleaved : {false, true})
                round_trip(isa, 37, 21, dtype, layout, interleaved, layout != 1);
}

TEST_EACH_ISA(packing, vectors_give_the_bytes_of_the_scalar_packer) {
    // A matrix with gaps is packed weight by weight; with rows or columns contiguous it goes through vectors. Panels in
    // full groups and in part of one, blocks of k in full and in part, both with odd rests.
    struct Size {
        int64_t hidden, intermediate;
    };
    Random random(11);
    for (const auto& [hidden, intermediate] : {Size{523, 301}, Size{64, 4}, Size{33, 17}, Size{288, 160}, Size{5, 1}})
        for (int dtype = MOELAB_BF16; dtype <= MOELAB_FP32; dtype++)
            for (const int layout : {kRows, kTransposed, kReversed}) {
                if (testing::quick() && layout == kReversed && hidden > 64) continue;
                const Source w13 = any_bits(random, 2 * intermediate, hidden, dtype, layout);
                const Source w2 = any_bits(random, hidden, intermediate, dtype, layout);
                const Source w13_gaps = with_gaps(w13, 2 * intermediate, hidden);
                const Source w2_gaps = with_gaps(w2, hidden, intermediate);
                for (const bool interleaved : {false, true}) {
                    const auto want = packed_bytes(isa, hidden, intermediate, w13_gaps, w2_gaps, interleaved, 1);
                    for (const int threads : {1, 3})
                        CHECK(packed_bytes(isa, hidden, intermediate, w13, w2, interleaved, threads) == want,
                              "hidden %ld, intermediate %ld, dtype %d, layout %d, interleaved %d, threads %d",
                              static_cast<long>(hidden), static_cast<long>(intermediate), dtype, layout, interleaved,
                              threads);
                }
            }
}

TEST_EACH_ISA(packing, round_trip_of_sizes) {
    for (const int64_t size : {1, 2, 3, 7, 16, 31, 33, 64, 65, 127, 176, 300}) {
        round_trip(isa, size, 5, MOELAB_BF16, kRows, false, true);
        round_trip(isa, 5, size, MOELAB_BF16, kRows, true, true);
        round_trip(isa, size, size, MOELAB_BF16, kTransposed, false, false);
    }
}

TEST_EACH_ISA(packing, every_bf16_bit_pattern_survives) {
    // NaN payloads and denormals too: packing moves bits. (fp32 and fp16 are rounded, as next test.)
    const int64_t hidden = 256, intermediate = 128;
    Problem p = make_problem({1, hidden, intermediate, 0, 1, MOELAB_SILU, false});
    for (size_t i = 0; i < 65536; i++) p.w13[i] = static_cast<uint16_t>(i);
    const Packed packed = pack(p, isa);
    Bits w13(p.w13.size()), w2(p.w2.size());
    CHECK_STATUS(moelab_unpack_expert(packed.data(), packed.bytes(), 0, w13.data(), w2.data(), nullptr, nullptr),
                 MOELAB_OK);
    CHECK(w13 == p.w13 && w2 == p.w2, "bits changed");
}

TEST_EACH_ISA(packing, fp32_and_fp16_are_rounded_to_nearest_even_once) {
    // fp16 denormals included; a NaN stays one, an infinity too; fp32 above the largest BF16 becomes infinite.
    std::vector<float> fp32 = {1.00390625f, 1.01171875f, 1.0039063f,  1.0039062f,  -1.00390625f, 3.4e38f,
                               1e-40f,      INFINITY,    -INFINITY,   NAN,         0.0f,         -0.0f,
                               65504.0f,    0x1p-24f,    1.0f / 3.0f, 0x1.7fp-126f};
    const uint16_t fp16[] = {0x0001, 0x83ff, 0x3c01, 0x3c04, 0x3c0c, 0x7bff, 0x7c00, 0xfc00,
                             0x7e00, 0x8000, 0x0000, 0x0400, 0x3555, 0xc0ff, 0x3c05, 0x3c03};
    const double fp16_value[] = {0x1p-24,
                                 -0x3ffp-24,
                                 1 + 0x1p-10,
                                 1 + 4 * 0x1p-10,
                                 1 + 12 * 0x1p-10,
                                 65504,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 -0.0,
                                 0.0,
                                 0x1p-14,
                                 0x555p-12,
                                 -(1 + 0xff * 0x1p-10) * 2,
                                 1 + 5 * 0x1p-10,
                                 1 + 3 * 0x1p-10};
    const moelab_layer layer = {isa, MOELAB_SILU, 1, 16, 1, 0, 0, 0};
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    for (const int dtype : {MOELAB_FP16, MOELAB_FP32}) {
        const Guarded packed(bytes, Guarded::kEnd, 64);
        CHECK_STATUS(moelab_pack_begin(&layer, packed.data(), bytes), MOELAB_OK);
        std::vector<uint16_t> half(fp16, fp16 + 16);
        half.insert(half.end(), fp16, fp16 + 16);
        std::vector<float> single = fp32;
        single.insert(single.end(), fp32.begin(), fp32.end());
        const void* data = dtype == MOELAB_FP16 ? static_cast<const void*>(half.data()) : single.data();
        const moelab_matrix w13 = {data, dtype, 16, 1}, w2 = {data, dtype, 1, 1};
        CHECK_STATUS(moelab_pack_expert(packed.data(), bytes, 0, &w13, &w2, nullptr, nullptr, 0, 1), MOELAB_OK);
        CHECK_STATUS(moelab_pack_finish(packed.data(), bytes), MOELAB_OK);
        uint16_t got13[32], got2[16];
        CHECK_STATUS(moelab_unpack_expert(packed.data(), bytes, 0, got13, got2, nullptr, nullptr), MOELAB_OK);
        for (int i = 0; i < 16; i++) {
            const float exact = dtype == MOELAB_FP16 ? static_cast<float>(fp16_value[i]) : fp32[static_cast<size_t>(i)];
            const uint16_t want = reference::to_bf16(exact);
            const bool nan = exact != exact;
            CHECK(nan ? (got13[i] & 0x7fff) > 0x7f80 : got13[i] == want, "dtype %d, w13[%d]: 0x%04x for %g", dtype, i,
                  got13[i], static_cast<double>(exact));
            CHECK(nan ? (got2[i] & 0x7fff) > 0x7f80 : got2[i] == want, "dtype %d, w2[%d]: 0x%04x", dtype, i, got2[i]);
        }
    }
}

TEST_EACH_ISA(packing, whole_panels_round_every_fp16_and_any_fp32) {
    // Every fp16 and fp32 of every exponent, in panels without padding, along the rows and transposed.
    constexpr int64_t hidden = 1024, channels = 32, count = 2 * channels * hidden;
    std::vector<uint16_t> half(count);
    std::vector<float> single(count);
    for (uint32_t i = 0; i < count; i++) {
        half[i] = static_cast<uint16_t>(i);
        const uint32_t bits = i << 16 | ((i * 0x9e3779b1u) >> 16 & ~0xfu) | (i % 3 ? 0 : 0x8000);
        std::memcpy(&single[i], &bits, sizeof bits);
    }
    const auto value = [&](int dtype, size_t i) {
        if (dtype == MOELAB_FP32) return single[i];
        const int exponent = half[i] >> 10 & 31, mantissa = half[i] & 0x3ff;
        const double size = exponent == 31 ? (mantissa ? std::nan("") : INFINITY)
                                           : std::ldexp(mantissa + (exponent ? 1024 : 0), std::max(exponent, 1) - 25);
        return static_cast<float>(half[i] & 0x8000 ? -size : size);
    };
    const moelab_layer layer = {isa, MOELAB_SILU, 1, hidden, channels, 0, 0, 0};
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    for (const int dtype : {MOELAB_FP16, MOELAB_FP32})
        for (const bool transposed : {false, true}) {
            const Guarded packed(bytes, Guarded::kEnd, 64);
            CHECK_STATUS(moelab_pack_begin(&layer, packed.data(), bytes), MOELAB_OK);
            const void* data = dtype == MOELAB_FP16 ? static_cast<const void*>(half.data()) : single.data();
            const auto matrix = [&](int64_t rows, int64_t columns) {
                return transposed ? moelab_matrix{data, dtype, 1, rows} : moelab_matrix{data, dtype, columns, 1};
            };
            const moelab_matrix w13 = matrix(2 * channels, hidden), w2 = matrix(hidden, channels);
            CHECK_STATUS(moelab_pack_expert(packed.data(), bytes, 0, &w13, &w2, nullptr, nullptr, 0, 1), MOELAB_OK);
            CHECK_STATUS(moelab_pack_finish(packed.data(), bytes), MOELAB_OK);
            Bits got13(count), got2(count / 2);
            CHECK_STATUS(moelab_unpack_expert(packed.data(), bytes, 0, got13.data(), got2.data(), nullptr, nullptr),
                         MOELAB_OK);
            const auto check = [&](const Bits& got, int64_t rows, int64_t columns) {
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < columns; c++) {
                        const float exact =
                            value(dtype, static_cast<size_t>(transposed ? c * rows + r : r * columns + c));
                        const uint16_t bits = got[static_cast<size_t>(r * columns + c)];
                        CHECK(exact != exact ? (bits & 0x7fff) > 0x7f80 : bits == reference::to_bf16(exact),
                              "dtype %d, transposed %d: 0x%04x for %g", dtype, transposed, bits,
                              static_cast<double>(exact));
                    }
            };
            check(got13, 2 * channels, hidden);
            check(got2, hidden, channels);
        }
}

TEST_EACH_ISA(packing, interleaved_gives_the_same_outputs) {
    const Problem p = make_problem({2, 45, 37, 7, 2, MOELAB_SWIGLUOAI, true});
    const Bits split = run(p, pack(p, isa));
    const int64_t H = p.hidden, I = p.intermediate;
    Packed other;
    other.layer = layer_of(p, isa);
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&other.layer, &bytes), MOELAB_OK);
    other.memory = Guarded(bytes, Guarded::kEnd, 64);
    CHECK_STATUS(moelab_pack_begin(&other.layer, other.memory.data(), bytes), MOELAB_OK);
    for (int64_t e = 0; e < p.experts; e++) {
        Bits w13(static_cast<size_t>(2 * I * H));
        std::vector<float> b13(static_cast<size_t>(2 * I));
        for (int64_t i = 0; i < 2 * I; i++) {
            const int64_t from = e * 2 * I + (i % 2 ? I + i / 2 : i / 2);
            std::copy_n(p.w13.begin() + from * H, H, w13.begin() + i * H);
            b13[static_cast<size_t>(i)] = p.b13[static_cast<size_t>(from)];
        }
        const moelab_matrix m13 = {w13.data(), MOELAB_BF16, H, 1}, m2 = {p.w2.data() + e * H * I, MOELAB_BF16, I, 1};
        const moelab_matrix mb13 = {b13.data(), MOELAB_FP32, 1, 1}, mb2 = {p.b2.data() + e * H, MOELAB_FP32, 1, 1};
        CHECK_STATUS(moelab_pack_expert(other.memory.data(), bytes, e, &m13, &m2, &mb13, &mb2, 1, 1), MOELAB_OK);
    }
    CHECK_STATUS(moelab_pack_finish(other.memory.data(), bytes), MOELAB_OK);
    other.memory.read_only();
    check_same_bits(run(p, other), split, H, "interleaved and split");
}

TEST_EACH_ISA(packing, biases_keep_fp32) {
    Problem p = make_problem({1, 5, 3, 2, 1, MOELAB_SILU, true});
    for (float& b : p.b13) b = 1.0f / 3.0f;
    for (float& b : p.b2) b = 1e-3f / 7.0f;
    const Packed packed = pack(p, isa);
    Bits w13(p.w13.size()), w2(p.w2.size());
    std::vector<float> b13(p.b13.size()), b2(p.b2.size());
    CHECK_STATUS(moelab_unpack_expert(packed.data(), packed.bytes(), 0, w13.data(), w2.data(), b13.data(), b2.data()),
                 MOELAB_OK);
    CHECK(b13 == p.b13 && b2 == p.b2, "a bias was rounded");
}
