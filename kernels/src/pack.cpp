// Packing and unpacking of one expert, any strides and dtypes in, panels out (isa/isa.h has the layout).
#include <omp.h>

#include <cstring>

#include "bf16.h"
#include "error.h"
#include "packed.h"
#include "threads.h"

namespace moelab {
namespace {

// One weight as BF16 bits. fp32 and fp16 are rounded once.
template <int dtype>
inline uint16_t load_bf16(const void* data, int64_t index) {
    if (dtype == MOELAB_BF16) return static_cast<const uint16_t*>(data)[index];
    if (dtype == MOELAB_FP16) return float_to_bf16(fp16_to_float(static_cast<const uint16_t*>(data)[index]));
    return float_to_bf16(static_cast<const float*>(data)[index]);
}

inline void store_weight(void* panel, int64_t index, uint16_t bits, int w_bytes) {
    if (w_bytes == 2) {
        static_cast<uint16_t*>(panel)[index] = bits;
    } else {
        static_cast<uint32_t*>(panel)[index] = static_cast<uint32_t>(bits) << 16;
    }
}

// Fills one panel: column c is row `source_row(c)` of the matrix (a negative row is padding).
struct PanelJob {
    const moelab_matrix* matrix;
    const int64_t* source_row;  // [nr]
    int64_t k, k_padded;
    const Geometry* geometry;
    void* panel;
};

template <int dtype>
void pack_panel(const PanelJob& job) {
    const Geometry& g = *job.geometry;
    const moelab_matrix& m = *job.matrix;
    for (int64_t k0 = 0; k0 < job.k_padded; k0 += g.kr) {
        const int64_t valid = job.k - k0 < g.kr ? (job.k - k0 > 0 ? job.k - k0 : 0) : g.kr;
        for (int c = 0; c < g.nr; ++c) {
            const int64_t row = job.source_row[c];
            const int64_t at = k0 * g.nr + static_cast<int64_t>(c) * g.kr;
            for (int64_t i = 0; i < g.kr; ++i) {
                const bool inside = row >= 0 && i < valid;
                const uint16_t bits =
                    inside ? load_bf16<dtype>(m.data, row * m.row_stride + (k0 + i) * m.col_stride) : uint16_t{0};
                store_weight(job.panel, at + i, bits, g.w_bytes);
            }
        }
    }
}

// The common case: BF16 with k contiguous. A kr-group of a column moves as one word.
template <typename Word>
void pack_panel_words(const PanelJob& job) {
    const Geometry& g = *job.geometry;
    const moelab_matrix& m = *job.matrix;
    const auto* source = static_cast<const uint16_t*>(m.data);
    Word* out = static_cast<Word*>(job.panel);
    const int64_t whole = job.k / g.kr;
    // Column blocks keep the source rows' cache lines few enough to stay in L1 while k advances.
    constexpr int64_t k_block = 64;
    for (int64_t b0 = 0; b0 < whole; b0 += k_block) {
        const int64_t b1 = b0 + k_block < whole ? b0 + k_block : whole;
        for (int c = 0; c < g.nr; ++c) {
            const int64_t row = job.source_row[c];
            if (row < 0) {
                for (int64_t b = b0; b < b1; ++b) out[b * g.nr + c] = 0;
                continue;
            }
            const uint16_t* in = source + row * m.row_stride;
            for (int64_t b = b0; b < b1; ++b) std::memcpy(&out[b * g.nr + c], in + b * g.kr, sizeof(Word));
        }
    }
    const int64_t done = whole * g.kr;
    if (done < job.k_padded) {
        moelab_matrix rest = m;
        rest.data = source + done;
        PanelJob tail = job;
        tail.matrix = &rest;
        tail.k = job.k - done;
        tail.k_padded = job.k_padded - done;
        tail.panel = static_cast<uint16_t*>(job.panel) + done * g.nr;
        pack_panel<MOELAB_BF16>(tail);
    }
}

void pack_panel_any(const PanelJob& job) {
    const bool bf16_rows = job.matrix->dtype == MOELAB_BF16 && job.matrix->col_stride == 1;
    if (bf16_rows && job.geometry->w_bytes == 2 && job.geometry->kr == 2) return pack_panel_words<uint32_t>(job);
    if (bf16_rows && job.geometry->w_bytes == 2 && job.geometry->kr == 4) return pack_panel_words<uint64_t>(job);
    switch (job.matrix->dtype) {
        case MOELAB_BF16: return pack_panel<MOELAB_BF16>(job);
        case MOELAB_FP16: return pack_panel<MOELAB_FP16>(job);
        default: return pack_panel<MOELAB_FP32>(job);
    }
}

float load_bias(const moelab_matrix& bias, int64_t row) {
    const int64_t at = row * bias.row_stride;
    switch (bias.dtype) {
        case MOELAB_BF16: return bf16_to_float(static_cast<const uint16_t*>(bias.data)[at]);
        case MOELAB_FP16: return fp16_to_float(static_cast<const uint16_t*>(bias.data)[at]);
        default: return static_cast<const float*>(bias.data)[at];
    }
}

// The row of w13 that column `c` of GEMM1 panel `panel` holds, or -1 for padding.
int64_t w13_row(const Layout& layout, int64_t panel, int c, bool interleaved) {
    const Geometry& g = layout.isa->geometry;
    const int group = c / g.gate_group;
    const int64_t channel = panel * (g.nr / 2) + group / 2 * g.gate_group + c % g.gate_group;
    const int64_t channels = layout.layer.intermediate;
    const bool up = group & 1;
    if (channel >= channels) return -1;
    return interleaved ? 2 * channel + up : channel + (up ? channels : 0);
}

int64_t w2_row(const Layout& layout, int64_t panel, int c) {
    const int64_t row = panel * layout.isa->geometry.nr + c;
    return row < layout.layer.hidden ? row : -1;
}

moelab_status check_matrix(const char* name, const moelab_matrix* matrix) {
    if (!matrix || !matrix->data) return fail(MOELAB_INVALID, "%s: missing; expected a matrix", name);
    if (matrix->dtype < MOELAB_BF16 || matrix->dtype > MOELAB_FP32)
        return fail(MOELAB_INVALID, "%s: dtype %d; expected bf16 (0), fp16 (1) or fp32 (2)", name, matrix->dtype);
    return MOELAB_OK;
}

moelab_status check_expert(const Layout& layout, int64_t expert) {
    if (expert < 0 || expert >= layout.layer.num_experts)
        return fail(MOELAB_INVALID, "expert: %lld; expected 0 to %lld", static_cast<long long>(expert),
                    static_cast<long long>(layout.layer.num_experts - 1));
    return MOELAB_OK;
}

constexpr int max_nr = 256;

}  // namespace
}  // namespace moelab

