// The packed-weights format: a header, one entry per expert, then the experts' blocks.
//
//   [Header][ExpertEntry x E] ... 4096-aligned ... [expert 0][expert 1] ...
//   expert: [w13 panels][w2 panels][b13][b2], each 64-aligned; biases fp32 in panel order, zero-padded
#pragma once

#include <cstdint>

#include "isa/isa.h"
#include "moelab.h"

namespace moelab {

struct Header {
    char magic[8];  // "moelabPW"
    uint32_t version, finished;
    char isa[16];
    int32_t activation, has_bias;
    float alpha, limit;
    int64_t num_experts, hidden, intermediate;
    int32_t nr, kr, k_align, w_bytes, gate_group, reserved;
    uint64_t bytes;           // of the whole buffer
    uint64_t table_checksum;  // of the expert entries, written by finish
    uint64_t checksum;        // of everything above
};

struct ExpertEntry {
    uint64_t checksum;
    uint32_t present, interleaved;  // interleaved: the row order that unpacking restores
};

// Everything that follows from the layer and its ISA. Sizes in elements, offsets in bytes.
struct Layout {
    const Isa* isa;
    moelab_layer layer;
    int64_t hidden_k, inter_k;  // K of GEMM1 and GEMM2, padded
    int64_t panels1, panels2;   // weight panels of GEMM1 (nr/2 channels each) and GEMM2 (nr columns each)
    int64_t panel1_bytes, panel2_bytes;
    int64_t w2_offset, b13_offset, b2_offset, expert_bytes;  // within an expert
    int64_t first_expert, total_bytes;                       // within the buffer
};

// Checks the layer (INVALID / UNSUPPORTED) and fills the layout.
moelab_status make_layout(const moelab_layer& layer, Layout* layout);

// Reads and checks a finished header; `verify` also checks every byte of every expert.
moelab_status open_packed(const void* packed, uint64_t bytes, bool verify, Layout* layout);

inline const char* expert_block(const Layout& layout, const void* packed, int64_t expert) {
    return static_cast<const char*>(packed) + layout.first_expert + expert * layout.expert_bytes;
}

inline ExpertEntry* expert_entry(void* packed, int64_t expert) {
    return reinterpret_cast<ExpertEntry*>(static_cast<char*>(packed) + sizeof(Header)) + expert;
}

inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// Finds any changed, lost or moved 8-byte word; not a defence against an adversary. bytes % 8 == 0.
uint64_t checksum(const void* data, int64_t bytes);

// An expert's checksum is the sum over its panels, numbered through both matrices, and over what lies behind
// them; a sum, so that threads can add up their parts in any order. A panel in the wrong place changes it.
uint64_t piece_checksum(const void* data, int64_t bytes, int64_t index);
uint64_t piece_checksum(uint64_t of_bytes, int64_t index);
uint64_t gaps_checksum(const Layout& layout, const char* block);
uint64_t expert_checksum(const Layout& layout, const char* block);

// Used while packing, when the header is not finished yet.
moelab_status open_unfinished(void* packed, uint64_t bytes, Layout* layout);

}  // namespace moelab
