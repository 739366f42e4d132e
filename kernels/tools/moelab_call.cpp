// Fused MoE calls on random weights with routing from files, for ci/counts.py. One call per routing is counted, between
// two marks; before them the first routing, the one with the most tokens, runs uncounted, so that scratch is there.
//
//     moelab_call ISA ACTIVATION EXPERTS HIDDEN INTERMEDIATE BIAS INTERLEAVED ROUTING...
//
// ROUTING: int32 tokens, int32 topk, int32 ids [tokens][topk], float weights [tokens][topk].
//
// Prints a digest of each call's output: the same call gives the same bits.
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

// Every expert's weights are a window of the same random numbers, at a place of its own: drawing them anew takes an
// emulator longer than the calls.
void* pack(const moelab_layer& layer, bool interleaved, uint64_t* bytes) {
    must(moelab_packed_bytes(&layer, bytes), "packed_bytes");
    void* packed = moelab_alloc(*bytes);
    if (!packed) stop("no memory");
    must(moelab_pack_begin(&layer, packed, *bytes), "pack_begin");
    const size_t hidden = static_cast<size_t>(layer.hidden), inner = static_cast<size_t>(layer.intermediate);
    constexpr size_t apart = 7;  // elements between the windows of neighbours
    const size_t shifts = apart * static_cast<size_t>(layer.num_experts);
    std::vector<uint16_t> w13(2 * inner * hidden + shifts), w2(hidden * inner + shifts), b13(2 * inner + shifts),
        b2(hidden + shifts);
    Random random(0);
    random.fill(&w13, 1 / std::sqrt(static_cast<double>(hidden)));
    random.fill(&w2, 1 / std::sqrt(static_cast<double>(inner)));
    random.fill(&b13, 0.5);
    random.fill(&b2, 0.5);
    for (int64_t e = 0; e < layer.num_experts; ++e) {
        const size_t at = apart * static_cast<size_t>(e);
        const moelab_matrix m13{&w13[at], MOELAB_BF16, layer.hidden, 1},
            m2{&w2[at], MOELAB_BF16, layer.intermediate, 1};
        const moelab_matrix v13{&b13[at], MOELAB_BF16, 1, 1}, v2{&b2[at], MOELAB_BF16, 1, 1};
        must(moelab_pack_expert(packed, *bytes, e, &m13, &m2, layer.has_bias ? &v13 : nullptr,
                                layer.has_bias ? &v2 : nullptr, interleaved, 1),
             "pack_expert");
    }
    must(moelab_pack_finish(packed, *bytes), "pack_finish");
    return packed;
}

// Buffers for the routing with the most tokens.
struct Buffers {
    std::vector<uint16_t> x, out;
};

void run(const moelab_layer& layer, const void* packed, uint64_t bytes, const Routing& routing, Buffers* buffers,
         bool counted) {
    moelab_call call{};
    call.x = buffers->x.data();
    call.x_stride = layer.hidden;
    call.tokens = routing.tokens;
    call.topk = routing.topk;
    call.topk_weights = routing.weights.data();
    call.weights_stride[0] = routing.topk;
    call.weights_stride[1] = 1;
    call.topk_ids = routing.ids.data();
    call.ids_stride[0] = routing.topk;
    call.ids_stride[1] = 1;
    call.out = buffers->out.data();
    call.out_stride = layer.hidden;
    call.num_threads = 1;
    if (counted) moelab::mark_phase<begin_mark>();
    const moelab_status status = moelab_fused_moe(packed, bytes, &layer, &call);
    if (counted) moelab::mark_phase<end_mark>();
    must(status, "fused_moe");
}

uint64_t digest_of(const uint16_t* values, size_t count) {
    uint64_t digest = 0;
    for (size_t i = 0; i < count; ++i) digest = (digest ^ values[i]) * 0x100000001b3u;
    return digest;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 9) {
        std::fprintf(stderr, "usage: %s ISA ACTIVATION EXPERTS HIDDEN INTERMEDIATE BIAS INTERLEAVED ROUTING...\n",
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
    std::vector<Routing> routings;
    for (int i = 8; i < argc; ++i) routings.push_back(read_routing(argv[i]));
    uint64_t bytes = 0;
    void* packed = pack(layer, std::atoi(argv[7]) != 0, &bytes);

    const auto elements = [&](const Routing& routing) { return static_cast<size_t>(routing.tokens * layer.hidden); };
    Buffers buffers;
    buffers.x.resize(elements(routings[0]));
    buffers.out.resize(elements(routings[0]));
    Random(12345).fill(&buffers.x, 1);
    run(layer, packed, bytes, routings[0], &buffers, false);
    for (const Routing& routing : routings) {
        if (routing.tokens > routings[0].tokens) stop("the first routing must have the most tokens");
        run(layer, packed, bytes, routing, &buffers, true);
        std::printf("%016llx\n", static_cast<unsigned long long>(digest_of(buffers.out.data(), elements(routing))));
    }
    moelab_free(packed, bytes);
    return 0;
}
