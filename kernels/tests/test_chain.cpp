// Bit for bit: every output is one chain over ascending k of the instruction set's own multiply instruction.
//
// The models below are written from the instructions' definitions. To see all 32 bits of a sum through BF16
// outputs, the bias of each column is minus what the model says: the kernel's sum plus that bias is zero exactly
// if every bit agrees, and a difference in the last one is a number that BF16 holds. All tokens are alike, so that
// one bias serves every row of every tile shape.
//
// What an Arm user should expect to differ from x86: BFMMLA (without FEAT_EBF16) adds two products, rounds the pair
// to odd, adds it to the sum and rounds that to odd; denormals count as zero. FMA and VDPBF16PS round each step to
// nearest even. The same layer therefore differs in the last bits of the fp32 sums between instruction sets, and in
// about one BF16 output in a few hundred; within one instruction set it never does.
#include <cmath>
#include <cstring>

#include "layer_case.h"

namespace {

using Sum = float (*)(const float* a, const float* b, int64_t k);

float fma_chain(const float* a, const float* b, int64_t k) {
    float sum = 0;
    for (int64_t i = 0; i < k; i++) sum = std::fma(a[i], b[i], sum);
    return sum;
}

float at(const float* v, int64_t i, int64_t k) {
    return i < k ? v[i] : 0.0f;
}

// VDPBF16PS: one fused multiply-add for the odd element of a pair, then one for the even element.
float dpbf16_chain(const float* a, const float* b, int64_t k) {
    float sum = 0;
    for (int64_t i = 0; i < k; i += 2) {
        sum = std::fma(at(a, i + 1, k), at(b, i + 1, k), sum);
        sum = std::fma(a[i], b[i], sum);
    }
    return sum;
}

// TDPBF16PS: over 32 k, the even and the odd elements each in a chain of their own, added, then added to the tile.
float tdpbf16_chain(const float* a, const float* b, int64_t k) {
    float sum = 0;
    for (int64_t block = 0; block < k; block += 32) {
        float even = 0, odd = 0;
        for (int64_t i = block; i < block + 32 && i < k; i += 2) {
            even = std::fma(a[i], b[i], even);
            odd = std::fma(at(a, i + 1, k), at(b, i + 1, k), odd);
        }
        sum += even + odd;
    }
    return sum;
}

float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// a + b of finite fp32 numbers, rounded to odd, denormals flushed to zero on both sides; overflow stops at the
// largest finite number.
float add_odd(float x, float y) {
    uint32_t a = to_bits(x), b = to_bits(y);
    if ((a & 0x7f800000) == 0) a &= 0x80000000;
    if ((b & 0x7f800000) == 0) b &= 0x80000000;
    if ((a & 0x7fffffff) < (b & 0x7fffffff)) std::swap(a, b);
    if ((b & 0x7fffffff) == 0) return (a & 0x7fffffff) || a == b ? from_bits(a) : 0.0f;  // -0 + +0 is +0
    const int distance = static_cast<int>(a >> 23 & 255) - static_cast<int>(b >> 23 & 255);
    uint64_t large = static_cast<uint64_t>((a & 0x7fffff) | 0x800000) << 38;
    uint64_t small = static_cast<uint64_t>((b & 0x7fffff) | 0x800000) << 38;
    const bool lost = distance > 62 || (distance && (small & ((uint64_t{1} << distance) - 1)));
    small = (distance > 62 ? 0 : small >> distance) | lost;
    const bool subtract = (a ^ b) >> 31;
    uint64_t sum = subtract ? large - small : large + small;
    if (sum == 0) return 0.0f;
    int exponent = static_cast<int>(a >> 23 & 255);  // of bit 61
    while (sum >> 62) sum = sum >> 1 | (sum & 1), exponent++;
    while (!(sum >> 61)) sum <<= 1, exponent--;
    if (exponent <= 0) return from_bits(a & 0x80000000);
    if (exponent >= 255) return from_bits((a & 0x80000000) | 0x7f7fffff);
    uint32_t mantissa = static_cast<uint32_t>(sum >> 38) & 0x7fffff;
    mantissa |= (sum & ((uint64_t{1} << 38) - 1)) != 0;
    return from_bits((a & 0x80000000) | static_cast<uint32_t>(exponent) << 23 | mantissa);
}

// BFMMLA: two pairs of k per instruction; the product of two BF16 numbers is exact in fp32.
float bfmmla_chain(const float* a, const float* b, int64_t k) {
    float sum = 0;
    for (int64_t i = 0; i < k; i += 2) sum = add_odd(sum, add_odd(a[i] * b[i], at(a, i + 1, k) * at(b, i + 1, k)));
    return sum;
}

Sum model_of(int isa) {
    const std::string name = moelab_isa_name(isa);
    if (name == "avx512_bf16") return dpbf16_chain;
    if (name == "amx_bf16") return tdpbf16_chain;
    if (name == "neon_bf16" || name == "sve_bf16") return bfmmla_chain;
    return fma_chain;
}

// Magnitudes over 2^12, so that another order or rounding gives other bits.
uint16_t wide_value(Random& random) {
    return reference::to_bf16(std::ldexp(random.normal(), static_cast<int>(random.below(13)) - 6));
}

std::vector<float> widened(const uint16_t* bits, int64_t n) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; i++) values.push_back(reference::from_bf16(bits[i]));
    return values;
}

