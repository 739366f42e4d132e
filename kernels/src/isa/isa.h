// What an instruction set provides. One file in this folder per ISA; registry.cpp lists them all.
//
// The rule that makes a token's bits independent of batch, tile and threads: every output is one
// accumulator chain over ascending k with one kind of multiply instruction; bias is added once, after the
// chain; the combine runs in slot order.
#pragma once

#include <cstdint>

#include "moelab.h"

namespace moelab {

struct CoreTuning;  // core_table.h: cache sizes and block sizes of the core we run on

// Layout of packed operands. nr, kr and k_align are powers of two. sve_bf16's nr follows the machine's vector length;
// the header of packed weights says what they were packed for.
//
//   weights  panel p = columns [p*nr, (p+1)*nr), stored k-major:  [panel][k / kr][column][kr]
//            A GEMM1 panel holds nr/2 channels: columns alternate in groups of gate_group gate channels and the
//            gate_group up channels that belong to them, so that gate and up of a channel meet in registers.
//   A        private to the ISA: pack_rows writes it, gemm1 reads it and writes h, gemm2 reads h. Only its size
//            is fixed: k * a_bytes per row, rows rounded up to a multiple of ra.
//
// K is padded with zeros to a multiple of k_align, channels and columns to whole panels. Work on rows is cut between
// tiles only (isa/tiles.h): [row0, row1) starts and ends at one, or ends at the expert's last row.
struct Geometry {
    int nr;          // columns of a weight panel
    int kr;          // consecutive k kept together
    int ra;          // rows of A are rounded up to a multiple of this
    int k_align;     // multiple of kr
    int mr;          // largest row tile; multiple of ra
    int a_bytes;     // 2: A is BF16; 4: A is widened to fp32 when packed
    int w_bytes;     // likewise for the weights
    int gate_group;  // channels per group of gate or up columns: nr/2 (all gate, then all up) or a divisor of it
    int split = 0;   // tiles begin at multiples of this; 0: at multiples of mr. Divides mr, multiple of ra
};

struct Activation {
    int kind;  // moelab_activation
    float alpha, limit;
};

// act(A * B + bias) of rows [row0, row1) and panels [panel0, panel1) of one expert, written as packed A of
// GEMM2. Rows up to the next multiple of ra may be read and written (zeros).
// Channels >= `channels` are written as zero whatever A holds (0 * Inf must not leak into GEMM2).
struct Gemm1 {
    const void* a;      // packed row 0 of this expert
    const void* b;      // panel 0 of this expert
    const float* bias;  // [panels][nr] in panel order, or null
    int64_t rows;       // of this expert
    int64_t row0, row1, panel0, panel1;
    int64_t k;         // padded H
    int64_t channels;  // I
    void* h;           // packed A of GEMM2, row 0 of this expert
    int64_t h_k;       // padded I
    Activation act;
    const CoreTuning* core;
};

// A * B + bias in fp32. y has room for rows up to a multiple of ra and columns up to whole panels.
struct Gemm2 {
    const void* a;
    const void* b;
    const float* bias;
    int64_t rows;
    int64_t row0, row1, panel0, panel1;
    int64_t k;  // padded I
    float* y;   // row 0 of this expert, [rows][y_stride]
    int64_t y_stride;
    const CoreTuning* core;
};

// Gathers `rows` rows of x into packed A, zero-padding k in [k, k_padded) and rows up to a multiple of ra.
// scale (may be null): row i is bf16(x * scale[i]). The rows are whole tiles of an expert, from row0 on.
struct PackRows {
    const uint16_t* x;
    int64_t x_stride;
    const int64_t* token;  // [rows] source rows
    const float* scale;    // [rows] or null
    int64_t rows, k, k_padded;
    int64_t row0, expert_rows;
    void* a;  // of row0
};

// out[0..n) = bf16(sum over s of weight[s] * y[row[s]]), one fma per slot in slot order from +0;
// row[s] < 0 skips. y columns may be read up to the next multiple of nr.
struct Combine {
    const float* y;
    int64_t y_stride;
    const int64_t* row;   // [slots]
    const float* weight;  // [slots]
    int64_t slots;
    int64_t n;
    uint16_t* out;
};

// Panels of weights beside each other, from a matrix whose rows or columns are contiguous.
constexpr int pack_group_most = 8;  // panels of one job
struct PackWeights {
    const moelab_matrix* matrix;
    const int64_t* source_row;  // [panels][nr] of the matrix; negative: zeros
    int64_t panels;
    int64_t k, k_padded;
    void* out;            // of the first panel
    uint64_t* checksums;  // [panels], of what was written
};

struct Isa {
    const char* name;
    uint64_t needs;  // cpu.h feature bits
    Geometry geometry;
    void (*gemm1)(const Gemm1&);
    void (*gemm2)(const Gemm2&);
    void (*pack_rows)(const PackRows&);
    void (*combine)(const Combine&);
    // bf16(act(gate) * up) elementwise with the epilogue's own code, tails included.
    void (*activate)(const Activation&, const float* gate, const float* up, uint16_t* out, int64_t n);
    // Runs the ISA's BF16-GEMM multiply (peak_bf16) or fp32 FMA (peak_fp32) from registers with enough
    // independent chains, `iterations` times a fixed block; returns FLOPs done. Result must not be optimised away.
    double (*peak_bf16)(int64_t iterations);
    double (*peak_fp32)(int64_t iterations);
    // Sum-like reduction over [data, data + bytes) at full width: one linear stream, and 4 interleaved streams.
    // bytes is a multiple of 4096. Returns something that depends on every byte.
    uint64_t (*read_linear)(const void* data, int64_t bytes);
    uint64_t (*read_streams4)(const void* data, int64_t bytes);
    // Null: pack.cpp packs, in baseline code.
    void (*pack_weights)(const PackWeights&) = nullptr;
};

}  // namespace moelab
