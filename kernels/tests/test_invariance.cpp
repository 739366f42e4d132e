// A token's bits do not depend on the batch around it, on its place there, on the threads or on the run.
#include <algorithm>
#include <array>
#include <thread>

#include "layer_case.h"

namespace {

constexpr Shape kShapes[] = {{3, 70, 45, 41, 2, MOELAB_SILU, true},
                             {1, 33, 100, 67, 1, MOELAB_SWIGLUOAI, true},
                             {6, 129, 31, 29, 4, MOELAB_GELU, false},
                             {4, 300, 260, 50, 2, MOELAB_GELU_TANH, true}};

// The last shape is left out where time is short.
std::vector<Shape> shapes() {
    return {kShapes, kShapes + (testing::quick() ? 3 : 4)};
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
    std::vector<int64_t> tokens;
    for (int64_t t = begin; t < end; t++) tokens.push_back(t);
    return tokens;
}

void check_rows(const Bits& whole, const Problem& p, const Packed& packed, const std::vector<int64_t>& tokens,
                const char* what) {
    const Bits part = run(batch_of(p, tokens), packed);
    for (size_t n = 0; n < tokens.size(); n++) {
        const auto row = [&](const Bits& bits, int64_t t) {
            return Bits(bits.begin() + t * p.hidden, bits.begin() + (t + 1) * p.hidden);
        };
        check_same_bits(row(part, static_cast<int64_t>(n)), row(whole, tokens[n]), p.hidden, what);
    }
}

}  // namespace

TEST_EACH_ISA(invariance, alone_and_in_a_batch) {
    for (const Shape& shape : shapes()) {
        const Problem p = make_problem(shape);
        const Packed packed = pack(p, isa);
        const Bits whole = run(p, packed);
        for (int64_t t = 0; t < p.tokens; t += testing::quick() ? 9 : 1)
            check_rows(whole, p, packed, {t}, "a token alone and in a batch");
    }
}

TEST_EACH_ISA(invariance, every_batch_size) {
    // Each batch size cuts the rows of an expert into other tiles.
    for (const Shape& shape : shapes()) {
        const Problem p = make_problem(shape);
        const Packed packed = pack(p, isa);
        const Bits whole = run(p, packed);
        for (int64_t n = 2; n < p.tokens; n += testing::quick() ? 9 : 1)
            check_rows(whole, p, packed, range(p.tokens - n, p.tokens), "a smaller batch");
    }
}

TEST_EACH_ISA(invariance, position) {
    for (const Shape& shape : shapes()) {
        const Problem p = make_problem(shape);
        const Packed packed = pack(p, isa);
        const Bits whole = run(p, packed);
        std::vector<int64_t> order = range(0, p.tokens);
        std::reverse(order.begin(), order.end());
        check_rows(whole, p, packed, order, "reversed");
        Random random(5);
        for (size_t i = order.size(); i > 1; i--)
            std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
        order.push_back(order[0]);  // and a token twice
        check_rows(whole, p, packed, order, "shuffled");
    }
}

TEST_EACH_ISA(invariance, company) {
    // The other rows are replaced by large, tiny and special values.
    const Problem p = make_problem(kShapes[0]);
    const Packed packed = pack(p, isa);
    const Bits whole = run(p, packed);
    for (const uint16_t value : {uint16_t{0x7f7f}, uint16_t{0x0001}, uint16_t{0x8000}, uint16_t{0x7fc0}}) {
        Problem q = p;
        for (int64_t t = 1; t < p.tokens; t += 2) std::fill_n(q.x.begin() + t * p.hidden, p.hidden, value);
        const Bits out = run(q, packed);
        for (int64_t t = 0; t < p.tokens; t += 2)
            for (int64_t c = 0; c < p.hidden; c++)
                CHECK(out[static_cast<size_t>(t * p.hidden + c)] == whole[static_cast<size_t>(t * p.hidden + c)],
                      "token %ld with neighbours of 0x%04x", static_cast<long>(t), value);
    }
}

