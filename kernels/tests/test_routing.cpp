// Expert ids and router weights: skipped slots, bad ids, both widths, any strides, repeated experts.
#include <cmath>
#include <limits>

#include "layer_case.h"

namespace {

const Shape kShape = {5, 47, 37, 11, 3, MOELAB_SILU, true};

// The same problem through the reference, without keeping it.
void check_direct(const Problem& p, const Bits& out, Gate gate = Gate::kStatistics) {
    std::vector<int64_t> all;
    for (int64_t t = 0; t < p.tokens; t++) all.push_back(t);
    check(reference::compute(p, all), out, p.hidden, gate);
}

}  // namespace

TEST_EACH_ISA(ids, minus_one_skips_the_slot) {
    Problem p = make_problem(kShape);
    for (size_t i = 0; i < p.ids.size(); i += 2) p.ids[i] = -1;
    check_direct(p, run(p, pack(p, isa)));
}

TEST_EACH_ISA(ids, all_skipped_gives_zeros) {
    Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    for (int64_t k = 0; k < p.topk; k++) p.ids[static_cast<size_t>(4 * p.topk + k)] = -1;
    const Bits one = run(p, packed);
    for (int64_t c = 0; c < p.hidden; c++)
        CHECK(one[static_cast<size_t>(4 * p.hidden + c)] == 0, "column %ld of a skipped token", static_cast<long>(c));
    p.ids.assign(p.ids.size(), -1);
    check_same_bits(run(p, packed), Bits(one.size(), 0), p.hidden, "all slots skipped");
}

TEST_EACH_ISA(ids, a_skipped_slot_may_hold_any_weight) {
    Problem p = make_problem(kShape);
    for (size_t i = 0; i < p.ids.size(); i += 2) p.ids[i] = -1;
    const Packed packed = pack(p, isa);
    const Bits clean = run(p, packed);
    for (size_t i = 0; i < p.ids.size(); i += 2) p.weights[i] = NAN;
    check_same_bits(run(p, packed), clean, p.hidden, "NaN as the weight of a skipped slot");
}

TEST_EACH_ISA(ids, out_of_range_is_refused) {
    const Problem good = make_problem(kShape);
    const Packed packed = pack(good, isa);
    for (const int64_t bad : {int64_t{5}, int64_t{-2}, int64_t{1} << 30, -(int64_t{1} << 31)})
        for (const bool wide : {false, true}) {
            Problem p = good;
            p.ids[7] = bad;  // token 2, slot 1
            Options o;
            o.int64_ids = wide;
            Bits out;
            CHECK_STATUS(call(p, packed, o, &out), MOELAB_INVALID);
            CHECK_MESSAGE(std::to_string(bad));
            CHECK_MESSAGE("2");
        }
}

TEST_EACH_ISA(ids, wide_ids_are_not_truncated) {
    Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    Options o;
    o.int64_ids = true;
    for (const int64_t bad : {int64_t{1} << 32, (int64_t{1} << 32) + 3, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max(), int64_t{0xffffffff}}) {
        p.ids[0] = bad;
        Bits out;
        CHECK_STATUS(call(p, packed, o, &out), MOELAB_INVALID);
        CHECK_MESSAGE(std::to_string(bad));
    }
}

TEST_EACH_ISA(ids, both_widths_and_any_strides_agree) {
    const Problem p = make_problem(kShape);
    const Packed packed = pack(p, isa);
    const Bits plain = run(p, packed);
    for (const bool wide : {false, true})
        for (const bool transposed : {false, true})
            for (const int64_t gap : {0, 1, 64})
                for (const Guarded::Side side : {Guarded::kStart, Guarded::kEnd}) {
                    Options o;
                    o.int64_ids = wide;
                    o.transposed_topk = transposed;
                    o.x_gap = gap;
                    o.out_gap = gap ? 3 : 0;
                    o.side = side;
                    check_same_bits(run(p, packed, o), plain, p.hidden, "strides and widths of ids");
                }
}

TEST_EACH_ISA(ids, every_alignment_of_x_and_out) {
    const Problem p = make_problem({3, 40, 24, 4, 2, MOELAB_SILU, true});
    const Packed packed = pack(p, isa);
    const Bits plain = run(p, packed);
    for (size_t shift = 0; shift < 33; shift++) {
        Bits x(shift + p.x.size()), out(shift + plain.size());
        std::copy(p.x.begin(), p.x.end(), x.begin() + static_cast<int64_t>(shift));
        moelab_call c = plain_call(p, out.data() + shift);
        c.x = x.data() + shift;
        CHECK_STATUS(moelab_fused_moe(packed.data(), packed.bytes(), nullptr, &c), MOELAB_OK);
        check_same_bits(Bits(out.begin() + static_cast<int64_t>(shift), out.end()), plain, p.hidden,
                        "unaligned pointers");
    }
}

