#include "layer_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>

using testing::format;

uint64_t Random::bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

float Random::normal() {
    const uint64_t b = bits();
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += static_cast<float>(static_cast<int16_t>(b >> (16 * i)));
    return sum * (0x1p-16f * 1.7320508f);
}

std::string describe(const Shape& s) {
    return format("experts %ld, hidden %ld, intermediate %ld, tokens %ld, topk %ld, %s, %s",
                  static_cast<long>(s.experts), static_cast<long>(s.hidden), static_cast<long>(s.intermediate),
                  static_cast<long>(s.tokens), static_cast<long>(s.topk), kActivations[s.activation],
                  s.bias ? "bias" : "no bias");
}

namespace {

Bits random_bf16(Random& random, int64_t n, float scale) {
    Bits values(static_cast<size_t>(n));
    for (uint16_t& v : values) v = reference::to_bf16(random.normal() * scale);
    return values;
}

std::vector<float> random_bias(Random& random, int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = reference::from_bf16(reference::to_bf16(random.normal() * 0.5f));
    return values;
}

moelab_matrix matrix(const void* data, int dtype, int64_t row_stride, int64_t col_stride) {
    return {data, dtype, row_stride, col_stride};
}

template <class T>
Guarded copy_of(const std::vector<T>& from, Guarded::Side side) {
    Guarded memory(from.size() * sizeof(T), side, alignof(T));
    if (!from.empty()) std::memcpy(memory.data(), from.data(), from.size() * sizeof(T));
    memory.read_only();
    return memory;
}

}  // namespace

Problem make_problem(const Shape& s, uint64_t seed) {
    Random random(seed * 1000003 + static_cast<uint64_t>(s.hidden * 31 + s.intermediate));
    Problem p;
    p.experts = s.experts;
    p.hidden = s.hidden;
    p.intermediate = s.intermediate;
    p.tokens = s.tokens;
    p.topk = s.topk;
    p.activation = s.activation;
    p.w13 = random_bf16(random, s.experts * 2 * s.intermediate * s.hidden, 1 / std::sqrt(static_cast<float>(s.hidden)));
    p.w2 =
        random_bf16(random, s.experts * s.hidden * s.intermediate, 1 / std::sqrt(static_cast<float>(s.intermediate)));
    if (s.bias) {
        p.b13 = random_bias(random, s.experts * 2 * s.intermediate);
        p.b2 = random_bias(random, s.experts * s.hidden);
    }
    p.x = random_bf16(random, s.tokens * s.hidden, 1);
    std::vector<int64_t> order(static_cast<size_t>(s.experts));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t k = 0; k < s.topk; k++) {
            const int64_t at = k % std::max<int64_t>(s.experts, 1);
            if (s.experts) {
                std::swap(order[static_cast<size_t>(at)],
                          order[static_cast<size_t>(at + random.below(s.experts - at))]);
                p.ids.push_back(order[static_cast<size_t>(at)]);
            } else {
                p.ids.push_back(-1);
            }
            p.weights.push_back(0.05f + random.uniform());
        }
    return p;
}

moelab_layer layer_of(const Problem& p, int isa) {
    return {isa, p.activation, p.experts, p.hidden, p.intermediate, !p.b13.empty(), p.alpha, p.limit};
}

moelab_call plain_call(const Problem& p, uint16_t* out) {
    moelab_call c = {};
    c.x = p.x.data();
    c.x_stride = p.hidden;
    c.tokens = p.tokens;
    c.topk = p.topk;
    c.topk_weights = p.weights.data();
    c.topk_ids = p.ids.data();
    c.ids_are_int64 = 1;
    c.weights_stride[0] = c.ids_stride[0] = p.topk;
    c.weights_stride[1] = c.ids_stride[1] = 1;
    c.out = out;
    c.out_stride = p.hidden;
    return c;
}

