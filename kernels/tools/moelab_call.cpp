// One fused MoE call on random weights with routing from a file, for ci/counts.py: the call that is counted is the
// second one, so that scratch is there and pages are touched.
//
//     moelab_call ISA ACTIVATION EXPERTS HIDDEN INTERMEDIATE BIAS INTERLEAVED ROUTING
//
// ROUTING: int32 tokens, int32 topk, int32 ids [tokens][topk], float weights [tokens][topk].
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "moelab.h"
#include "phase.h"

namespace {

constexpr int begin_mark = 15, end_mark = 14;

[[noreturn]] void stop(const char* what) {
    std::fprintf(stderr, "moelab_call: %s: %s\n", what, moelab_last_error());
    std::exit(1);
}

void must(moelab_status status, const char* what) {
    if (status != MOELAB_OK) stop(what);
}

// Values about normally distributed (the sum of four uniform ones), as BF16 bits.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}

    void fill(std::vector<uint16_t>* out, double deviation) {
        const float step = static_cast<float>(deviation * std::sqrt(3.0) / 65536);
        for (uint16_t& bits : *out) {
            state_ = state_ * 6364136223846793005u + 1442695040888963407u;
            const uint64_t word = state_ ^ state_ >> 29;
            int32_t sum = -131070;
            for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(word >> 16 * i & 0xffff);
            const float value = static_cast<float>(sum) * step;
            uint32_t as_int;
            std::memcpy(&as_int, &value, sizeof as_int);
            bits = static_cast<uint16_t>(as_int >> 16);
        }
    }

  private:
    uint64_t state_;
};

struct Routing {
    int32_t tokens = 0, topk = 0;
    std::vector<int32_t> ids;
    std::vector<float> weights;
};

Routing read_routing(const char* path) {
    Routing r;
    std::FILE* file = std::fopen(path, "rb");
    bool ok = file && std::fread(&r.tokens, 4, 1, file) == 1 && std::fread(&r.topk, 4, 1, file) == 1;
    if (ok) {
        const size_t slots = static_cast<size_t>(r.tokens) * static_cast<size_t>(r.topk);
        r.ids.resize(slots);
        r.weights.resize(slots);
        ok = std::fread(r.ids.data(), 4, slots, file) == slots && std::fread(r.weights.data(), 4, slots, file) == slots;
    }
    if (!ok) stop("the routing file cannot be read");
    std::fclose(file);
    return r;
}

int activation_of(const char* name) {
    const char* const names[] = {"silu", "gelu", "gelu_tanh", "swigluoai"};
    for (int i = 0; i < 4; ++i)
        if (std::strcmp(names[i], name) == 0) return i;
    std::fprintf(stderr, "moelab_call: activation %s\n", name);
    std::exit(1);
}

void* pack(const moelab_layer& layer, bool interleaved, uint64_t* bytes) {
    must(moelab_packed_bytes(&layer, bytes), "packed_bytes");
    void* packed = moelab_alloc(*bytes);
    if (!packed) stop("no memory");
    must(moelab_pack_begin(&layer, packed, *bytes), "pack_begin");
    const size_t hidden = static_cast<size_t>(layer.hidden), inner = static_cast<size_t>(layer.intermediate);
    std::vector<uint16_t> w13(2 * inner * hidden), w2(hidden * inner), b13(2 * inner), b2(hidden);
    for (int64_t e = 0; e < layer.num_experts; ++e) {
        Random random(static_cast<uint64_t>(e));
        random.fill(&w13, 1 / std::sqrt(static_cast<double>(hidden)));
        random.fill(&w2, 1 / std::sqrt(static_cast<double>(inner)));
        random.fill(&b13, 0.5);
        random.fill(&b2, 0.5);
        const moelab_matrix m13{w13.data(), MOELAB_BF16, layer.hidden, 1},
            m2{w2.data(), MOELAB_BF16, layer.intermediate, 1};
        const moelab_matrix v13{b13.data(), MOELAB_BF16, 1, 1}, v2{b2.data(), MOELAB_BF16, 1, 1};
        must(moelab_pack_expert(packed, *bytes, e, &m13, &m2, layer.has_bias ? &v13 : nullptr,
                                layer.has_bias ? &v2 : nullptr, interleaved, 1),
             "pack_expert");
    }
    must(moelab_pack_finish(packed, *bytes), "pack_finish");
    return packed;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 9) {
        std::fprintf(stderr, "usage: %s ISA ACTIVATION EXPERTS HIDDEN INTERMEDIATE BIAS INTERLEAVED ROUTING\n",
                     argv[0]);
        return 2;
    }
    moelab_layer layer{};
    must(moelab_isa_find(argv[1], &layer.isa), "isa");
    layer.activation = activation_of(argv[2]);
    layer.num_experts = std::atoll(argv[3]);
    layer.hidden = std::atoll(argv[4]);
    layer.intermediate = std::atoll(argv[5]);
    layer.has_bias = std::atoi(argv[6]);
    layer.alpha = 1.702f;
    layer.limit = 7.0f;
    const Routing routing = read_routing(argv[8]);
    uint64_t bytes = 0;
    void* packed = pack(layer, std::atoi(argv[7]) != 0, &bytes);

    std::vector<uint16_t> x(static_cast<size_t>(routing.tokens * layer.hidden)), out(x.size());
    Random(12345).fill(&x, 1);
    moelab_call call{};
    call.x = x.data();
    call.x_stride = layer.hidden;
    call.tokens = routing.tokens;
    call.topk = routing.topk;
    call.topk_weights = routing.weights.data();
    call.weights_stride[0] = routing.topk;
    call.weights_stride[1] = 1;
    call.topk_ids = routing.ids.data();
    call.ids_stride[0] = routing.topk;
    call.ids_stride[1] = 1;
    call.out = out.data();
    call.out_stride = layer.hidden;
    call.num_threads = 1;
    must(moelab_fused_moe(packed, bytes, &layer, &call), "fused_moe");
    moelab::mark_phase<begin_mark>();
    must(moelab_fused_moe(packed, bytes, &layer, &call), "fused_moe");
    moelab::mark_phase<end_mark>();

    uint64_t digest = 0;
    for (const uint16_t value : out) digest = (digest ^ value) * 0x100000001b3u;
    std::printf("%016llx\n", static_cast<unsigned long long>(digest));
    moelab_free(packed, bytes);
    return 0;
}
