// Where the bound comes from.
//
// u = 2^-24 is the unit roundoff of fp32. Products of two BF16 numbers are exact in fp32.
//
// 1. A chain of K products, S = sum |a_k b_k|. With fused or separate adds to nearest (FMA, VDPBF16PS) there
//    are K roundings, each at most u times a partial sum, and no partial sum exceeds S (1 + K u): error at
//    most K u S to first order. BFMMLA rounds to odd, at most 2u each, but adds products in pairs: K/2
//    accumulates of 2u S, and one rounding of 2u for each pair sum, 2u S together: (K + 2) u S. So
//        gamma(K) = (K + 2) u / (1 - (K + 2) u)
//    covers all of them. Instructions that flush denormals lose at most 2^-126 per rounding and 2^-126 |b|
//    for a denormal a: F = 2^-126 (2K + sum|a| + sum|b|).
// 2. Bias: one rounding, u |z + b|.
// 3. Activation h = f(g) v. Each f has |f'| <= 1.13 (silu 1.0999, gelu 1.1290, gelu_tanh 1.1290; g sigmoid(alpha g)
//    has silu's derivative at alpha g) and clamps do not increase differences:
//        dh <= 1.13 dg |v| + |f(g)| dv + 1.13 dg dv.
//    Rounding to BF16 adds 1/2 ulp, and the epilogue may be 1 ulp off the correctly rounded value: 3/2 ulp.
// 4. GEMM2 by 1 and 2 over h +- dh.
// 5. Combine: one fused multiply-add per slot, u times the sum of |w y| each; the output 1/2 ulp.
//
// sigma is the same chain with independent errors: a rounding to BF16 is uniform over one ulp, variance
// ulp^2 / 12, and fp32's part is far below. It is what catches a lost term in 2880, which a worst-case bound hides.
#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace reference {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kTiny = 0x1p-126;
constexpr double kSlope = 1.13;
constexpr double kOverflow = 3.3e38;

double gamma(int64_t k) {
    const double g = (static_cast<double>(k) + 2) * kUnit;
    return g / (1 - g);
}

struct Dot {
    double sum, absolute, flush;
};

// What the compiler may vectorise without reordering: eight sums side by side.
Dot dot(const float* a, const float* b, int64_t k, double a_absolute, double b_absolute) {
    double sum[8] = {}, absolute[8] = {};
    int64_t i = 0;
    for (; i + 8 <= k; i += 8)
        for (int lane = 0; lane < 8; lane++) {
            const double product = static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
            sum[lane] += product;
            absolute[lane] += std::fabs(product);
        }
    Dot d = {0, 0, kTiny * (2 * static_cast<double>(k) + a_absolute + b_absolute)};
    for (int lane = 0; lane < 8; lane++) {
        d.sum += sum[lane];
        d.absolute += absolute[lane];
    }
    for (; i < k; i++) {
        const double product = static_cast<double>(a[i]) * static_cast<double>(b[i]);
        d.sum += product;
        d.absolute += std::fabs(product);
    }
    return d;
}

double absolute_sum(const float* a, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += std::fabs(static_cast<double>(a[i]));
    return sum;
}

void widen(const uint16_t* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i++) to[i] = from_bf16(from[i]);
}

struct Gated {
    double f, v;  // h = f * v
};

Gated gated(int kind, double alpha, double limit, double gate, double up) {
    switch (kind) {
        case 0: return {gate / (1 + std::exp(-gate)), up};
        case 1: return {0.5 * gate * std::erfc(-gate * 0.70710678118654752440), up};
        case 2: {  // 0.5 (1 + tanh(t)) = sigmoid(2t), without the cancellation
            const double t = 0.79788456080286535588 * (gate + 0.044715 * gate * gate * gate);
            return {gate / (1 + std::exp(-2 * t)), up};
        }
        default: {  // NaN passes through both clamps, as in torch.clamp
            const double g = gate > limit ? limit : gate;
            const double u = up > limit ? limit : up < -limit ? -limit : up;
            return {g / (1 + std::exp(-alpha * g)), u + 1};
        }
    }
}

