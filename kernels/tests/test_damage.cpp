// Packed weights that are damaged, truncated, unfinished or mixed up are refused, never computed with.
#include <algorithm>
#include <cstring>

#include "layer_case.h"
#include "packed.h"

namespace {

const Shape kShape = {3, 33, 17, 2, 2, MOELAB_SILU, true};

// Status of using `memory` as the weights of `p`.
moelab_status use(const Problem& p, const void* memory, uint64_t bytes) {
    Bits out(static_cast<size_t>(p.tokens * p.hidden));
    const moelab_call c = plain_call(p, out.data());
    return moelab_fused_moe(memory, bytes, nullptr, &c);
}

struct Copy {
    Guarded memory;
    explicit Copy(const Packed& packed) : memory(packed.bytes(), Guarded::kEnd, 64) {
        std::memcpy(memory.data(), packed.data(), packed.bytes());
    }
    char* at(size_t i) { return memory.as<char>() + i; }
};

// The header ends where the expert entries begin: the first byte whose damage the cheap check does not see.
size_t header_bytes(const Problem& p, const Packed& packed) {
    Copy copy(packed);
    for (size_t i = 0; i < 4096; i++) {
        *copy.at(i) ^= 0x10;
        const bool refused = use(p, copy.memory.data(), packed.bytes()) != MOELAB_OK;
        *copy.at(i) ^= 0x10;
        if (!refused) return i;
    }
    return 4096;
}

}  // namespace

TEST_EACH_ISA(damage, every_bit_of_the_header) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    const size_t header = header_bytes(p, packed);
    CHECK(header >= 64, "only the first %zu bytes are checked", header);
    Copy copy(packed);
    for (size_t i = 0; i < header; i++)
        for (int bit = 0; bit < 8; bit++) {
            *copy.at(i) ^= static_cast<char>(1 << bit);
            const moelab_status status = use(p, copy.memory.data(), packed.bytes());
            CHECK(status == MOELAB_CORRUPT, "bit %d of byte %zu: status %d: %s", bit, i, static_cast<int>(status),
                  moelab_last_error());
            *copy.at(i) ^= static_cast<char>(1 << bit);
        }
    CHECK_STATUS(use(p, copy.memory.data(), packed.bytes()), MOELAB_OK);
}

TEST_EACH_ISA(damage, any_byte_is_found_by_verification) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    moelab_layer layer;
    CHECK_STATUS(moelab_packed_layer(packed.data(), packed.bytes(), 1, &layer), MOELAB_OK);
    Copy copy(packed);
    const size_t header = header_bytes(p, packed);
    Random random(3);
    size_t silent = 0;
    for (size_t i = 0; i < packed.bytes(); i += 1 + static_cast<size_t>(random.below(testing::quick() ? 60 : 8))) {
        *copy.at(i) ^= static_cast<char>(1 << random.below(8));
        const moelab_status status = moelab_packed_layer(copy.memory.data(), packed.bytes(), 1, &layer);
        std::memcpy(copy.at(i), static_cast<const char*>(packed.data()) + i, 1);
        if (status == MOELAB_OK) {
            // Only padding between the table of experts and the first expert may go unnoticed.
            CHECK(i > header && i < 4096, "byte %zu of %lu was changed unnoticed", i,
                  static_cast<unsigned long>(packed.bytes()));
            silent++;
        } else {
            CHECK(status == MOELAB_CORRUPT, "byte %zu: status %d", i, static_cast<int>(status));
        }
    }
    CHECK(silent < packed.bytes() / 2, "verification overlooks most of the buffer");
}

TEST_EACH_ISA(damage, two_experts_swapped) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    Copy copy(packed);
    const size_t block = (packed.bytes() - 4096) / 3;
    std::vector<char> saved(copy.at(4096), copy.at(4096 + block));
    std::memcpy(copy.at(4096), copy.at(4096 + block), block);
    std::memcpy(copy.at(4096 + block), saved.data(), block);
    moelab_layer layer;
    CHECK_STATUS(moelab_packed_layer(copy.memory.data(), packed.bytes(), 1, &layer), MOELAB_CORRUPT);
    CHECK_MESSAGE("expert");
}

TEST_EACH_ISA(damage, two_panels_swapped) {
    const Problem p = make_problem({2, 150, 150, 1, 1, MOELAB_SILU, false});
    const Packed packed = pack(p, isa);
    moelab::Layout layout;
    CHECK_STATUS(moelab::make_layout(packed.layer, &layout), MOELAB_OK);
    CHECK(layout.panels1 > 2, "too few panels");
    Copy copy(packed);
    char* first = const_cast<char*>(moelab::expert_block(layout, copy.memory.data(), 1));
    std::swap_ranges(first, first + layout.panel1_bytes, first + layout.panel1_bytes);
    moelab_layer layer;
    CHECK_STATUS(moelab_packed_layer(copy.memory.data(), packed.bytes(), 1, &layer), MOELAB_CORRUPT);
}

