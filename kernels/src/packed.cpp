#include "packed.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "checksum.h"
#include "cpu.h"
#include "error.h"
#include "registry.h"
#include "threads.h"

namespace moelab {
namespace {

constexpr char magic[8] = {'m', 'o', 'e', 'l', 'a', 'b', 'P', 'W'};
constexpr uint32_t format_version = 1;
constexpr int64_t max_dimension = int64_t{1} << 31;

moelab_status check_dimension(const char* name, int64_t value) {
    if (value < 1 || value >= max_dimension)
        return fail(MOELAB_INVALID, "%s: %lld; expected 1 to %lld", name, static_cast<long long>(value),
                    static_cast<long long>(max_dimension - 1));
    return MOELAB_OK;
}

uint64_t header_checksum(const Header& header) {
    static_assert(offsetof(Header, checksum) % 8 == 0, "the checksum covers whole words");
    return checksum(&header, offsetof(Header, checksum));
}

moelab_status read_header(const void* packed, uint64_t bytes, Header* header, Layout* layout) {
    if (!packed) return fail(MOELAB_INVALID, "packed: a null pointer");
    if (reinterpret_cast<uintptr_t>(packed) % 64)
        return fail(MOELAB_INVALID, "packed: address %p; expected a multiple of 64", packed);
    if (bytes < sizeof(Header))
        return fail(MOELAB_CORRUPT, "packed: %llu bytes; the header alone has %zu",
                    static_cast<unsigned long long>(bytes), sizeof(Header));
    std::memcpy(header, packed, sizeof *header);
    if (std::memcmp(header->magic, magic, sizeof magic) != 0)
        return fail(MOELAB_CORRUPT, "packed: these are not packed weights of moelab (wrong magic)");
    if (header->version != format_version)
        return fail(MOELAB_CORRUPT, "packed: format version %u; this build reads %u", header->version, format_version);
    if (header->checksum != header_checksum(*header)) return fail(MOELAB_CORRUPT, "packed: the header is damaged");
    header->isa[sizeof header->isa - 1] = 0;
    moelab_layer layer{};
    const moelab_status found = moelab_isa_find(header->isa, &layer.isa);
    if (found != MOELAB_OK) return found;
    layer.activation = header->activation;
    layer.num_experts = header->num_experts;
    layer.hidden = header->hidden;
    layer.intermediate = header->intermediate;
    layer.has_bias = header->has_bias;
    layer.alpha = header->alpha;
    layer.limit = header->limit;
    const moelab_status made = make_layout(layer, layout);
    if (made != MOELAB_OK) return made;
    const Geometry& g = layout->isa->geometry;
    if (header->nr != g.nr || header->kr != g.kr || header->k_align != g.k_align || header->w_bytes != g.w_bytes ||
        header->gate_group != g.gate_group)
        return fail(
            MOELAB_CORRUPT,
            "packed: %s panels of %dx%d in groups of %d, by another build or for another vector length; here they "
            "are %dx%d in groups of %d",
            layout->isa->name, header->nr, header->kr, header->gate_group, g.nr, g.kr, g.gate_group);
    if (header->bytes != bytes || static_cast<uint64_t>(layout->total_bytes) != bytes)
        return fail(MOELAB_CORRUPT, "packed: %llu bytes given; its header asks for %lld",
                    static_cast<unsigned long long>(bytes), static_cast<long long>(layout->total_bytes));
    return MOELAB_OK;
}

}  // namespace

uint64_t checksum(const void* data, int64_t bytes) {
    Checksum sum;
    sum.add(data, bytes);
    return sum.value();
}

uint64_t piece_checksum(uint64_t of_bytes, int64_t index) {
    const uint64_t words[2] = {of_bytes, static_cast<uint64_t>(index)};
    return checksum(words, sizeof words);
}

uint64_t piece_checksum(const void* data, int64_t bytes, int64_t index) {
    return piece_checksum(checksum(data, bytes), index);
}

uint64_t gaps_checksum(const Layout& layout, const char* block) {
    const int64_t end1 = layout.panels1 * layout.panel1_bytes;
    const int64_t end2 = layout.w2_offset + layout.panels2 * layout.panel2_bytes;
    return piece_checksum(block + end1, layout.w2_offset - end1, -1) +
           piece_checksum(block + end2, layout.expert_bytes - end2, -2);
}

uint64_t expert_checksum(const Layout& layout, const char* block) {
    uint64_t sum = gaps_checksum(layout, block);
    for (int64_t p = 0; p < layout.panels1; ++p)
        sum += piece_checksum(block + p * layout.panel1_bytes, layout.panel1_bytes, p);
    for (int64_t p = 0; p < layout.panels2; ++p)
        sum +=
            piece_checksum(block + layout.w2_offset + p * layout.panel2_bytes, layout.panel2_bytes, layout.panels1 + p);
    return sum;
}

moelab_status make_layout(const moelab_layer& layer, Layout* layout) {
    const Isa* isa = isa_at(layer.isa);
    if (!isa) return fail(MOELAB_INVALID, "isa: index %d; this build has 0 to %d", layer.isa, isa_count() - 1);
    if (const uint64_t missing = isa_missing(*isa))
        return fail(MOELAB_UNSUPPORTED, "isa '%s': this CPU (%s) lacks %s", isa->name, cpu_part().c_str(),
                    feature_names(missing).c_str());
    if (layer.activation < MOELAB_SILU || layer.activation > MOELAB_SWIGLUOAI)
        return fail(MOELAB_INVALID, "activation: %d; expected silu, gelu, gelu_tanh or swigluoai", layer.activation);
    for (const auto& [name, value] : {std::pair<const char*, int64_t>{"num_experts", layer.num_experts},
                                      {"hidden", layer.hidden},
                                      {"intermediate", layer.intermediate}}) {
        const moelab_status status = check_dimension(name, value);
        if (status != MOELAB_OK) return status;
    }
    if (layer.activation == MOELAB_SWIGLUOAI) {
        // The comparisons also refuse NaN.
        if (!(layer.alpha >= -3.0e38f && layer.alpha <= 3.0e38f))
            return fail(MOELAB_INVALID, "alpha: %g; expected a finite number", static_cast<double>(layer.alpha));
        if (!(layer.limit >= 0))
            return fail(MOELAB_INVALID, "limit: %g; expected a number >= 0", static_cast<double>(layer.limit));
    }
    const Geometry& g = isa->geometry;
    const int64_t channel_step = g.nr / 2 > g.k_align ? g.nr / 2 : g.k_align;
    Layout made{};
    made.isa = isa;
    made.layer = layer;
    made.hidden_k = round_up(layer.hidden, g.k_align);
    made.inter_k = round_up(layer.intermediate, channel_step);
    made.panels1 = made.inter_k / (g.nr / 2);
    made.panels2 = (layer.hidden + g.nr - 1) / g.nr;
    made.panel1_bytes = made.hidden_k * g.nr * g.w_bytes;
    made.panel2_bytes = made.inter_k * g.nr * g.w_bytes;
    made.first_expert = round_up(static_cast<int64_t>(sizeof(Header) + sizeof(ExpertEntry) * layer.num_experts), 4096);
    const int64_t b13 = layer.has_bias ? round_up(made.panels1 * g.nr * 4, 64) : 0;
    const int64_t b2 = layer.has_bias ? round_up(made.panels2 * g.nr * 4, 64) : 0;
    // Dimensions below 2^31 keep a panel and the biases far from 2^63; whole matrices can pass it. 128: rounding up.
    using Wide = __int128;
    const Wide expert =
        Wide{made.panels1} * made.panel1_bytes + Wide{made.panels2} * made.panel2_bytes + b13 + b2 + 128;
    if (layer.num_experts * expert + made.first_expert > std::numeric_limits<int64_t>::max())
        return fail(MOELAB_INVALID, "num_experts, hidden, intermediate: %lld, %lld, %lld need more than 2^63 bytes",
                    static_cast<long long>(layer.num_experts), static_cast<long long>(layer.hidden),
                    static_cast<long long>(layer.intermediate));
    made.w2_offset = round_up(made.panels1 * made.panel1_bytes, 64);
    made.b13_offset = made.w2_offset + round_up(made.panels2 * made.panel2_bytes, 64);
    made.b2_offset = made.b13_offset + b13;
    made.expert_bytes = made.b2_offset + b2;
    made.total_bytes = made.first_expert + layer.num_experts * made.expert_bytes;
    *layout = made;
    return MOELAB_OK;
}

moelab_status open_unfinished(void* packed, uint64_t bytes, Layout* layout) {
    Header header;
    const moelab_status status = read_header(packed, bytes, &header, layout);
    if (status == MOELAB_OK && header.finished) return fail(MOELAB_INVALID, "packed: packing is finished already");
    return status;
}

moelab_status open_packed(const void* packed, uint64_t bytes, bool verify, Layout* layout) {
    Header header;
    const moelab_status status = read_header(packed, bytes, &header, layout);
    if (status != MOELAB_OK) return status;
    if (!header.finished) return fail(MOELAB_CORRUPT, "packed: packing was never finished");
    if (!verify) return MOELAB_OK;
    const int64_t experts = layout->layer.num_experts;
    const char* entries = static_cast<const char*>(packed) + sizeof header;
    if (checksum(entries, experts * static_cast<int64_t>(sizeof(ExpertEntry))) != header.table_checksum)
        return fail(MOELAB_CORRUPT, "packed: the table of experts is damaged");
    int64_t damaged = experts;  // the lowest damaged expert, whichever thread finds it
#pragma omp parallel for schedule(static) reduction(min : damaged) num_threads(clamp_threads(0))
    for (int64_t e = 0; e < experts; ++e) {
        ExpertEntry entry;
        std::memcpy(&entry, entries + e * static_cast<int64_t>(sizeof entry), sizeof entry);
        if (expert_checksum(*layout, expert_block(*layout, packed, e)) != entry.checksum && e < damaged) damaged = e;
    }
    if (damaged < experts)
        return fail(MOELAB_CORRUPT, "packed: the weights of expert %lld are damaged", static_cast<long long>(damaged));
    return MOELAB_OK;
}

}  // namespace moelab