Packed pack(const Problem& p, int isa, int threads, Guarded::Side side) {
    const int64_t H = p.hidden, I = p.intermediate;
    Packed packed;
    packed.layer = layer_of(p, isa);
    uint64_t bytes = 0;
    CHECK_STATUS(moelab_packed_bytes(&packed.layer, &bytes), MOELAB_OK);
    packed.memory = Guarded(bytes, side, 64);
    void* data = packed.memory.data();
    CHECK_STATUS(moelab_pack_begin(&packed.layer, data, bytes), MOELAB_OK);
    for (int64_t e = 0; e < p.experts; e++) {
        const moelab_matrix w13 = matrix(p.w13.data() + e * 2 * I * H, MOELAB_BF16, H, 1);
        const moelab_matrix w2 = matrix(p.w2.data() + e * H * I, MOELAB_BF16, I, 1);
        const moelab_matrix b13 = matrix(p.b13.empty() ? nullptr : p.b13.data() + e * 2 * I, MOELAB_FP32, 1, 1);
        const moelab_matrix b2 = matrix(p.b2.empty() ? nullptr : p.b2.data() + e * H, MOELAB_FP32, 1, 1);
        CHECK_STATUS(moelab_pack_expert(data, bytes, e, &w13, &w2, &b13, &b2, 0, threads), MOELAB_OK);
    }
    CHECK_STATUS(moelab_pack_finish(data, bytes), MOELAB_OK);
    packed.memory.read_only();
    return packed;
}

moelab_status call(const Problem& p, const Packed& packed, const Options& o, Bits* out) {
    const int64_t T = p.tokens, K = p.topk, H = p.hidden;
    const int64_t x_stride = H + o.x_gap, out_stride = H + o.out_gap;
    // The last row of a strided matrix ends with its last element: the gap after it does not exist.
    const int64_t x_size = T ? (T - 1) * x_stride + H : 0, out_size = T ? (T - 1) * out_stride + H : 0;

    Bits x(static_cast<size_t>(x_size), 0x7fc0);  // NaN in the gaps: reading them shows
    for (int64_t t = 0; t < T; t++) std::copy_n(p.x.begin() + t * H, H, x.begin() + t * x_stride);
    std::vector<float> weights = p.weights;
    std::vector<int64_t> ids = p.ids;
    if (o.transposed_topk)
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < K; k++) {
                weights[static_cast<size_t>(k * T + t)] = p.weights[static_cast<size_t>(t * K + k)];
                ids[static_cast<size_t>(k * T + t)] = p.ids[static_cast<size_t>(t * K + k)];
            }
    const Guarded gx = copy_of(x, o.side), gw = copy_of(weights, o.side);
    const Guarded gi =
        o.int64_ids ? copy_of(ids, o.side) : copy_of(std::vector<int32_t>(ids.begin(), ids.end()), o.side);
    Guarded gout(static_cast<size_t>(out_size) * 2, o.side, 2);
    constexpr uint16_t kCanary = 0xdead;
    std::fill_n(gout.as<uint16_t>(), out_size, kCanary);

    moelab_call c = {};
    c.x = gx.as<uint16_t>();
    c.x_stride = x_stride;
    c.tokens = T;
    c.topk = K;
    c.topk_weights = gw.as<float>();
    c.topk_ids = gi.data();
    c.ids_are_int64 = o.int64_ids;
    c.weights_stride[0] = c.ids_stride[0] = o.transposed_topk ? 1 : K;
    c.weights_stride[1] = c.ids_stride[1] = o.transposed_topk ? T : 1;
    c.out = gout.as<uint16_t>();
    c.out_stride = out_stride;
    c.router_weight_on_input = p.on_input;
    c.num_threads = o.threads;
    const moelab_status status =
        moelab_fused_moe(packed.data(), packed.bytes(), o.expect ? &packed.layer : nullptr, &c);
    if (status != MOELAB_OK) return status;
    out->resize(static_cast<size_t>(T * H));
    for (int64_t t = 0; t < T; t++) {
        std::copy_n(c.out + t * out_stride, H, out->begin() + t * H);
        for (int64_t g = H; g < out_stride && t + 1 < T; g++)
            CHECK(c.out[t * out_stride + g] == kCanary, "out was written %ld past the end of row %ld",
                  static_cast<long>(g - H), static_cast<long>(t));
    }
    return status;
}

Bits run(const Problem& p, const Packed& packed, const Options& o) {
    Bits out;
    CHECK_STATUS(call(p, packed, o, &out), MOELAB_OK);
    return out;
}