struct Slot {
    int64_t expert;
    double weight;
    double sigma_weight;   // the same expert twice makes the same error twice: their weights add up before squaring
    std::vector<float> x;  // what GEMM1 reads
    std::vector<double> h, dh;
};

// GEMM1 and the activation for every slot of one expert.
void first_half(const Problem& p, int64_t expert, const std::vector<Slot*>& slots) {
    const int64_t H = p.hidden, I = p.intermediate;
    const uint16_t* w = p.w13.data() + expert * 2 * I * H;
    const float* bias = p.b13.empty() ? nullptr : p.b13.data() + expert * 2 * I;
    const double g1 = gamma(H);
    std::vector<double> x_absolute;
    for (const Slot* s : slots) x_absolute.push_back(absolute_sum(s->x.data(), H));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < I; i++) {
        std::vector<float> gate_row(static_cast<size_t>(H)), up_row(static_cast<size_t>(H));
        widen(w + i * H, H, gate_row.data());
        widen(w + (I + i) * H, H, up_row.data());
        const double gate_absolute = absolute_sum(gate_row.data(), H), up_absolute = absolute_sum(up_row.data(), H);
        for (size_t n = 0; n < slots.size(); n++) {
            Slot& s = *slots[n];
            const auto side = [&](const std::vector<float>& row, double row_absolute, int64_t channel, double* z) {
                const Dot d = dot(row.data(), s.x.data(), H, row_absolute, x_absolute[n]);
                *z = d.sum + (bias ? static_cast<double>(bias[channel]) : 0);
                const double error = g1 * d.absolute + d.flush;
                return d.absolute > kOverflow ? INFINITY : error + kUnit * (std::fabs(*z) + error);
            };
            double gate, up;
            const double dg = side(gate_row, gate_absolute, i, &gate), dv = side(up_row, up_absolute, I + i, &up);
            const Gated a = gated(p.activation, p.alpha, p.limit, gate, up);
            const double h = a.f * a.v;
            double dh = kSlope * dg * std::fabs(a.v) + std::fabs(a.f) * dv + kSlope * dg * dv;
            dh += 1.5 * ulp_bf16(std::fabs(h) + dh) + kTiny;
            s.h[static_cast<size_t>(i)] = h;
            s.dh[static_cast<size_t>(i)] = std::fabs(h) + dh > kOverflow ? INFINITY : dh;
        }
    }
}

// GEMM2 of one slot, added into the token's output; `sigma` holds a variance, `magnitude` sum |w y|.
void second_half(const Problem& p, const Slot& s, double* value, double* bound, double* variance, double* magnitude) {
    const int64_t H = p.hidden, I = p.intermediate;
    const uint16_t* w = p.w2.data() + s.expert * H * I;
    const double g2 = gamma(I);
    double h_absolute = 0;
    for (const double h : s.h) h_absolute += std::fabs(h);
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < H; c++) {
        double sum = 0, absolute = 0, spread = 0, var = 0, w_absolute = 0;
        for (int64_t j = 0; j < I; j++) {
            const double wj = from_bf16(w[c * I + j]), h = s.h[static_cast<size_t>(j)];
            sum += wj * h;
            absolute += std::fabs(wj * h);
            w_absolute += std::fabs(wj);
            spread += std::fabs(wj) * s.dh[static_cast<size_t>(j)];
            const double step = wj * ulp_bf16(h);
            var += step * step / 12;
        }
        const double y = sum + (p.b2.empty() ? 0 : static_cast<double>(p.b2[static_cast<size_t>(s.expert * H + c)]));
        double error =
            spread + g2 * (absolute + spread) + kTiny * (2 * static_cast<double>(I) + h_absolute + w_absolute);
        error += kUnit * (std::fabs(y) + error);
        if (absolute + spread > kOverflow) error = INFINITY;
        const double weight = std::fabs(s.weight);
        value[c] += s.weight * y;
        if (weight != 0) bound[c] += weight * error;  // 0 * infinite bound: the finite y times 0 is exact
        if (weight == 0 && std::isinf(error)) bound[c] = INFINITY;
        magnitude[c] += weight * (std::fabs(y) + (std::isinf(error) ? 0 : error));
        const double fp32 = 0x1p-22 * absolute;
        variance[c] += s.sigma_weight * s.sigma_weight * (var + fp32 * fp32);
    }
}

}  // namespace

