// Any hidden size, intermediate size, number of experts, of slots and of tokens: no multiples of anything.
#include <algorithm>

#include "layer_case.h"

namespace {

constexpr int64_t kOdd[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 48, 63, 65, 127, 176};

Shape with(int64_t hidden, int64_t intermediate, int64_t tokens, int n) {
    return {3, hidden, intermediate, tokens, 2, n % 4, n % 3 != 0};
}

}  // namespace

TEST_EACH_ISA(sizes, hidden) {
    int n = 0;
    for (const int64_t hidden : kOdd) check_shape(with(hidden, 40, 5, n++), isa);
    if (!testing::quick()) check_shape(with(704, 40, 5, n++), isa), check_shape(with(2879, 24, 5, n++), isa);
}

TEST_EACH_ISA(sizes, intermediate) {
    int n = 0;
    for (const int64_t intermediate : kOdd) check_shape(with(40, intermediate, 5, n++), isa);
    if (!testing::quick()) check_shape(with(40, 704, 5, n++), isa), check_shape(with(24, 2879, 5, n++), isa);
}

TEST_EACH_ISA(sizes, tokens_of_one_expert) {
    // Every number of rows that a tile can have, and every remainder after a few tiles.
    for (int64_t tokens = 1; tokens <= (testing::quick() ? 26 : 70); tokens++)
        check_shape({1, 33, 31, tokens, 1, static_cast<int>(tokens % 4), true}, isa);
}

TEST_EACH_ISA(sizes, everything_is_one) {
    for (int activation = 0; activation < 4; activation++)
        for (const bool bias : {false, true}) check_shape({1, 1, 1, 1, 1, activation, bias}, isa);
}

TEST_EACH_ISA(sizes, experts) {
    for (const int64_t experts : {1, 2, 7, 33, 128})
        check_shape({experts, 31, 17, 9, std::min<int64_t>(experts, 4), MOELAB_SILU, true}, isa);
}

TEST_EACH_ISA(sizes, more_slots_than_experts) {
    check_shape({2, 33, 17, 6, 7, MOELAB_GELU, true}, isa);
    check_shape({1, 33, 17, 3, 16, MOELAB_SWIGLUOAI, true}, isa);
}

TEST_EACH_ISA(sizes, more_experts_than_slots) {
    check_shape({128, 24, 16, 1, 1, MOELAB_SILU, true}, isa);
}

TEST_EACH_ISA(sizes, no_tokens) {
    const Problem p = make_problem({4, 33, 17, 0, 2, MOELAB_SILU, true});
    CHECK(run(p, pack(p, isa)).empty(), "an output appeared");
}

TEST_EACH_ISA(sizes, no_slots) {
    const Problem p = make_problem({4, 33, 17, 3, 0, MOELAB_SILU, true});
    Bits out;
    // A layer without slots is a sum over nothing; refusing it by name would be right too, garbage would not.
    const moelab_status status = call(p, pack(p, isa), {}, &out);
    if (status == MOELAB_OK)
        check_same_bits(out, Bits(out.size(), 0), p.hidden, "no slots");
    else
        CHECK(status == MOELAB_INVALID, "status %d", static_cast<int>(status));
}

TEST_EACH_ISA(sizes, k_beyond_a_cache_block) {
    // Long chains are cut into cache blocks; the sums must be carried over exactly.
    if (testing::quick()) SKIP("long chains take too long here");
    check_shape({2, 9001, 19, 14, 1, MOELAB_SILU, true}, isa);
    check_shape({2, 19, 9001, 14, 1, MOELAB_SILU, true}, isa);
}

TEST_EACH_ISA(sizes, random) {
    Random random(20);
    for (int n = 0; n < (testing::quick() ? 30 : 250); n++) {
        const int64_t experts = 1 + random.below(9);
        const Shape shape = {experts,
                             1 + random.below(140),
                             1 + random.below(140),
                             random.below(50),
                             1 + random.below(4),
                             static_cast<int>(random.below(4)),
                             random.below(2) == 0};
        Options o;
        o.threads = static_cast<int>(1 + random.below(4));
        o.int64_ids = random.below(2) == 0;
        o.side = random.below(2) ? Guarded::kStart : Guarded::kEnd;
        o.x_gap = random.below(5);
        o.out_gap = random.below(5);
        o.transposed_topk = random.below(2) == 0;
        check_shape(shape, isa, random.bits(), o);
    }
}