Problem alike_tokens(int64_t hidden, int64_t intermediate, int64_t most) {
    Problem p = make_problem({1, hidden, intermediate, most, 1, MOELAB_SILU, true});
    p.weights.assign(p.weights.size(), 1.0f);
    // silu(128) is 128 in fp32: the gate only scales, by a power of two.
    std::fill_n(p.w13.begin(), intermediate * hidden, 0);
    std::fill_n(p.b13.begin(), intermediate, 128.0f);
    return p;
}

void expect_zero(const Problem& p, int isa, const char* gemm, int64_t k) {
    const Packed packed = pack(p, isa);
    // Every number of rows at one depth at least. Few tokens of the long chains, but more than one tile of rows: cache
    // blocks over k begin there.
    const int64_t step = k > 1000 ? 13 : testing::quick() && k != 31 ? 5 : 1;
    for (int64_t tokens = 1; tokens <= p.tokens; tokens += step) {
        std::vector<int64_t> some(static_cast<size_t>(tokens));
        for (int64_t t = 0; t < tokens; t++) some[static_cast<size_t>(t)] = t;
        Options one_thread;
        one_thread.threads = 1;
        const Bits out = run(batch_of(p, some), packed, one_thread);
        for (size_t i = 0; i < out.size(); i++)
            CHECK((out[i] & 0x7fff) == 0, "%s, k %ld, %ld tokens: row %zu, column %zu differs from the model by %g",
                  gemm, static_cast<long>(k), static_cast<long>(tokens), i / static_cast<size_t>(p.hidden),
                  i % static_cast<size_t>(p.hidden), static_cast<double>(reference::from_bf16(out[i])));
    }
}

std::vector<int64_t> depths() {
    if (testing::quick()) return {1, 2, 3, 5, 8, 31, 64, 257, 2880};
    return {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 257, 704, 1025, 2880, 5003};
}

constexpr int64_t kMostTokens = 40;

}  // namespace

TEST_EACH_ISA(chain, gemm1) {
    Random random(11);
    for (const int64_t k : depths()) {
        const int64_t channels = 27;
        Problem p = alike_tokens(k, channels, kMostTokens);
        for (int64_t i = 0; i < k; i++) {
            const uint16_t x = wide_value(random);
            for (int64_t t = 0; t < p.tokens; t++) p.x[static_cast<size_t>(t * k + i)] = x;
        }
        const std::vector<float> x = widened(p.x.data(), k);
        for (int64_t c = 0; c < channels; c++) {
            uint16_t* row = &p.w13[static_cast<size_t>((channels + c) * k)];
            for (int64_t i = 0; i < k; i++) row[i] = wide_value(random);
            p.b13[static_cast<size_t>(channels + c)] = -model_of(isa)(x.data(), widened(row, k).data(), k);
        }
        // Each channel weighs alone in column c % hidden, with a factor that no other can cancel.
        p.b2.assign(p.b2.size(), 0);
        for (uint16_t& w : p.w2) w = reference::to_bf16(std::fabs(random.normal()) + 1.0f);
        expect_zero(p, isa, "GEMM1", k);
    }
}

