// From a shape to a checked call: random problems, packing, guarded calls, comparison with the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "guarded.h"
#include "moelab.h"
#include "reference.h"
#include "testing.h"

using reference::Problem;
using Bits = std::vector<uint16_t>;

constexpr const char* kActivations[] = {"silu", "gelu", "gelu_tanh", "swigluoai"};

// splitmix64: the same numbers on every machine.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t bits();
    int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
    float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
    float normal();  // sum of four uniforms, standard deviation 1

  private:
    uint64_t state_;
};

struct Shape {
    int64_t experts, hidden, intermediate, tokens, topk;
    int activation = MOELAB_SILU;
    bool bias = true;
};
std::string describe(const Shape& shape);

// Weights of variance 1/K, inputs and biases of variance about 1, ids distinct per token where there are enough.
Problem make_problem(const Shape& shape, uint64_t seed = 1);

moelab_layer layer_of(const Problem& problem, int isa);

struct Packed {
    moelab_layer layer;
    Guarded memory;  // read-only
    const void* data() const { return memory.data(); }
    uint64_t bytes() const { return memory.size(); }
};
Packed pack(const Problem& problem, int isa, int threads = 2, Guarded::Side side = Guarded::kEnd);

struct Options {
    int threads = 2;
    bool int64_ids = false;
    Guarded::Side side = Guarded::kEnd;
    int64_t x_gap = 0, out_gap = 0;  // unused elements between rows
    bool transposed_topk = false;    // weights and ids stored [topk][tokens]
    bool expect = true;              // hand the layer over as the guard
};
// The status of a call on guarded, read-only copies of the inputs; `out` as [tokens][hidden]. Fails the test
// if anything outside `out` was written.
moelab_status call(const Problem& problem, const Packed& packed, const Options& options, Bits* out);
// A call on the problem's own memory, ids as int64, `out` [tokens][hidden]: for tests that bend an argument.
moelab_call plain_call(const Problem& problem, uint16_t* out);
// The same as call, where it must succeed.
Bits run(const Problem& problem, const Packed& packed, const Options& options = {});

enum class Gate { kBound, kStatistics };
// kStatistics adds the test of sigma: for random data only.
void check(const reference::Expected& expected, const Bits& out, int64_t hidden, Gate gate);

// The reference of all tokens, or of `most` of them spread over the batch; the last few are kept.
const reference::Expected& expected_of(const Problem& problem, const std::string& key, int64_t most = 1 << 30);

// make, pack, run and check in one.
void check_shape(const Shape& shape, int isa, uint64_t seed = 1, const Options& options = {});

void check_same_bits(const Bits& a, const Bits& b, int64_t hidden, const char* what);

// The rows `tokens` of a problem as a problem of their own; batch_of leaves the weights out, for packed ones.
Problem batch_of(const Problem& problem, const std::vector<int64_t>& tokens);
Problem select_tokens(const Problem& problem, const std::vector<int64_t>& tokens);

#define CHECK_STATUS(call, wanted)                                                                   \
    do {                                                                                             \
        const moelab_status status_ = (call);                                                        \
        CHECK(status_ == (wanted), "status %d: %s", static_cast<int>(status_), moelab_last_error()); \
    } while (0)
#define CHECK_MESSAGE(text) \
    CHECK(std::string(moelab_last_error()).find(text) != std::string::npos, "message: %s", moelab_last_error())