using namespace moelab;

extern "C" moelab_status moelab_pack_expert(void* packed, uint64_t bytes, int64_t expert, const moelab_matrix* w13,
                                            const moelab_matrix* w2, const moelab_matrix* b13,
                                            const moelab_matrix* b2, int32_t interleaved, int32_t num_threads) {
    Layout layout;
    moelab_status status = open_unfinished(packed, bytes, &layout);
    if (status == MOELAB_OK) status = check_expert(layout, expert);
    if (status == MOELAB_OK) status = check_matrix("w13", w13);
    if (status == MOELAB_OK) status = check_matrix("w2", w2);
    const bool has_bias = layout.layer.has_bias;
    if (status == MOELAB_OK && has_bias) status = check_matrix("w13_bias", b13);
    if (status == MOELAB_OK && has_bias) status = check_matrix("w2_bias", b2);
    if (status != MOELAB_OK) return status;
    if (!has_bias && ((b13 && b13->data) || (b2 && b2->data)))
        return fail(MOELAB_INVALID, "w13_bias, w2_bias: given, but the layer was declared without biases");

    char* block = const_cast<char*>(expert_block(layout, packed, expert));
    const Geometry& g = layout.isa->geometry;
    const int64_t panels = layout.panels1 + layout.panels2;
#pragma omp parallel for schedule(static) num_threads(clamp_threads(num_threads))
    for (int64_t p = 0; p < panels; ++p) {
        int64_t rows[max_nr];
        PanelJob job{};
        job.source_row = rows;
        job.geometry = &g;
        if (p < layout.panels1) {
            for (int c = 0; c < g.nr; ++c) rows[c] = w13_row(layout, p, c, interleaved != 0);
            job.matrix = w13;
            job.k = layout.layer.hidden;
            job.k_padded = layout.hidden_k;
            job.panel = block + p * layout.panel1_bytes;
        } else {
            const int64_t q = p - layout.panels1;
            for (int c = 0; c < g.nr; ++c) rows[c] = w2_row(layout, q, c);
            job.matrix = w2;
            job.k = layout.layer.intermediate;
            job.k_padded = layout.inter_k;
            job.panel = block + layout.w2_offset + q * layout.panel2_bytes;
        }
        pack_panel_any(job);
    }
    // Alignment gaps and padding are zero, so that equal weights give equal bytes.
    const int64_t end1 = layout.panels1 * layout.panel1_bytes;
    const int64_t end2 = layout.w2_offset + layout.panels2 * layout.panel2_bytes;
    std::memset(block + end1, 0, static_cast<size_t>(layout.w2_offset - end1));
    std::memset(block + end2, 0, static_cast<size_t>(layout.expert_bytes - end2));
    if (has_bias) {
        float* out13 = reinterpret_cast<float*>(block + layout.b13_offset);
        float* out2 = reinterpret_cast<float*>(block + layout.b2_offset);
        for (int64_t p = 0; p < layout.panels1; ++p)
            for (int c = 0; c < g.nr; ++c) {
                const int64_t row = w13_row(layout, p, c, interleaved != 0);
                if (row >= 0) out13[p * g.nr + c] = load_bias(*b13, row);
            }
        for (int64_t row = 0; row < layout.layer.hidden; ++row) out2[row] = load_bias(*b2, row);
    }
    ExpertEntry* entry = expert_entry(packed, expert);
    entry->checksum = checksum(block, layout.expert_bytes);
    entry->interleaved = interleaved != 0;
    entry->present = 1;
    return MOELAB_OK;
}

