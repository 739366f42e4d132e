// The epilogue alone: bf16(act(gate) * up) against the definition in fp64, over the whole range of both.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "layer_case.h"

namespace {

constexpr float kAlpha = 1.702f, kLimit = 7.0f;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// A little above the smallest normal: next to it an fp32 result may fall below, and conversion flushes denormals.
constexpr double kSmallestNormal = 0x1.01p-126;

float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

// act(gate); swigluoai without the up factor. No cancellation anywhere, so good to a few ulp of fp64.
double gate_value(int kind, double x) {
    switch (kind) {
        case MOELAB_SILU: return x * sigmoid(x);
        case MOELAB_GELU: return x * (0.5 * std::erfc(-x * std::sqrt(0.5)));
        case MOELAB_GELU_TANH: return x * sigmoid(2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x));
        default: {
            const double g = x > kLimit ? kLimit : x;
            return g * sigmoid(static_cast<double>(kAlpha) * g);
        }
    }
}

double up_value(int kind, double up) {
    if (kind != MOELAB_SWIGLUOAI) return up;
    return (up > kLimit ? kLimit : up < -kLimit ? -kLimit : up) + 1;
}

// fp64 to BF16, to nearest even, in one rounding; normal results and overflow only.
uint16_t to_bf16(double v) {
    uint64_t u;
    std::memcpy(&u, &v, sizeof u);
    u += (uint64_t{1} << 44) - 1 + (u >> 45 & 1);
    const int64_t exponent = static_cast<int64_t>(u >> 52 & 0x7ff) - 1023 + 127;
    const uint16_t sign = static_cast<uint16_t>(u >> 48 & 0x8000);
    if (exponent >= 255) return sign | 0x7f80;
    return static_cast<uint16_t>(sign | exponent << 7 | (u >> 45 & 0x7f));
}

std::vector<uint16_t> activate(int isa, int kind, const std::vector<float>& gate, const std::vector<float>& up) {
    std::vector<uint16_t> out(gate.size());
    CHECK_STATUS(moelab_activate(isa, kind, kAlpha, kLimit, gate.data(), up.data(), out.data(),
                                 static_cast<int64_t>(gate.size())),
                 MOELAB_OK);
    return out;
}

std::vector<float> repeat(float value, size_t n) {
    return std::vector<float>(n, value);
}

// The definition of all gates, kept from one ISA to the next.
const std::vector<double>& values_of(int kind, const std::vector<float>& gates, const char* key) {
    static std::map<std::pair<std::string, int>, std::vector<double>> kept;
    std::vector<double>& values = kept[{key, kind}];
    if (values.empty())
        for (const float g : gates) values.push_back(gate_value(kind, static_cast<double>(g)));
    return values;
}

// At most one BF16 ulp from the rounded fp64 value where that is normal, and seldom even that; below, a result
// that is not larger than the smallest normal. Infinite results count as the next number after the largest.
void check_sweep(int isa, const std::vector<float>& gates, const char* key) {
    const float ups[] = {1.0f,    -0.37f, 3.14159f, 1e-3f,    -123.0f, 1e10f,  1e30f,
                         3.3e38f, -6.9f,  -0.9999f, 1.3e-38f, -1e-30f, 2e-42f, 0.0f};
    for (int kind = 0; kind < 4; kind++) {
        const std::vector<double>& values = values_of(kind, gates, key);
        int64_t normal = 0, different = 0;
        for (const float up : ups) {
            const std::vector<uint16_t> out = activate(isa, kind, gates, repeat(up, gates.size()));
            for (size_t i = 0; i < gates.size(); i++) {
                const double want = values[i] * up_value(kind, static_cast<double>(up));
                if (std::fabs(want) < kSmallestNormal) {
                    CHECK((out[i] & 0x7fff) <= 0x80, "%s(%g) * %g: %g for %g", kActivations[kind],
                          static_cast<double>(gates[i]), static_cast<double>(up),
                          static_cast<double>(reference::from_bf16(out[i])), want);
                    continue;
                }
                normal++;
                const int distance = std::abs(static_cast<int>(out[i]) - static_cast<int>(to_bf16(want)));
                CHECK(distance <= 1, "%s(%.9g) * %.9g: %g for %g", kActivations[kind], static_cast<double>(gates[i]),
                      static_cast<double>(up), static_cast<double>(reference::from_bf16(out[i])), want);
                different += distance;
            }
        }
        CHECK(normal > static_cast<int64_t>(gates.size()), "%s: only %ld normal results", kActivations[kind],
              static_cast<long>(normal));
        CHECK(different * 100 < normal, "%s: %ld of %ld results are not the rounded value", kActivations[kind],
              static_cast<long>(different), static_cast<long>(normal));
    }
}

}  // namespace

TEST_EACH_ISA(activation, every_bf16_gate) {
    static const std::vector<float> gates = [] {
        std::vector<float> all;
        for (uint32_t bits = 0; bits < 0x10000; bits++)
            if (std::isfinite(from_bits(bits << 16))) all.push_back(from_bits(bits << 16));
        return all;
    }();
    check_sweep(isa, gates, "bf16");
}