TEST_EACH_ISA(damage, truncated_or_longer) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{7}, uint64_t{64}, packed.bytes() - 1, packed.bytes() - 64}) {
        // The bytes that are missing are not there: reading them faults.
        Guarded shorter(bytes, Guarded::kEnd, 64);
        if (bytes % 64) shorter = Guarded(bytes + 64 - bytes % 64, Guarded::kEnd, 64);
        std::memcpy(shorter.data(), packed.data(), bytes);
        CHECK_STATUS(use(p, shorter.data(), bytes), MOELAB_CORRUPT);
        CHECK_MESSAGE("packed");
    }
    Guarded longer(packed.bytes() + 64, Guarded::kStart, 64);
    std::memcpy(longer.data(), packed.data(), packed.bytes());
    CHECK_STATUS(use(p, longer.data(), packed.bytes() + 64), MOELAB_CORRUPT);
}

TEST_EACH_ISA(damage, something_else_altogether) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    Guarded other(packed.bytes(), Guarded::kEnd, 64);
    CHECK_STATUS(use(p, other.data(), packed.bytes()), MOELAB_CORRUPT);  // zeros
    Random random(9);
    for (size_t i = 0; i < packed.bytes(); i++) other.as<uint8_t>()[i] = static_cast<uint8_t>(random.bits());
    CHECK_STATUS(use(p, other.data(), packed.bytes()), MOELAB_CORRUPT);
    CHECK_STATUS(use(p, nullptr, packed.bytes()), MOELAB_INVALID);
    CHECK_STATUS(use(p, static_cast<const char*>(packed.data()) + 2, packed.bytes()), MOELAB_INVALID);
}

TEST_EACH_ISA(damage, weights_of_another_layer) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    const auto refused = [&](moelab_layer expect, const char* name) {
        Packed other;
        other.layer = expect;
        other.memory = Guarded(packed.bytes(), Guarded::kEnd, 64);
        std::memcpy(other.memory.data(), packed.data(), packed.bytes());
        Bits out;
        CHECK_STATUS(call(p, other, {}, &out), MOELAB_INVALID);
        CHECK_MESSAGE(name);
    };
    moelab_layer l = packed.layer;
    l.num_experts++, refused(l, "num_experts"), l = packed.layer;
    l.hidden++, refused(l, "hidden"), l = packed.layer;
    l.intermediate--, refused(l, "intermediate"), l = packed.layer;
    l.activation = MOELAB_GELU, refused(l, "activation");
}

TEST_EACH_ISA(damage, unfinished_packing) {
    const Problem p = make_problem(kShape);
    const moelab_layer layer = layer_of(p, isa);
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    const Guarded memory(bytes, Guarded::kEnd, 64);
    CHECK_STATUS(moelab_pack_begin(&layer, memory.data(), bytes), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(memory.data(), bytes), MOELAB_INVALID);
    CHECK_MESSAGE("expert 0");
    const int64_t H = p.hidden, I = p.intermediate;
    const moelab_matrix w13 = {p.w13.data(), MOELAB_BF16, H, 1}, w2 = {p.w2.data(), MOELAB_BF16, I, 1};
    const moelab_matrix b13 = {p.b13.data(), MOELAB_FP32, 1, 1}, b2 = {p.b2.data(), MOELAB_FP32, 1, 1};
    const auto add = [&](int64_t e) { return moelab_pack_expert(memory.data(), bytes, e, &w13, &w2, &b13, &b2, 0, 1); };
    CHECK_STATUS(add(0), MOELAB_OK);
    CHECK_STATUS(add(2), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(memory.data(), bytes), MOELAB_INVALID);
    CHECK_MESSAGE("1");
    CHECK_STATUS(use(p, memory.data(), bytes), MOELAB_CORRUPT);
    CHECK_STATUS(add(3), MOELAB_INVALID);
    CHECK_STATUS(add(-1), MOELAB_INVALID);
    CHECK_STATUS(add(1), MOELAB_OK);
    CHECK_STATUS(moelab_pack_finish(memory.data(), bytes), MOELAB_OK);
    CHECK_STATUS(use(p, memory.data(), bytes), MOELAB_OK);
    CHECK_STATUS(add(1), MOELAB_INVALID);  // finished weights stay as they are
}
