// NaN and Inf stay in the row they came with, and reach it.
#include <cmath>
#include <cstring>

#include "layer_case.h"

namespace {

bool finite(uint16_t bits) {
    return (bits & 0x7f80) != 0x7f80;
}

// Poisons row 5 of x and looks at every row. 12 tokens for one expert: all share tiles.
void poison(int isa, uint16_t value, int64_t intermediate, bool must_spread) {
    for (int activation = 0; activation < 4; activation++)
        for (const bool on_input : {false, true}) {
            Problem p = make_problem({2, 35, intermediate, 12, 2, activation, true});
            p.on_input = on_input;
            const Packed packed = pack(p, isa);
            const Bits clean = run(p, packed);
            for (const int64_t column : {0, 17, 34}) {
                Problem q = p;
                q.x[static_cast<size_t>(5 * p.hidden + column)] = value;
                const Bits out = run(q, packed);
                for (int64_t i = 0; i < static_cast<int64_t>(out.size()); i++) {
                    const int64_t token = i / p.hidden;
                    if (token != 5)
                        CHECK(out[static_cast<size_t>(i)] == clean[static_cast<size_t>(i)],
                              "%s: token %ld changed with token 5", kActivations[activation], static_cast<long>(token));
                    else if (must_spread || activation != MOELAB_SWIGLUOAI)
                        CHECK(!finite(out[static_cast<size_t>(i)]), "%s: column %ld of the poisoned token is 0x%04x",
                              kActivations[activation], static_cast<long>(i % p.hidden), out[static_cast<size_t>(i)]);
                }
            }
        }
}

}  // namespace

// Intermediate sizes around whole panels: the padded channels compute 0 * Inf.
TEST_EACH_ISA(nonfinite, nan_stays_in_its_row) {
    for (const int64_t intermediate : {1, 13, 24, 32, 33}) poison(isa, 0x7fc0, intermediate, true);
}
TEST_EACH_ISA(nonfinite, infinity_stays_in_its_row) {
    for (const int64_t intermediate : {1, 13, 24, 32, 33}) poison(isa, 0x7f80, intermediate, false);
    poison(isa, 0xff80, 13, false);
}

TEST_EACH_ISA(nonfinite, padding_does_not_leak) {
    // Gates of +Inf and ups of +-Inf are clamped to finite values: only 0 * Inf in a padded channel or a padded
    // k could spoil the row. It must be, bit for bit, what a large finite input gives.
    for (int64_t intermediate = 1; intermediate <= 34; intermediate++) {
        Problem p = make_problem({1, 9, intermediate, 3, 1, MOELAB_SWIGLUOAI, true});
        for (int64_t i = 0; i < 2 * intermediate; i++) {
            uint16_t& w = p.w13[static_cast<size_t>(i * p.hidden + 4)];
            if (i < intermediate) w = 0x3f80;
            if ((w & 0x7fff) < 0x3c00) w = 0x3f80;  // the largest finite input must saturate the clamps too
        }
        const Packed packed = pack(p, isa);
        p.x[static_cast<size_t>(p.hidden + 4)] = reference::to_bf16(1e30f);
        const Bits large = run(p, packed);
        for (const uint16_t v : large) CHECK(finite(v), "intermediate %ld", static_cast<long>(intermediate));
        p.x[static_cast<size_t>(p.hidden + 4)] = 0x7f80;
        check_same_bits(run(p, packed), large, p.hidden,
                        testing::format("intermediate %ld", static_cast<long>(intermediate)).c_str());
    }
}

TEST_EACH_ISA(nonfinite, weights_of_one_expert_reach_only_its_rows) {
    for (const int where : {0, 1, 2, 3})
        for (const uint16_t value : {uint16_t{0x7f80}, uint16_t{0x7fc0}}) {
            Problem p = make_problem({3, 33, 19, 9, 1, MOELAB_SILU, true});
            for (size_t t = 0; t < 9; t++) p.ids[t] = static_cast<int64_t>(t % 3);
            const Bits clean = run(p, pack(p, isa));
            if (where == 0) p.w13[static_cast<size_t>((2 * 19 + 18) * 33 + 32)] = value;  // last gate row of expert 1
            if (where == 1) p.w2[static_cast<size_t>((33 + 32) * 19 + 18)] = value;       // last row of its w2
            if (where == 2) p.b13[2 * 19 + 20] = reference::from_bf16(value);
            if (where == 3) p.b2[33] = reference::from_bf16(value);
            const Bits out = run(p, pack(p, isa));
            bool reached = false;
            for (size_t i = 0; i < out.size(); i++) {
                const size_t token = i / 33, column = i % 33;
                const bool spread =
                    where == 0 || where == 2 || (where == 1 && column == 32) || (where == 3 && column == 0);
                if (token % 3 == 1 && spread) {
                    CHECK(!finite(out[i]), "token %zu, column %zu is finite", token, column);
                    reached = true;
                } else {
                    CHECK(out[i] == clean[i], "case %d: token %zu, column %zu changed", where, token, column);
                }
            }
            CHECK(reached, "no output was reached");
        }
}

TEST_EACH_ISA(nonfinite, zero_times_infinity_in_the_combine_is_nan) {
    Problem p = make_problem({2, 20, 16, 3, 2, MOELAB_SILU, true});
    for (size_t t = 0; t < 3; t++) p.ids[2 * t] = 0, p.ids[2 * t + 1] = 1;
    p.b2[20 + 3] = INFINITY;  // expert 1, column 3
    for (size_t t = 0; t < 3; t++) p.weights[2 * t + 1] = 0;
    const Bits out = run(p, pack(p, isa));
    for (size_t i = 0; i < out.size(); i++) {
        const bool nan = (out[i] & 0x7fff) > 0x7f80;
        CHECK(nan == (i % 20 == 3), "column %zu: 0x%04x", i % 20, out[i]);
    }
}

TEST_EACH_ISA(nonfinite, nan_as_router_weight) {
    Problem p = make_problem({3, 20, 16, 4, 2, MOELAB_SILU, true});
    const Packed packed = pack(p, isa);
    const Bits clean = run(p, packed);
    // All payload bits set: rounding such a NaN like a number would carry into its sign.
    const uint32_t payload = 0x7fffffff;
    float full;
    std::memcpy(&full, &payload, sizeof full);
    for (const float nan : {NAN, full})
        for (const bool on_input : {false, true}) {
            Problem q = p;
            q.on_input = on_input;
            q.weights[3] = nan;  // token 1
            const Bits out = run(q, packed);
            for (size_t i = 0; i < out.size(); i++) {
                if (i / 20 == 1) CHECK((out[i] & 0x7fff) > 0x7f80, "column %zu: 0x%04x", i % 20, out[i]);
                if (i / 20 != 1 && !on_input) CHECK(out[i] == clean[i], "token %zu changed", i / 20);
            }
        }
}