TEST_EACH_ISA(chain, gemm2) {
    Random random(12);
    for (const int64_t k : depths()) {
        const int64_t hidden = 37;
        Problem p = alike_tokens(hidden, k, kMostTokens);
        std::fill(p.x.begin(), p.x.end(), 0);
        for (int64_t t = 0; t < p.tokens; t++) p.x[static_cast<size_t>(t * hidden)] = 0x3f80;  // 1
        std::vector<float> h;
        for (int64_t i = 0; i < k; i++) {
            uint16_t* row = &p.w13[static_cast<size_t>((k + i) * hidden)];
            row[0] = wide_value(random);
            h.push_back(128.0f * reference::from_bf16(row[0]));
            p.b13[static_cast<size_t>(k + i)] = 0;
        }
        for (int64_t c = 0; c < hidden; c++) {
            uint16_t* row = &p.w2[static_cast<size_t>(c * k)];
            for (int64_t i = 0; i < k; i++) row[i] = wide_value(random);
            p.b2[static_cast<size_t>(c)] = -model_of(isa)(h.data(), widened(row, k).data(), k);
        }
        expect_zero(p, isa, "GEMM2", k);
    }
}

TEST_EACH_ISA(chain, combine) {
    // y0 is minus the rounded product w1 * y1, so that what is left is the product's own rounding error: the number
    // that a fused multiply-add keeps and two separate operations lose. Every width of the tail.
    for (const int64_t hidden : {1, 7, 16, 33, 64, 70, 128, 515}) {
        Problem p = make_problem({2, hidden, 4, 3, 2, MOELAB_SILU, true});
        std::fill(p.w2.begin(), p.w2.end(), 0);
        for (int64_t t = 0; t < 3; t++) {
            p.ids[static_cast<size_t>(2 * t)] = 0;
            p.ids[static_cast<size_t>(2 * t + 1)] = 1;
            p.weights[static_cast<size_t>(2 * t)] = 1.0f;
            p.weights[static_cast<size_t>(2 * t + 1)] = 1.0f / 3.0f;
        }
        Random random(31);
        Bits want;
        for (int64_t c = 0; c < hidden; c++) {
            const float y1 = random.normal(), y0 = -(1.0f / 3.0f * y1);
            p.b2[static_cast<size_t>(c)] = y0;
            p.b2[static_cast<size_t>(hidden + c)] = y1;
            want.push_back(reference::to_bf16(std::fma(1.0f / 3.0f, y1, y0)));
        }
        const Bits out = run(p, pack(p, isa));
        for (size_t i = 0; i < out.size(); i++)
            CHECK(out[i] == want[i % want.size()], "hidden %ld, column %zu: 0x%04x, expected 0x%04x",
                  static_cast<long>(hidden), i % want.size(), out[i], want[i % want.size()]);
    }
}

// The models themselves, on values whose results are known by hand.
TEST(chain, models) {
    CHECK(add_odd(1.0f, 0x1p-40f) == 1.0f + 0x1p-23f, "an inexact sum has its last bit set");
    CHECK(add_odd(1.0f + 0x1p-23f, 0x1p-40f) == 1.0f + 0x1p-23f, "a set last bit stays");
    CHECK(add_odd(1.0f, -0x1p-40f) == 1.0f - 0x1p-24f, "below one: the number below, whose last bit is set");
    CHECK(add_odd(0x1p-126f, -0x1.8p-126f) == 0.0f, "a denormal result is flushed");
    CHECK(add_odd(0x1p-127f, 1.0f) == 1.0f, "a denormal operand counts as zero, exactly");
    CHECK(add_odd(0x1.fffffep127f, 0x1.fffffep127f) == 0x1.fffffep127f, "overflow stops at the largest number");
    CHECK(add_odd(3.0f, -3.0f) == 0.0f && add_odd(1.5f, 2.25f) == 3.75f, "exact sums");
    const float a[] = {1, 0x1p-20f, 1, 1}, b[] = {0x1p20f, 1, 0x1p-20f, -0x1p20f};
    // 2^20 + 2^-20 becomes 2^20 + 2^-3, and 2^-20 - 2^20 becomes -(2^20 - 2^-4): the last bits say "inexact".
    CHECK(bfmmla_chain(a, b, 4) == 0.1875f, "pairs rounded to odd: got %g", static_cast<double>(bfmmla_chain(a, b, 4)));
    CHECK(fma_chain(a, b, 4) == 0.0f, "to nearest, both small products are lost");
}
