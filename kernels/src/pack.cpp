// Packing and unpacking of one expert, any strides and dtypes in, panels out (isa/isa.h has the layout).
#include <omp.h>

#include <cstring>

#include "bf16.h"
#include "error.h"
#include "pack_vectors.h"
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

// Where the matrix is transposed, a panel alone would touch a new page for every k: panels next to each other are
// packed together in blocks of k, as many as stay in L2 until their checksums are taken.
constexpr int transposed_together = 4;
constexpr int64_t block_k = 128;
constexpr int64_t k_ahead = 16;  // rows of k from the one that is packed to the one that is prefetched
constexpr int max_nr = 256;

// A block of k of one panel: column c is row source_row[c] of the matrix (a negative row is padding).
struct PanelJob {
    const moelab_matrix* matrix;
    const int64_t* source_row;  // [nr]
    int64_t k;                  // of the matrix; zeros from there on
    int64_t k0, k1;             // the block, multiples of kr
    const Geometry* geometry;
    void* panel;
};

// Any strides, any dtype.
template <int dtype>
void pack_any(const PanelJob& job) {
    const Geometry& g = *job.geometry;
    const moelab_matrix& m = *job.matrix;
    for (int64_t k0 = job.k0; k0 < job.k1; k0 += g.kr)
        for (int c = 0; c < g.nr; ++c) {
            const int64_t row = job.source_row[c], at = k0 * g.nr + static_cast<int64_t>(c) * g.kr;
            for (int64_t i = 0; i < g.kr; ++i) {
                const bool inside = row >= 0 && k0 + i < job.k;
                const uint16_t bits =
                    inside ? load_bf16<dtype>(m.data, row * m.row_stride + (k0 + i) * m.col_stride) : uint16_t{0};
                store_weight(job.panel, at + i, bits, g.w_bytes);
            }
        }
}

// Asks for the lines that the next block of k takes from a row: with so many rows at once no prefetcher follows.
template <int dtype>
void prefetch_next(const PanelJob& job, int64_t row) {
    constexpr int64_t line = 64 / (dtype == MOELAB_FP32 ? 4 : 2);
    const auto* data = static_cast<const char*>(job.matrix->data);
    const int64_t ahead = 2 * job.k1 - job.k0, end = ahead < job.k ? ahead : job.k;
    for (int64_t k = job.k1; k < end; k += line)
        __builtin_prefetch(data + (row * job.matrix->row_stride + k) * (64 / line));
}

// Rows with k contiguous and kr = 2: a transposition of words, four columns by four words at a time.
template <int dtype>
void pack_rows_kr2(const PanelJob& job) {
    const int nr = job.geometry->nr;
    auto* out = static_cast<uint32_t*>(job.panel);
    for (int c = 0; c < nr; c += 4) {
        int64_t at[4];
        for (int i = 0; i < 4; ++i) {
            at[i] = job.source_row[c + i] * job.matrix->row_stride;
            prefetch_next<dtype>(job, job.source_row[c + i]);
        }
        for (int64_t k = job.k0; k < job.k1; k += 8) {
            const void* const data = job.matrix->data;
            const Vec a = load8<dtype>(data, at[0] + k), b = load8<dtype>(data, at[1] + k);
            const Vec d = load8<dtype>(data, at[2] + k), e = load8<dtype>(data, at[3] + k);
            const Vec ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const Vec de0 = __builtin_shufflevector(d, e, 0, 4, 1, 5), de1 = __builtin_shufflevector(d, e, 2, 6, 3, 7);
            const Vec rows[4] = {
                __builtin_shufflevector(ab0, de0, 0, 1, 4, 5), __builtin_shufflevector(ab0, de0, 2, 3, 6, 7),
                __builtin_shufflevector(ab1, de1, 0, 1, 4, 5), __builtin_shufflevector(ab1, de1, 2, 3, 6, 7)};
            for (int i = 0; i < 4; ++i) std::memcpy(out + (k / 2 + i) * nr + c, &rows[i], sizeof(Vec));
        }
    }
}

// Likewise with kr = 4: two columns by two 64-bit words.
template <int dtype>
void pack_rows_kr4(const PanelJob& job) {
    const int nr = job.geometry->nr;
    auto* out = static_cast<uint64_t*>(job.panel);
    for (int c = 0; c < nr; c += 2) {
        const int64_t at0 = job.source_row[c] * job.matrix->row_stride;
        const int64_t at1 = job.source_row[c + 1] * job.matrix->row_stride;
        prefetch_next<dtype>(job, job.source_row[c]);
        prefetch_next<dtype>(job, job.source_row[c + 1]);
        for (int64_t k = job.k0; k < job.k1; k += 8) {
            const Vec a = load8<dtype>(job.matrix->data, at0 + k), b = load8<dtype>(job.matrix->data, at1 + k);
            const Vec low = __builtin_shufflevector(a, b, 0, 1, 4, 5), high = __builtin_shufflevector(a, b, 2, 3, 6, 7);
            std::memcpy(out + k / 4 * nr + c, &low, sizeof low);
            std::memcpy(out + (k / 4 + 1) * nr + c, &high, sizeof high);
        }
    }
}