TEST_EACH_ISA(ids, all_tokens_to_one_expert) {
    for (const int64_t expert : {0, 4}) {
        Problem p = make_problem({5, 47, 37, 40, 1, MOELAB_GELU_TANH, true});
        p.ids.assign(p.ids.size(), expert);
        check_direct(p, run(p, pack(p, isa)));
    }
}

TEST_EACH_ISA(ids, same_expert_twice_counts_twice) {
    Problem p = make_problem(kShape);
    for (size_t i = 0; i < p.ids.size(); i += 3) p.ids[i + 1] = p.ids[i];
    check_direct(p, run(p, pack(p, isa)));
    p.ids.assign(p.ids.size(), 2);
    check_direct(p, run(p, pack(p, isa)));
}

TEST_EACH_ISA(ids, one_token_for_each_expert_but_some_without) {
    Problem p = make_problem({16, 33, 31, 8, 1, MOELAB_SILU, true});
    for (size_t i = 0; i < p.ids.size(); i++) p.ids[i] = static_cast<int64_t>(15 - 2 * i);
    check_direct(p, run(p, pack(p, isa)));
}

TEST_EACH_ISA(router_weight, on_input) {
    for (const int64_t topk : {1, 3}) {
        Shape shape = kShape;
        shape.topk = topk;
        for (shape.activation = 0; shape.activation < 4; shape.activation++) {
            Problem p = make_problem(shape);
            p.on_input = true;
            check_direct(p, run(p, pack(p, isa)));
        }
    }
}

TEST_EACH_ISA(router_weight, zero) {
    Problem p = make_problem(kShape);
    for (size_t i = 0; i < p.weights.size(); i += 2) p.weights[i] = 0;
    const Packed packed = pack(p, isa);
    check_direct(p, run(p, packed));
    p.weights.assign(p.weights.size(), 0);
    check_same_bits(run(p, packed), Bits(static_cast<size_t>(p.tokens * p.hidden), 0), p.hidden, "all weights zero");
}

TEST_EACH_ISA(router_weight, negative) {
    Problem p = make_problem(kShape);
    for (size_t i = 0; i < p.weights.size(); i++) p.weights[i] *= i % 3 ? -1.0f : 1.0f;
    const Packed packed = pack(p, isa);
    check_direct(p, run(p, packed));
    p.on_input = true;
    check_direct(p, run(p, packed));
}

TEST_EACH_ISA(router_weight, huge_and_tiny) {
    for (const float scale : {1e30f, 1e35f, 1e-30f, 3e-38f}) {
        Problem p = make_problem(kShape);
        for (float& w : p.weights) w *= scale;
        check_direct(p, run(p, pack(p, isa)), scale > 1e-37f ? Gate::kStatistics : Gate::kBound);
    }
}

TEST_EACH_ISA(router_weight, output_beyond_bf16_is_infinite) {
    Problem p = make_problem(kShape);
    p.weights.assign(p.weights.size(), 3e38f);
    p.b2.assign(p.b2.size(), 8.0f);
    p.w2.assign(p.w2.size(), 0);
    for (const uint16_t v : run(p, pack(p, isa))) CHECK(v == 0x7f80, "0x%04x", v);
}

TEST_EACH_ISA(router_weight, accumulates_in_fp32_slot_order) {
    // 2^24 + 1 - 2^24: what is left tells the order and the precision of the combine.
    Problem p = make_problem({3, 9, 8, 2, 3, MOELAB_SILU, true});
    p.w2.assign(p.w2.size(), 0);
    p.b2.assign(p.b2.size(), 1.0f);
    for (int64_t t = 0; t < 2; t++)
        for (int64_t k = 0; k < 3; k++)
            p.ids[static_cast<size_t>(3 * t + k)] = 2 - k;  // slot order is not expert order
    const float first[] = {0x1p24f, 1.0f, -0x1p24f}, second[] = {0x1p24f, -0x1p24f, 1.0f};
    for (int k = 0; k < 3; k++)
        p.weights[static_cast<size_t>(k)] = first[k], p.weights[static_cast<size_t>(3 + k)] = second[k];
    const Bits out = run(p, pack(p, isa));
    for (size_t c = 0; c < 9; c++) {
        CHECK(out[c] == 0, "1 added to 2^24 in fp32 is lost, got 0x%04x", out[c]);
        CHECK(out[9 + c] == 0x3f80, "1 added last is kept, got 0x%04x", out[9 + c]);
    }
}
