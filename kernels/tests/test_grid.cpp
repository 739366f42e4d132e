// The grid of shapes, activations and biases that any fused-MoE test of this field starts with.
#include <algorithm>
#include <deque>

#include "layer_case.h"

namespace {

// Drawing two hundred million weights takes longer than computing with them: kept from one ISA to the next.
const Problem& problem_of(const Shape& shape) {
    static std::deque<std::pair<std::string, Problem>> kept;
    const std::string key = describe(shape);
    for (const auto& [name, problem] : kept)
        if (name == key) return problem;
    if (kept.size() == 4) kept.pop_back();  // the four sizes of one test
    kept.emplace_front(key, make_problem(shape));
    return kept.front().second;
}

void grid(int isa, int activation, bool bias) {
    const bool scalar = std::string(moelab_isa_name(isa)) == "scalar";
    for (const int64_t hidden : {128, 2880})
        for (const int64_t intermediate : {128, 2880}) {
            // One packing serves all token counts.
            const bool large = hidden * intermediate > 1000000;
            if (testing::quick() && hidden * intermediate > 500000) continue;
            const bool wide = hidden + intermediate > 256;  // in the quick grid: one activation, few tokens and experts
            if (testing::quick() && wide && (activation != MOELAB_SWIGLUOAI || !bias)) continue;
            // Scalar code takes half a minute for the largest layer: once, unless asked for everything.
            if (large && scalar && !testing::slow() && (activation != MOELAB_SWIGLUOAI || !bias)) continue;
            const bool few = testing::quick() && wide;
            Shape shape = {few ? 2 : 8, hidden, intermediate, few ? 9 : 256, 2, activation, bias};
            const Problem& all = problem_of(shape);
            const Packed packed = pack(all, isa);
            Bits whole;
            for (const int64_t tokens : {256, 64, 9, 1}) {
                if (tokens > all.tokens || (testing::quick() && tokens > 64)) continue;
                if (large && scalar && tokens > 64 && !testing::slow()) continue;
                shape.tokens = tokens;
                std::vector<int64_t> first(static_cast<size_t>(tokens));
                for (int64_t t = 0; t < tokens; t++) first[static_cast<size_t>(t)] = t;
                const Problem p = select_tokens(all, first);
                const Bits out = run(p, packed);
                // fp64 takes its time: some tokens are compared with it, all with the runs of smaller batches.
                check(expected_of(p, "grid " + describe(shape),
                                  large              ? 20
                                  : testing::quick() ? 9
                                                     : 64),
                      out, hidden, Gate::kStatistics);
                if (whole.empty()) whole = out;
                check_same_bits(Bits(whole.begin(), whole.begin() + static_cast<int64_t>(out.size())), out, hidden,
                                "in a larger batch and in a smaller one");
            }
        }
}

}  // namespace

TEST_EACH_ISA(grid, silu) {
    grid(isa, MOELAB_SILU, false);
}
TEST_EACH_ISA(grid, silu_bias) {
    grid(isa, MOELAB_SILU, true);
}
TEST_EACH_ISA(grid, gelu) {
    grid(isa, MOELAB_GELU, false);
}
TEST_EACH_ISA(grid, gelu_bias) {
    grid(isa, MOELAB_GELU, true);
}
TEST_EACH_ISA(grid, gelu_tanh) {
    grid(isa, MOELAB_GELU_TANH, false);
}
TEST_EACH_ISA(grid, gelu_tanh_bias) {
    grid(isa, MOELAB_GELU_TANH, true);
}
TEST_EACH_ISA(grid, swigluoai) {
    grid(isa, MOELAB_SWIGLUOAI, false);
}
TEST_EACH_ISA(grid, swigluoai_bias) {
    grid(isa, MOELAB_SWIGLUOAI, true);
}