TEST_EACH_ISA(invariance, number_of_threads) {
    for (const Shape& shape : shapes()) {
        const Problem p = make_problem(shape);
        const Packed packed = pack(p, isa);
        Options o;
        o.threads = 1;
        const Bits one = run(p, packed, o);
        for (const int threads : {2, 3, 5, 8, 13, 64}) {
            if (testing::quick() && threads > 8) continue;
            o.threads = threads;
            check_same_bits(run(p, packed, o), one, p.hidden, testing::format("%d threads", threads).c_str());
        }
    }
}

TEST_EACH_ISA(invariance, packing_threads) {
    const Problem p = make_problem(kShapes[3]);
    const Packed one = pack(p, isa, 1), three = pack(p, isa, 3);
    CHECK(one.bytes() == three.bytes() &&
              std::equal(one.memory.as<char>(), one.memory.as<char>() + one.bytes(), three.memory.as<char>()),
          "packed by 1 and by 3 threads");
}

TEST_EACH_ISA(invariance, run_to_run) {
    const Problem p = make_problem(kShapes[0]);
    const Packed packed = pack(p, isa);
    Options o;
    o.threads = 4;
    const Bits first = run(p, packed, o);
    for (int n = 0; n < (testing::quick() ? 5 : 40); n++) check_same_bits(run(p, packed, o), first, p.hidden, "again");
}

TEST_EACH_ISA(invariance, phases_wait_for_each_other) {
    // More threads than processors and phases of microseconds: whoever does not wait reads the NaN of the call before.
    const Problem p = make_problem({3, 64, 48, 20, 2, MOELAB_SILU, true});
    Problem poison = p;
    poison.x.assign(poison.x.size(), 0x7fc0);
    const Packed packed = pack(p, isa);
    Options o;
    o.threads = 1;
    const Bits one = run(p, packed, o);
    o.threads = 6;
    for (int n = 0; n < (testing::quick() ? 25 : 200); n++) {
        run(poison, packed, o);
        check_same_bits(run(p, packed, o), one, p.hidden, "after a call full of NaN");
    }
}

TEST_EACH_ISA(invariance, several_callers_at_once) {
    // Each with a layer and OpenMP threads of its own; ThreadSanitizer looks at what they share.
    constexpr size_t kCallers = 3;
    std::array<Problem, kCallers> problems;
    std::array<Packed, kCallers> packed;
    std::array<Bits, kCallers> want;
    for (size_t i = 0; i < kCallers; i++) {
        problems[i] = make_problem(kShapes[i]);
        packed[i] = pack(problems[i], isa);
        want[i] = run(problems[i], packed[i]);
    }
    std::array<std::string, kCallers> failures;
    std::vector<std::thread> callers;
    for (size_t i = 0; i < kCallers; i++)
        callers.emplace_back([&, i] {
            try {
                for (int n = 0; n < (testing::quick() ? 10 : 100); n++)
                    check_same_bits(run(problems[i], packed[i]), want[i], problems[i].hidden, "beside other callers");
            } catch (const testing::Failure& failure) {
                failures[i] = failure.message;
            }
        });
    for (std::thread& caller : callers) caller.join();
    for (const std::string& failure : failures) CHECK(failure.empty(), "%s", failure.c_str());
}

TEST_EACH_ISA(invariance, scratch_is_not_stale) {
    // A large call full of NaN before a small one: nothing of it may be left.
    const Problem small = make_problem(kShapes[1]);
    Problem large = make_problem({5, 200, 150, 90, 3, MOELAB_SILU, true});
    large.x.assign(large.x.size(), 0x7fc0);
    const Packed packed_small = pack(small, isa), packed_large = pack(large, isa);
    const Bits before = run(small, packed_small);
    run(large, packed_large);
    check_same_bits(run(small, packed_small), before, small.hidden, "after a larger call");
    Problem other = small;
    other.on_input = true;
    const Bits on_input = run(other, packed_small);
    run(large, packed_large);
    check_same_bits(run(other, packed_small), on_input, small.hidden, "weights on the input, after a larger call");
}
