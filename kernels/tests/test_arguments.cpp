// Wrong arguments: a status and a sentence that names them, never a crash.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "layer_case.h"

namespace {

const Shape kShape = {3, 33, 17, 2, 2, MOELAB_SILU, true};

struct Call {
    Problem p;
    Packed packed;
    Bits out;
    moelab_call c;
    explicit Call(int isa)
        : p(make_problem(kShape)), packed(pack(p, isa)), out(p.x.size()), c(plain_call(p, out.data())) {}
    moelab_status run() { return moelab_fused_moe(packed.data(), packed.bytes(), nullptr, &c); }
};

}  // namespace

TEST_EACH_ISA(arguments, of_the_call) {
    const auto refused = [&](const char* name, void (*change)(moelab_call&)) {
        Call call(isa);
        change(call.c);
        CHECK_STATUS(call.run(), MOELAB_INVALID);
        CHECK_MESSAGE(name);
    };
    refused("x", [](moelab_call& c) { c.x = nullptr; });
    refused("topk_weights", [](moelab_call& c) { c.topk_weights = nullptr; });
    refused("topk_ids", [](moelab_call& c) { c.topk_ids = nullptr; });
    refused("out", [](moelab_call& c) { c.out = nullptr; });
    refused("tokens", [](moelab_call& c) { c.tokens = -1; });
    refused("topk", [](moelab_call& c) { c.topk = -1; });
    refused("topk", [](moelab_call& c) { c.topk = INT64_MAX; });
    refused("out", [](moelab_call& c) { c.out_stride = 32; });
    refused("out", [](moelab_call& c) { c.out_stride = -33; });
    Call good(isa);
    CHECK_STATUS(good.run(), MOELAB_OK);
    CHECK_STATUS(moelab_fused_moe(good.packed.data(), good.packed.bytes(), nullptr, nullptr), MOELAB_INVALID);
}

TEST_EACH_ISA(arguments, strides_of_x) {
    // Rows of x may lie anywhere: all the same one, or in reverse.
    Call call(isa);
    call.c.x_stride = 0;
    CHECK_STATUS(call.run(), MOELAB_OK);
    Problem same = call.p;
    std::copy_n(same.x.begin(), same.hidden, same.x.begin() + same.hidden);
    check_same_bits(call.out, run(same, call.packed), same.hidden, "x_stride 0");
    call.c.x = call.p.x.data() + call.p.hidden;
    call.c.x_stride = -call.p.hidden;
    CHECK_STATUS(call.run(), MOELAB_OK);
    Problem reversed = call.p;
    std::swap_ranges(reversed.x.begin(), reversed.x.begin() + reversed.hidden, reversed.x.begin() + reversed.hidden);
    check_same_bits(call.out, run(reversed, call.packed), reversed.hidden, "negative x_stride");
}

TEST_EACH_ISA(arguments, number_of_threads) {
    Call call(isa);
    CHECK_STATUS(call.run(), MOELAB_OK);
    const Bits plain = call.out;
    for (const int threads : {-5, 0, 1, 7}) {
        call.c.num_threads = threads;
        std::fill(call.out.begin(), call.out.end(), 0xdead);
        CHECK_STATUS(call.run(), MOELAB_OK);
        check_same_bits(call.out, plain, call.p.hidden, "threads");
    }
}

TEST_EACH_ISA(arguments, of_the_layer) {
    const moelab_layer good = {isa, MOELAB_SWIGLUOAI, 3, 33, 17, 1, 1.7f, 7.0f};
    const auto refused = [&](const char* name, void (*change)(moelab_layer&)) {
        moelab_layer layer = good;
        change(layer);
        uint64_t bytes;
        CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_INVALID);
        CHECK_MESSAGE(name);
        alignas(64) static char memory[4096];
        CHECK_STATUS(moelab_pack_begin(&layer, memory, sizeof memory), MOELAB_INVALID);
    };
    refused("isa", [](moelab_layer& l) { l.isa = -1; });
    refused("isa", [](moelab_layer& l) { l.isa = 1000; });
    refused("activation", [](moelab_layer& l) { l.activation = 4; });
    refused("activation", [](moelab_layer& l) { l.activation = -1; });
    refused("num_experts", [](moelab_layer& l) { l.num_experts = 0; });
    refused("num_experts", [](moelab_layer& l) { l.num_experts = -3; });
    refused("hidden", [](moelab_layer& l) { l.hidden = 0; });
    refused("hidden", [](moelab_layer& l) { l.hidden = INT64_MIN; });
    refused("intermediate", [](moelab_layer& l) { l.intermediate = 0; });
    refused("intermediate", [](moelab_layer& l) { l.intermediate = INT64_MAX; });
    refused("limit", [](moelab_layer& l) { l.limit = NAN; });
    refused("limit", [](moelab_layer& l) { l.limit = -1; });
    refused("alpha", [](moelab_layer& l) { l.alpha = NAN; });
    refused("alpha", [](moelab_layer& l) { l.alpha = INFINITY; });
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&good, nullptr), MOELAB_INVALID);
    CHECK_STATUS(moelab_packed_bytes(nullptr, &bytes), MOELAB_INVALID);
}

