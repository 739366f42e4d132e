// The reference: plain loops that a reader can check, one multiply and one add per product, ascending k.
// Built without auto-vectorisation. A BF16 product is exact in fp32, so multiply + add equals a fused one.
#include <cstdint>

#include "isa/activation.h"
#include "isa/isa.h"
#include "isa/vec_scalar.h"

namespace moelab {
namespace {

constexpr int kNr = 4, kHalf = kNr / 2, kMr = 4;

float widen(uint16_t bits) {
    return VecScalar::from_bits(static_cast<uint32_t>(bits) << 16);
}

// The kNr columns of one panel for one row of A.
struct Columns {
    float sum[kNr];

    Columns(const uint16_t* a, const uint16_t* panel, int64_t k) : sum{} {
        float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (int64_t i = 0; i < k; ++i, panel += kNr) {
            const float x = widen(a[i]);
            s0 += x * widen(panel[0]);
            s1 += x * widen(panel[1]);
            s2 += x * widen(panel[2]);
            s3 += x * widen(panel[3]);
        }
        sum[0] = s0;
        sum[1] = s1;
        sum[2] = s2;
        sum[3] = s3;
    }

    void add_bias(const float* bias, int64_t panel) {
        if (!bias) return;
        for (int c = 0; c < kNr; ++c) sum[c] += bias[panel * kNr + c];
    }
};

void gemm1(const Gemm1& job) {
    const auto* a = static_cast<const uint16_t*>(job.a);
    const auto* b = static_cast<const uint16_t*>(job.b);
    auto* h = static_cast<uint16_t*>(job.h);
    with_gate<VecScalar>(job.act, [&](auto gated) {
        for (int64_t p = job.panel0; p < job.panel1; ++p)
            for (int64_t row = job.row0; row < job.row1; ++row) {
                Columns columns(a + row * job.k, b + p * job.k * kNr, job.k);
                columns.add_bias(job.bias, p);
                for (int c = 0; c < kHalf; ++c) {
                    const int64_t channel = p * kHalf + c;
                    h[row * job.h_k + channel] = channel < job.channels
                                                     ? VecScalar::to_bf16(gated(columns.sum[c], columns.sum[kHalf + c]))
                                                     : uint16_t{0};
                }
            }
    });
}

void gemm2(const Gemm2& job) {
    const auto* a = static_cast<const uint16_t*>(job.a);
    const auto* b = static_cast<const uint16_t*>(job.b);
    for (int64_t p = job.panel0; p < job.panel1; ++p)
        for (int64_t row = job.row0; row < job.row1; ++row) {
            Columns columns(a + row * job.k, b + p * job.k * kNr, job.k);
            columns.add_bias(job.bias, p);
            for (int c = 0; c < kNr; ++c) job.y[row * job.y_stride + p * kNr + c] = columns.sum[c];
        }
}

void pack_rows(const PackRows& job) {
    auto* a = static_cast<uint16_t*>(job.a);
    for (int64_t row = 0; row < job.rows; ++row, a += job.k_padded) {
        const uint16_t* x = job.x + job.token[row] * job.x_stride;
        for (int64_t i = 0; i < job.k; ++i) a[i] = job.scale ? VecScalar::to_bf16(widen(x[i]) * job.scale[row]) : x[i];
        for (int64_t i = job.k; i < job.k_padded; ++i) a[i] = 0;
    }
}

void combine(const Combine& job) {
    for (int64_t i = 0; i < job.n; ++i) {
        float sum = 0;
        for (int64_t s = 0; s < job.slots; ++s)
            if (job.row[s] >= 0) sum = VecScalar::fma(job.weight[s], job.y[job.row[s] * job.y_stride + i], sum);
        job.out[i] = VecScalar::to_bf16(sum);
    }
}

volatile float keep;

double peak(int64_t iterations) {
    float sum[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float factor = 0.999f, step = 0.001f;
    for (int64_t i = 0; i < iterations; ++i)
        for (float& s : sum) s = s * factor + step;
    for (const float s : sum) keep = s;
    return static_cast<double>(iterations) * 8 * 2;
}

template <int streams>
uint64_t read(const void* data, int64_t bytes) {
    const auto* words = static_cast<const uint64_t*>(data);
    const int64_t n = bytes / 8 / streams;
    uint64_t sum[4] = {};
    for (int64_t i = 0; i < n; i += 4)
        for (int s = 0; s < streams; ++s)
            for (int j = 0; j < 4; ++j) sum[j] += words[s * n + i + j];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

}  // namespace

extern const Isa kScalar = {"scalar",  0,       {kNr, 1, 1, 1, kMr, 2, 2, kHalf}, gemm1, gemm2,
                            pack_rows, combine, activate_all<VecScalar>,          peak,  peak,
                            read<1>,   read<4>};

}  // namespace moelab