TEST_EACH_ISA(activation, fp32_gates) {
    static const std::vector<float> gates = [] {
        std::vector<float> some;
        const uint32_t step = testing::quick() ? 1000003 : 99991;
        for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step)
            if (std::isfinite(from_bits(static_cast<uint32_t>(bits))))
                some.push_back(from_bits(static_cast<uint32_t>(bits)));
        // Where the functions bend, and their far tails.
        const double fine = testing::quick() ? 0.0531 : 0.00531;
        for (double x = -20; x < 20; x += fine / 10) some.push_back(static_cast<float>(x));
        for (double x = -200; x < 200; x += fine) some.push_back(static_cast<float>(x));
        return some;
    }();
    check_sweep(isa, gates, "fp32");
}

// NaN, infinities and signed zeros of the definition evaluated in fp64 as torch does. A finite gate far out with
// an infinite up is left out: whether the factor is 0 or tiny there is a matter of how fp64 evaluates it.
TEST_EACH_ISA(activation, special_values) {
    const float gates[] = {kInf, -kInf, kNan, 0.0f, -0.0f, 1.0f, -1.0f, 1e38f, -1e38f, 1e-40f, -1e-40f};
    const float ups[] = {1.0f, -2.0f, 0.0f, -0.0f, kInf, -kInf, kNan};
    for (int kind = 0; kind < 4; kind++)
        for (const float gate : gates)
            for (const float up : ups) {
                if (gate == -1e38f && std::isinf(up)) continue;
                const double want =
                    gate_value(kind, static_cast<double>(gate)) * up_value(kind, static_cast<double>(up));
                const float got = reference::from_bf16(activate(isa, kind, {gate}, {up})[0]);
                const double shown = static_cast<double>(got);
                const bool tiny = std::fabs(want) < kSmallestNormal;
                const bool right = std::isnan(want)   ? std::isnan(got)
                                   : std::isinf(want) ? shown == want
                                   : tiny             ? std::fabs(shown) <= kSmallestNormal
                                                      : std::isfinite(got);
                CHECK(right, "%s(%g) * %g: %g for %g", kActivations[kind], static_cast<double>(gate),
                      static_cast<double>(up), shown, want);
                CHECK(std::isnan(want) || std::signbit(got) == std::signbit(want), "%s(%g) * %g: sign of %g for %g",
                      kActivations[kind], static_cast<double>(gate), static_cast<double>(up), shown, want);
            }
}

// A lane's bits depend neither on its place, nor on the number of values, nor on its neighbours, even when those
// take the rare path or are not finite.
TEST_EACH_ISA(activation, lane_and_neighbours_do_not_matter) {
    Random random(7);
    const float strange[] = {-90.0f, -150.0f, -1e38f, kInf, -kInf, kNan, 0.0f, -13.3f};
    for (int kind = 0; kind < 4; kind++)
        for (int64_t n = 1; n <= 70; n++) {
            std::vector<float> gate, up;
            for (int64_t i = 0; i < n; i++) {
                gate.push_back(random.below(4) ? 5 * random.normal() : strange[random.below(8)]);
                up.push_back(random.below(8) ? random.normal() : 1e30f * random.normal());
            }
            const std::vector<uint16_t> together = activate(isa, kind, gate, up);
            for (int64_t i = 0; i < n; i++) {
                const size_t at = static_cast<size_t>(i);
                const uint16_t alone = activate(isa, kind, {gate[at]}, {up[at]})[0];
                const bool nan = std::isnan(reference::from_bf16(alone));
                CHECK(nan ? std::isnan(reference::from_bf16(together[at])) : alone == together[at],
                      "%s: value %ld of %ld", kActivations[kind], static_cast<long>(i), static_cast<long>(n));
            }
        }
}

TEST_EACH_ISA(activation, reads_and_writes_only_its_values) {
    for (int64_t n = 0; n <= 40; n++) {
        const size_t bytes = static_cast<size_t>(n) * sizeof(float);
        const Guarded gates(bytes, Guarded::kEnd, sizeof(float)), ups(bytes, Guarded::kEnd, sizeof(float));
        std::fill_n(gates.as<float>(), n, 1.5f);
        std::fill_n(ups.as<float>(), n, 2.0f);
        std::vector<uint16_t> out(static_cast<size_t>(n + 64), 0xabcd);
        const moelab_status status =
            moelab_activate(isa, MOELAB_SILU, kAlpha, kLimit, gates.as<float>(), ups.as<float>(), out.data(), n);
        CHECK_STATUS(status, MOELAB_OK);
        for (int64_t i = 0; i < n; i++) CHECK(out[static_cast<size_t>(i)] == out[0], "value %ld", static_cast<long>(i));
        for (int64_t i = n; i < n + 64; i++)
            CHECK(out[static_cast<size_t>(i)] == 0xabcd, "n = %ld", static_cast<long>(n));
    }
}