TEST_EACH_ISA(arguments, layers_beyond_64_bits_are_refused) {
    // Each size alone is allowed; their product is not a number of bytes.
    const int64_t big = (int64_t{1} << 31) - 1;
    for (const moelab_layer& layer :
         {moelab_layer{isa, MOELAB_SILU, 1, big, big, 0, 0, 0}, moelab_layer{isa, MOELAB_SILU, big, big, big, 1, 0, 0},
          moelab_layer{isa, MOELAB_SILU, big, big, 4096, 0, 0, 0}}) {
        uint64_t bytes = 0;
        const moelab_status status = moelab_packed_bytes(&layer, &bytes);
        const double need = static_cast<double>(layer.num_experts) * static_cast<double>(layer.hidden) *
                            static_cast<double>(layer.intermediate) * 6;
        if (status == MOELAB_OK)
            CHECK(need < 0x1p63 && static_cast<double>(bytes) >= need, "%lu bytes for %g",
                  static_cast<unsigned long>(bytes), need);
        else
            CHECK(status == MOELAB_INVALID, "status %d", static_cast<int>(status));
    }
}

TEST_EACH_ISA(arguments, of_packing) {
    const Problem p = make_problem(kShape);
    const moelab_layer layer = layer_of(p, isa);
    uint64_t bytes;
    CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_OK);
    const Guarded memory(bytes, Guarded::kEnd, 64);
    char* data = memory.as<char>();
    CHECK_STATUS(moelab_pack_begin(&layer, nullptr, bytes), MOELAB_INVALID);
    CHECK_STATUS(moelab_pack_begin(&layer, data, bytes - 1), MOELAB_INVALID);
    CHECK_STATUS(moelab_pack_begin(&layer, data, bytes + 64), MOELAB_INVALID);
    CHECK_STATUS(moelab_pack_begin(&layer, data + 2, bytes), MOELAB_INVALID);
    const moelab_matrix w13 = {p.w13.data(), MOELAB_BF16, 33, 1}, w2 = {p.w2.data(), MOELAB_BF16, 17, 1};
    const moelab_matrix b13 = {p.b13.data(), MOELAB_FP32, 1, 1}, b2 = {p.b2.data(), MOELAB_FP32, 1, 1};
    const moelab_matrix none = {nullptr, MOELAB_BF16, 1, 1}, odd = {p.w2.data(), 3, 1, 1};
    const auto add = [&](const moelab_matrix* a, const moelab_matrix* b, const moelab_matrix* c,
                         const moelab_matrix* d) { return moelab_pack_expert(data, bytes, 0, a, b, c, d, 0, 1); };
    CHECK(add(&w13, &w2, &b13, &b2) != MOELAB_OK, "packing before it was begun");
    CHECK_STATUS(moelab_pack_begin(&layer, data, bytes), MOELAB_OK);
    CHECK_STATUS(add(nullptr, &w2, &b13, &b2), MOELAB_INVALID);
    CHECK_MESSAGE("w13");
    CHECK_STATUS(add(&w13, &none, &b13, &b2), MOELAB_INVALID);
    CHECK_MESSAGE("w2");
    CHECK_STATUS(add(&w13, &odd, &b13, &b2), MOELAB_INVALID);
    CHECK_MESSAGE("dtype 3");
    CHECK_STATUS(add(&w13, &w2, nullptr, &b2), MOELAB_INVALID);
    CHECK_MESSAGE("bias");
    CHECK_STATUS(add(&w13, &w2, &b13, &none), MOELAB_INVALID);
    CHECK_MESSAGE("bias");
    moelab_layer bare = layer;
    bare.has_bias = 0;
    uint64_t bare_bytes;
    CHECK_STATUS(moelab_packed_bytes(&bare, &bare_bytes), MOELAB_OK);
    CHECK_STATUS(moelab_pack_begin(&bare, data, bare_bytes), MOELAB_OK);
    CHECK_STATUS(moelab_pack_expert(data, bare_bytes, 0, &w13, &w2, &b13, &b2, 0, 1), MOELAB_INVALID);
    CHECK_MESSAGE("bias");
}

TEST(arguments, the_message_belongs_to_the_last_failure) {
    int found;
    CHECK_STATUS(moelab_isa_find("first", &found), MOELAB_UNSUPPORTED);
    CHECK_MESSAGE("first");
    CHECK_STATUS(moelab_isa_find("second", &found), MOELAB_UNSUPPORTED);
    CHECK_MESSAGE("second");
    CHECK(std::strstr(moelab_last_error(), "first") == nullptr, "%s", moelab_last_error());
}

TEST(arguments, memory) {
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{5} << 20}) {
        void* memory = moelab_alloc(bytes);
        CHECK(memory && reinterpret_cast<uintptr_t>(memory) % 64 == 0, "%lu bytes at %p",
              static_cast<unsigned long>(bytes), memory);
        std::memset(memory, 1, bytes);
        moelab_free(memory, bytes);
    }
    CHECK(moelab_alloc(UINT64_MAX) == nullptr, "2^64 bytes were found");
    CHECK(moelab_alloc(uint64_t{1} << 60) == nullptr, "2^60 bytes were found");
    moelab_free(nullptr, 64);
}
