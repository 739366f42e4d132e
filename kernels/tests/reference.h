// The layer's definition in fp64, with an error bound and an error estimate for every output.
//
// Shares nothing with the kernels: rounding, activations and the order of work are written here again.
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

float from_bf16(uint16_t bits);
uint16_t to_bf16(float value);  // to nearest, ties to even; NaN stays NaN

// Spacing of BF16 numbers around |v|, that of the smallest normal below it.
double ulp_bf16(double v);

double activate(int kind, double alpha, double limit, double gate, double up);

// One call of one layer in plain arrays.
struct Problem {
    int64_t experts = 0, hidden = 0, intermediate = 0, tokens = 0, topk = 0;
    int activation = 0;
    float alpha = 1.702f, limit = 7.0f;
    bool on_input = false;
    std::vector<uint16_t> w13, w2;  // [E][2I][H] gate rows then up rows, [E][H][I]
    std::vector<float> b13, b2;     // [E][2I], [E][H]; empty: none
    std::vector<uint16_t> x;        // [tokens][H]
    std::vector<float> weights;     // [tokens][topk]
    std::vector<int64_t> ids;       // [tokens][topk]
};

// Outputs of some tokens. For a kernel that accumulates in fp32 and rounds to BF16 after the activation and
// at the output, |out - value| <= bound always, and (out - value) / sigma is about standard normal for
// random data. bound is infinite where fp32 may overflow on the way.
struct Expected {
    std::vector<int64_t> tokens;
    std::vector<double> value, bound, sigma;  // [tokens.size()][hidden]
};
Expected compute(const Problem& problem, const std::vector<int64_t>& tokens);

}  // namespace reference