using namespace moelab;

extern "C" moelab_status moelab_packed_bytes(const moelab_layer* layer, uint64_t* bytes) {
    if (!layer || !bytes) return fail(MOELAB_INVALID, "layer, bytes: a null pointer");
    Layout layout;
    const moelab_status status = make_layout(*layer, &layout);
    if (status == MOELAB_OK) *bytes = static_cast<uint64_t>(layout.total_bytes);
    return status;
}

extern "C" moelab_status moelab_pack_begin(const moelab_layer* layer, void* packed, uint64_t bytes) {
    if (!layer || !packed) return fail(MOELAB_INVALID, "layer, packed: a null pointer");
    Layout layout;
    const moelab_status status = make_layout(*layer, &layout);
    if (status != MOELAB_OK) return status;
    if (reinterpret_cast<uintptr_t>(packed) % 64)
        return fail(MOELAB_INVALID, "packed: address %p; expected a multiple of 64", packed);
    if (bytes != static_cast<uint64_t>(layout.total_bytes))
        return fail(MOELAB_INVALID, "bytes: %llu; moelab_packed_bytes says %lld",
                    static_cast<unsigned long long>(bytes), static_cast<long long>(layout.total_bytes));
    const Geometry& g = layout.isa->geometry;
    Header header;
    std::memset(&header, 0, sizeof header);
    std::memcpy(header.magic, magic, sizeof magic);
    header.version = format_version;
    std::strncpy(header.isa, layout.isa->name, sizeof header.isa - 1);
    header.activation = layer->activation;
    header.has_bias = layer->has_bias != 0;
    header.alpha = layer->alpha;
    header.limit = layer->limit;
    header.num_experts = layer->num_experts;
    header.hidden = layer->hidden;
    header.intermediate = layer->intermediate;
    header.nr = g.nr;
    header.kr = g.kr;
    header.k_align = g.k_align;
    header.w_bytes = g.w_bytes;
    header.gate_group = g.gate_group;
    header.bytes = bytes;
    header.checksum = header_checksum(header);
    std::memset(packed, 0, static_cast<size_t>(layout.first_expert));
    std::memcpy(packed, &header, sizeof header);
    return MOELAB_OK;
}