float from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
    const uint32_t kept = bits >> 16, lost = bits & 0xffff;
    return static_cast<uint16_t>(kept + (lost > 0x8000 || (lost == 0x8000 && (kept & 1))));
}

double ulp_bf16(double v) {
    if (!(std::fabs(v) >= kTiny)) return 0x1p-133;
    if (std::isinf(v)) return INFINITY;
    uint64_t bits;  // frexp, without the call: this runs once per weight
    std::memcpy(&bits, &v, sizeof bits);
    bits = (((bits >> 52) & 0x7ff) - 7) << 52;
    double ulp;
    std::memcpy(&ulp, &bits, sizeof ulp);
    return ulp;
}

double activate(int kind, double alpha, double limit, double gate, double up) {
    const Gated a = gated(kind, alpha, limit, gate, up);
    return a.f * a.v;
}

Expected compute(const Problem& p, const std::vector<int64_t>& tokens) {
    const size_t H = static_cast<size_t>(p.hidden);
    Expected e;
    e.tokens = tokens;
    e.value.assign(tokens.size() * H, 0);
    e.bound.assign(tokens.size() * H, 0);
    e.sigma.assign(tokens.size() * H, 0);
    std::vector<double> magnitude(tokens.size() * H, 0);

    std::vector<std::vector<Slot>> slots(tokens.size());
    for (size_t t = 0; t < tokens.size(); t++)
        for (int64_t k = 0; k < p.topk; k++) {
            const size_t at = static_cast<size_t>(tokens[t] * p.topk + k);
            if (p.ids[at] < 0) continue;
            Slot s;
            s.expert = p.ids[at];
            s.weight = p.on_input ? 1.0 : static_cast<double>(p.weights[at]);
            s.x.resize(H);
            widen(p.x.data() + static_cast<size_t>(tokens[t]) * H, p.hidden, s.x.data());
            if (p.on_input)
                for (float& x : s.x) x = from_bf16(to_bf16(x * p.weights[at]));
            s.sigma_weight = s.weight;
            for (Slot& earlier : slots[t])
                if (earlier.expert == s.expert && !p.on_input) {
                    s.sigma_weight += earlier.sigma_weight;
                    earlier.sigma_weight = 0;
                }
            s.h.resize(static_cast<size_t>(p.intermediate));
            s.dh.resize(static_cast<size_t>(p.intermediate));
            slots[t].push_back(std::move(s));
        }
    for (int64_t expert = 0; expert < p.experts; expert++) {
        std::vector<Slot*> mine;
        for (auto& token : slots)
            for (Slot& s : token)
                if (s.expert == expert) mine.push_back(&s);
        if (!mine.empty()) first_half(p, expert, mine);
    }
    for (size_t t = 0; t < tokens.size(); t++) {
        double *value = &e.value[t * H], *bound = &e.bound[t * H], *sigma = &e.sigma[t * H];
        for (const Slot& s : slots[t]) second_half(p, s, value, bound, sigma, &magnitude[t * H]);
        for (size_t c = 0; c < H; c++) {
            bound[c] += static_cast<double>(slots[t].size()) * kUnit * magnitude[t * H + c];
            bound[c] += 0.5 * ulp_bf16(std::fabs(value[c]) + bound[c]) + kTiny;
            if (std::fabs(value[c]) + bound[c] > kOverflow) bound[c] = INFINITY;
            const double step = ulp_bf16(value[c]);
            sigma[c] = std::sqrt(sigma[c] + step * step / 12);
        }
    }
    return e;
}

}  // namespace reference