// The columns contiguous (a transposed matrix, as gpt-oss stores its weights): `columns` columns from source row `row`
// on, `step` apart, zipped over kr rows of k.
template <int kr, int step, int dtype>
void zip_run(const PanelJob& job, int64_t k, int64_t row, int columns, uint16_t* out) {
    const int64_t stride = job.matrix->col_stride;
    const uint16_t* in[kr];
    uint16_t rounded[kr][step * max_nr];
    for (int i = 0; i < kr; ++i) {
        const int64_t at = row + (k + i) * stride;
        if constexpr (dtype == MOELAB_BF16) {
            in[i] = static_cast<const uint16_t*>(job.matrix->data) + at;
            if (k + i + k_ahead < job.k) __builtin_prefetch(in[i] + k_ahead * stride);
        } else {
            const int n = step * (columns - 1) + 1;
            int c = 0;
            for (; c + 8 <= n; c += 8) {
                const Vec eight = load8<dtype>(job.matrix->data, at + c);
                std::memcpy(rounded[i] + c, &eight, sizeof eight);
            }
            for (; c < n; ++c) rounded[i][c] = load_bf16<dtype>(job.matrix->data, at + c);
            in[i] = rounded[i];
        }
    }
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < kr; ++i) out[c * kr + i] = in[i][c * step];
}

template <int kr, int dtype>
void pack_columns(const PanelJob& job) {
    const Geometry& g = *job.geometry;
    for (int64_t k = job.k0; k < job.k1; k += kr) {
        auto* out = static_cast<uint16_t*>(job.panel) + k * g.nr;
        for (int c = 0; c < g.nr; c += g.gate_group) {
            const int64_t row = job.source_row[c];
            if (g.gate_group > 1 && job.source_row[c + 1] == row + 2) {
                zip_run<kr, 2, dtype>(job, k, row, g.gate_group, out + c * kr);
            } else {
                zip_run<kr, 1, dtype>(job, k, row, g.gate_group, out + c * kr);
            }
        }
    }
}

using Packer = void (*)(const PanelJob&);

// The fast packer for this matrix and geometry, or null. It takes whole panels and blocks of k inside the matrix.
template <int dtype>
Packer fast_packer(const moelab_matrix& m, const Geometry& g) {
    if (g.w_bytes != 2 || g.nr % 4 != 0) return nullptr;
    if (m.col_stride == 1) return g.kr == 2 ? pack_rows_kr2<dtype> : g.kr == 4 ? pack_rows_kr4<dtype> : nullptr;
    if (m.row_stride != 1) return nullptr;
    switch (g.kr) {
        case 1: return pack_columns<1, dtype>;
        case 2: return pack_columns<2, dtype>;
        case 4: return pack_columns<4, dtype>;
        default: return nullptr;
    }
}

Packer fast_packer(const moelab_matrix& m, const Geometry& g) {
    switch (m.dtype) {
        case MOELAB_BF16: return fast_packer<MOELAB_BF16>(m, g);
        case MOELAB_FP16: return fast_packer<MOELAB_FP16>(m, g);
        default: return fast_packer<MOELAB_FP32>(m, g);
    }
}

Packer any_packer(const moelab_matrix& m) {
    switch (m.dtype) {
        case MOELAB_BF16: return pack_any<MOELAB_BF16>;
        case MOELAB_FP16: return pack_any<MOELAB_FP16>;
        default: return pack_any<MOELAB_FP32>;
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

struct Source {
    const moelab_matrix* matrix;
    int64_t k, k_padded, panels, panel_bytes;
    char* first_panel;
    bool is_w13, interleaved;
};

bool isa_packs(const Layout& layout, const moelab_matrix& m) {
    return layout.isa->pack_weights && (m.col_stride == 1 || m.row_stride == 1);
}

// Panels that are packed together: no more than leave every thread several groups.
int64_t panels_together(const Layout& layout, const moelab_matrix& m, int threads) {
    const int64_t share = (layout.panels1 + layout.panels2) / (4 * threads);
    const int64_t most = isa_packs(layout, m) ? pack_group_most : m.col_stride == 1 ? 1 : transposed_together;
    return share < 1 ? 1 : share < most ? share : most;
}

// Packs panels [begin, end), at most pack_group_most of them, and returns their part of the expert's checksum.
uint64_t pack_group(const Layout& layout, const Source& source, int64_t begin, int64_t end, int64_t first_index) {
    const Geometry& g = layout.isa->geometry;
    int64_t rows[pack_group_most * max_nr];
    for (int64_t p = begin; p < end; ++p)
        for (int c = 0; c < g.nr; ++c)
            rows[(p - begin) * g.nr + c] =
                source.is_w13 ? w13_row(layout, p, c, source.interleaved) : w2_row(layout, p, c);
    uint64_t sum = 0;
    if (isa_packs(layout, *source.matrix)) {
        uint64_t checksums[pack_group_most];
        layout.isa->pack_weights({source.matrix, rows, end - begin, source.k, source.k_padded,
                                  source.first_panel + begin * source.panel_bytes, checksums});
        for (int64_t p = begin; p < end; ++p) sum += piece_checksum(checksums[p - begin], first_index + p);
        return sum;
    }
    const Packer any = any_packer(*source.matrix), fast = fast_packer(*source.matrix, g);
    bool whole[pack_group_most];
    for (int64_t p = begin; p < end; ++p) {
        whole[p - begin] = fast != nullptr;
        for (int c = 0; c < g.nr; ++c) whole[p - begin] &= rows[(p - begin) * g.nr + c] >= 0;
    }
    for (int64_t k0 = 0; k0 < source.k_padded; k0 += block_k) {
        const int64_t end_k = k0 + block_k < source.k_padded ? k0 + block_k : source.k_padded;
        for (int64_t p = begin; p < end; ++p) {
            PanelJob job{source.matrix,
                         rows + (p - begin) * g.nr,
                         source.k,
                         k0,
                         end_k,
                         &g,
                         source.first_panel + p * source.panel_bytes};
            if (whole[p - begin]) {  // the fast packer up to the last whole eight k, the other from there
                job.k1 = (source.k < end_k ? source.k : end_k) / 8 * 8;
                if (job.k1 > job.k0) fast(job);
                job.k0 = job.k1 > k0 ? job.k1 : k0;
                job.k1 = end_k;
            }
            if (job.k0 < job.k1) any(job);
        }
    }
    for (int64_t p = begin; p < end; ++p)
        sum += piece_checksum(source.first_panel + p * source.panel_bytes, source.panel_bytes, first_index + p);
    return sum;
}

}  // namespace
}  // namespace moelab

