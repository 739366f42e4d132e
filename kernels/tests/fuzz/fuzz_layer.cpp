// One input = one layer and one call of it, from raw bytes: sizes, strides, ids, weights and values of any bit
// pattern. Beside the sanitizers, four things must hold: ids decide between success and refusal, a token alone has
// the bits that it has in the batch, outputs lie within the bound of the fp64 reference, damaged weights are refused.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "layer_case.h"

namespace {

class Bytes {
  public:
    Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    int64_t below(int64_t n) { return static_cast<int64_t>(take()) % n; }
    uint64_t word(int bytes) {
        uint64_t value = 0;
        for (int i = 0; i < bytes; i++) value = value << 8 | take();
        return value;
    }
    // Ordinary values mostly, any bit pattern where the input asks for it.
    uint16_t bf16(bool any) {
        const uint16_t raw = static_cast<uint16_t>(word(2));
        return any ? raw : static_cast<uint16_t>((raw & 0x80ff) | (0x3c00 + (raw & 0x0300)));
    }

  private:
    // Beyond its end the input goes on as a fixed sequence, so that few bytes make a whole layer.
    uint8_t take() { return at_ < size_ ? data_[at_++] : static_cast<uint8_t>((at_++ * 0x9e3779b9u) >> 13); }
    const uint8_t* data_;
    size_t size_, at_ = 0;
};

[[noreturn]] void complain(const std::string& what) {
    fprintf(stderr, "property violated: %s\n", what.c_str());
    abort();
}

std::vector<int> usable() {
    std::vector<int> isas;
    for (int i = 0; i < moelab_isa_count(); i++)
        if (*moelab_isa_missing(i) == '\0') isas.push_back(i);
    return isas;
}

void one(Bytes& in) {
    static const std::vector<int> isas = usable();
    const int isa = isas[static_cast<size_t>(in.below(static_cast<int64_t>(isas.size())))];
    Problem p;
    p.experts = 1 + in.below(4);
    p.hidden = 1 + in.below(50);
    p.intermediate = 1 + in.below(50);
    p.tokens = in.below(15);
    p.topk = 1 + in.below(3);
    p.activation = static_cast<int>(in.below(4));
    const uint64_t flags = in.word(1);
    p.on_input = flags & 1;
    const bool bias = flags & 2, any_x = flags & 4, any_w = flags & 8, any_id = flags & 16;
    p.alpha = static_cast<float>(in.below(64)) / 8 - 2;
    p.limit = static_cast<float>(in.below(64)) / 4;
    Options o;
    o.threads = static_cast<int>(1 + in.below(3));
    o.int64_ids = flags & 32;
    o.transposed_topk = flags & 64;
    o.side = flags & 128 ? Guarded::kStart : Guarded::kEnd;
    o.x_gap = in.below(4);
    o.out_gap = in.below(4);
    const size_t damage = flags % 11 == 0 ? in.word(2) : SIZE_MAX;

    for (int64_t i = 0; i < p.tokens * p.hidden; i++) p.x.push_back(in.bf16(any_x));
    bool ids_good = true;
    for (int64_t i = 0; i < p.tokens * p.topk; i++) {
        int64_t id = in.below(p.experts + 1) - 1;
        if (any_id) id = o.int64_ids ? static_cast<int64_t>(in.word(8)) : static_cast<int32_t>(in.word(1)) - 3;
        ids_good = ids_good && id >= -1 && id < p.experts;
        p.ids.push_back(id);
        const float w = reference::from_bf16(in.bf16(any_w));
        p.weights.push_back(w);
    }
    for (int64_t i = 0; i < p.experts * 2 * p.intermediate * p.hidden; i++) p.w13.push_back(in.bf16(any_w));
    for (int64_t i = 0; i < p.experts * p.hidden * p.intermediate; i++) p.w2.push_back(in.bf16(any_w));
    for (int64_t i = 0; bias && i < p.experts * 2 * p.intermediate; i++)
        p.b13.push_back(reference::from_bf16(in.bf16(any_w)));
    for (int64_t i = 0; bias && i < p.experts * p.hidden; i++) p.b2.push_back(reference::from_bf16(in.bf16(any_w)));

    const Packed packed = pack(p, isa, o.threads);
    if (damage < packed.bytes()) {
        Packed damaged;
        damaged.memory = Guarded(packed.bytes(), Guarded::kEnd, 64);
        std::memcpy(damaged.memory.data(), packed.data(), packed.bytes());
        damaged.memory.as<char>()[damage] ^= 1;
        moelab_layer layer;
        const moelab_status status = moelab_packed_layer(damaged.data(), packed.bytes(), 1, &layer);
        if (status != MOELAB_OK && status != MOELAB_CORRUPT) complain("a flipped bit was reported as something else");
        // Unnoticed only in the padding between the table of experts and the first expert.
        if (status == MOELAB_OK && (damage < 128 || damage >= 4096)) complain("a flipped bit went unnoticed");
    }
    Bits out;
    const moelab_status status = call(p, packed, o, &out);
    if ((status == MOELAB_OK) != ids_good) complain(std::string("ids and status disagree: ") + moelab_last_error());
    if (status != MOELAB_OK) return;

    std::vector<int64_t> all;
    for (int64_t t = 0; t < p.tokens; t++) all.push_back(t);
    for (const int64_t t : all) {
        const Bits alone = run(batch_of(p, {t}), packed, o);
        if (std::memcmp(alone.data(), out.data() + t * p.hidden, alone.size() * 2) != 0)
            complain("a token differs alone and in a batch");
    }
    // Outside the finite range implementations may differ in which of NaN and Inf they give.
    if (any_x || any_w) return;
    check(reference::compute(p, all), out, p.hidden, Gate::kBound);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Bytes in(data, size);
    try {
        one(in);
    } catch (const testing::Failure& failure) {
        complain(failure.message);
    }
    return 0;
}