extern "C" moelab_status moelab_unpack_expert(const void* packed, uint64_t bytes, int64_t expert, uint16_t* w13,
                                              uint16_t* w2, float* b13, float* b2) {
    Layout layout;
    moelab_status status = open_packed(packed, bytes, false, &layout);
    if (status == MOELAB_OK) status = check_expert(layout, expert);
    if (status != MOELAB_OK) return status;
    if (!w13 || !w2) return fail(MOELAB_INVALID, "w13, w2: a null pointer");
    if ((b13 || b2) && !layout.layer.has_bias) return fail(MOELAB_INVALID, "b13, b2: the layer has no biases");
    const Geometry& g = layout.isa->geometry;
    const bool interleaved = expert_entry(const_cast<void*>(packed), expert)->interleaved != 0;
    const char* block = expert_block(layout, packed, expert);
    const auto weight = [&](const char* panel, int64_t k, int c) {
        const int64_t at = k / g.kr * g.kr * g.nr + static_cast<int64_t>(c) * g.kr + k % g.kr;
        if (g.w_bytes == 2) return reinterpret_cast<const uint16_t*>(panel)[at];
        return static_cast<uint16_t>(reinterpret_cast<const uint32_t*>(panel)[at] >> 16);
    };
    for (int64_t p = 0; p < layout.panels1; ++p)
        for (int c = 0; c < g.nr; ++c) {
            const int64_t row = w13_row(layout, p, c, interleaved);
            if (row < 0) continue;
            const char* panel = block + p * layout.panel1_bytes;
            for (int64_t k = 0; k < layout.layer.hidden; ++k) w13[row * layout.layer.hidden + k] = weight(panel, k, c);
            if (b13) b13[row] = reinterpret_cast<const float*>(block + layout.b13_offset)[p * g.nr + c];
        }
    for (int64_t p = 0; p < layout.panels2; ++p)
        for (int c = 0; c < g.nr; ++c) {
            const int64_t row = w2_row(layout, p, c);
            if (row < 0) continue;
            const char* panel = block + layout.w2_offset + p * layout.panel2_bytes;
            for (int64_t k = 0; k < layout.layer.intermediate; ++k)
                w2[row * layout.layer.intermediate + k] = weight(panel, k, c);
            if (b2) b2[row] = reinterpret_cast<const float*>(block + layout.b2_offset)[row];
        }
    return MOELAB_OK;
}