using namespace moelab;

extern "C" moelab_status moelab_pack_expert(void* packed, uint64_t bytes, int64_t expert, const moelab_matrix* w13,
                                            const moelab_matrix* w2, const moelab_matrix* b13, const moelab_matrix* b2,
                                            int32_t interleaved, int32_t num_threads) {
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
    const Source first{w13,  layout.layer.hidden, layout.hidden_k, layout.panels1, layout.panel1_bytes, block,
                       true, interleaved != 0};
    const Source second{w2,
                        layout.layer.intermediate,
                        layout.inter_k,
                        layout.panels2,
                        layout.panel2_bytes,
                        block + layout.w2_offset,
                        false,
                        false};
    const int threads = clamp_threads(num_threads);
    const int64_t together1 = panels_together(layout, *w13, threads), together2 = panels_together(layout, *w2, threads);
    const int64_t groups1 = (layout.panels1 + together1 - 1) / together1;
    const int64_t groups2 = (layout.panels2 + together2 - 1) / together2;
    uint64_t sum = gaps_checksum(layout, block);
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(+ : sum)
    for (int64_t group = 0; group < groups1 + groups2; ++group) {
        const bool in_first = group < groups1;
        const Source& source = in_first ? first : second;
        const int64_t together = in_first ? together1 : together2;
        const int64_t begin = (in_first ? group : group - groups1) * together;
        const int64_t end = begin + together < source.panels ? begin + together : source.panels;
        sum += pack_group(layout, source, begin, end, in_first ? 0 : layout.panels1);
    }
    ExpertEntry* entry = expert_entry(packed, expert);
    entry->checksum = sum;
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
    // Column c of a panel into k weights, beside each other.
    const auto column = [&g](const char* panel, int c, int64_t k, uint16_t* out) {
        for (int64_t k0 = 0; k0 < k; k0 += g.kr)
            for (int64_t i = 0; i < g.kr && k0 + i < k; ++i) {
                const int64_t at = k0 * g.nr + static_cast<int64_t>(c) * g.kr + i;
                out[k0 + i] = g.w_bytes == 2
                                  ? reinterpret_cast<const uint16_t*>(panel)[at]
                                  : static_cast<uint16_t>(reinterpret_cast<const uint32_t*>(panel)[at] >> 16);
            }
    };
    const int64_t hidden = layout.layer.hidden, channels = layout.layer.intermediate;
#pragma omp parallel for schedule(dynamic) num_threads(clamp_threads(0))
    for (int64_t p = 0; p < layout.panels1 + layout.panels2; ++p)
        for (int c = 0; c < g.nr; ++c) {
            const int64_t second = p - layout.panels1;
            const int64_t row = second < 0 ? w13_row(layout, p, c, interleaved) : w2_row(layout, second, c);
            if (row < 0) continue;
            if (second < 0) {
                column(block + p * layout.panel1_bytes, c, hidden, w13 + row * hidden);
                if (b13) b13[row] = reinterpret_cast<const float*>(block + layout.b13_offset)[p * g.nr + c];
            } else {
                column(block + layout.w2_offset + second * layout.panel2_bytes, c, channels, w2 + row * channels);
                if (b2) b2[row] = reinterpret_cast<const float*>(block + layout.b2_offset)[row];
            }
        }
    return MOELAB_OK;
}