void check(const reference::Expected& e, const Bits& out, int64_t hidden, Gate gate) {
    double squares = 0, worst = 0;
    for (size_t n = 0; n < e.value.size(); n++) {
        const int64_t token = e.tokens[n / static_cast<size_t>(hidden)];
        const int64_t column = static_cast<int64_t>(n % static_cast<size_t>(hidden));
        const double got = reference::from_bf16(out[static_cast<size_t>(token * hidden + column)]);
        const double value = e.value[n], error = std::fabs(got - value);
        const std::string where =
            format("token %ld, column %ld: got %.9g, expected %.9g +- %.3g, sigma %.3g", static_cast<long>(token),
                   static_cast<long>(column), got, value, e.bound[n], e.sigma[n]);
        if (!std::isfinite(value)) {
            CHECK(!std::isfinite(got), "%s", where.c_str());
            continue;
        }
        if (!std::isinf(e.bound[n])) CHECK(error <= e.bound[n], "%s", where.c_str());
        if (gate != Gate::kStatistics) continue;
        const double z = error / e.sigma[n];
        CHECK(z <= 8, "%.1f sigma, %s", z, where.c_str());
        squares += z * z;
        worst = std::max(worst, z);
    }
    if (gate == Gate::kStatistics && !e.value.empty()) {
        // About 1; the allowance is for few outputs, whose errors are not independent.
        const double rms = std::sqrt(squares / static_cast<double>(e.value.size()));
        const double most = 1.2 + 4 / std::sqrt(static_cast<double>(e.value.size()));
        CHECK(rms <= most, "root mean square of error / sigma is %.3f, more than %.3f (largest %.2f)", rms, most,
              worst);
    }
}

const reference::Expected& expected_of(const Problem& p, const std::string& key, int64_t most) {
    static std::deque<std::pair<std::string, reference::Expected>> kept;
    for (const auto& entry : kept)
        if (entry.first == key) return entry.second;
    std::vector<int64_t> tokens;
    const int64_t n = std::min(most, p.tokens);
    for (int64_t i = 0; i < n; i++) tokens.push_back(n == 1 ? p.tokens - 1 : i * (p.tokens - 1) / (n - 1));
    kept.emplace_front(key, reference::compute(p, tokens));
    if (kept.size() > 4) kept.pop_back();
    return kept.front().second;
}

void check_shape(const Shape& shape, int isa, uint64_t seed, const Options& options) {
    const Problem p = make_problem(shape, seed);
    const Packed packed = pack(p, isa, options.threads, options.side);
    try {
        const Bits out = run(p, packed, options);
        const std::string key = describe(shape) + format(" seed %lu", static_cast<unsigned long>(seed));
        check(expected_of(p, key), out, p.hidden, Gate::kStatistics);
    } catch (testing::Failure& failure) {
        failure.message = describe(shape) + ": " + failure.message;
        throw;
    }
}

void check_same_bits(const Bits& a, const Bits& b, int64_t hidden, const char* what) {
    CHECK(a.size() == b.size(), "%s: sizes differ", what);
    for (size_t i = 0; i < a.size(); i++)
        CHECK(a[i] == b[i], "%s: token %ld, column %ld: 0x%04x and 0x%04x", what,
              static_cast<long>(i / static_cast<size_t>(hidden)), static_cast<long>(i % static_cast<size_t>(hidden)),
              a[i], b[i]);
}

Problem batch_of(const Problem& p, const std::vector<int64_t>& tokens) {
    Problem s;
    s.experts = p.experts;
    s.hidden = p.hidden;
    s.intermediate = p.intermediate;
    s.tokens = static_cast<int64_t>(tokens.size());
    s.topk = p.topk;
    s.activation = p.activation;
    s.alpha = p.alpha;
    s.limit = p.limit;
    s.on_input = p.on_input;
    for (const int64_t t : tokens) {
        s.x.insert(s.x.end(), p.x.begin() + t * p.hidden, p.x.begin() + (t + 1) * p.hidden);
        s.weights.insert(s.weights.end(), p.weights.begin() + t * p.topk, p.weights.begin() + (t + 1) * p.topk);
        s.ids.insert(s.ids.end(), p.ids.begin() + t * p.topk, p.ids.begin() + (t + 1) * p.topk);
    }
    return s;
}

Problem select_tokens(const Problem& p, const std::vector<int64_t>& tokens) {
    Problem s = batch_of(p, tokens);
    s.w13 = p.w13;
    s.w2 = p.w2;
    s.b13 = p.b13;
    s.b2 = p.b2;
    return s;
}