extern "C" moelab_status moelab_pack_finish(void* packed, uint64_t bytes) {
    Layout layout;
    const moelab_status status = open_unfinished(packed, bytes, &layout);
    if (status != MOELAB_OK) return status;
    for (int64_t e = 0; e < layout.layer.num_experts; ++e)
        if (!expert_entry(packed, e)->present)
            return fail(MOELAB_INVALID, "packed: expert %lld of %lld was never added", static_cast<long long>(e),
                        static_cast<long long>(layout.layer.num_experts));
    Header header;
    std::memcpy(&header, packed, sizeof header);
    header.finished = 1;
    header.table_checksum =
        checksum(expert_entry(packed, 0), layout.layer.num_experts * static_cast<int64_t>(sizeof(ExpertEntry)));
    header.checksum = header_checksum(header);
    std::memcpy(packed, &header, sizeof header);
    return MOELAB_OK;
}

extern "C" moelab_status moelab_packed_layer(const void* packed, uint64_t bytes, int32_t verify, moelab_layer* layer) {
    if (!layer) return fail(MOELAB_INVALID, "layer: a null pointer");
    Layout layout;
    const moelab_status status = open_packed(packed, bytes, verify != 0, &layout);
    if (status == MOELAB_OK) *layer = layout.layer;
    return status;
}
