// CPU features, found at run time. Only code built without ISA flags may run before this has answered.
#pragma once

#include <cstdint>
#include <string>

namespace moelab {

enum CpuFeature : uint64_t {
    CPU_AVX2 = 1u << 0,    // with FMA and F16C, enabled by the OS
    CPU_AVX512 = 1u << 1,  // F, BW, DQ, VL
    CPU_AVX512_BF16 = 1u << 2,
    CPU_AMX_BF16 = 1u << 3,  // tiles granted by the OS to this process
    CPU_NEON = 1u << 8,
    CPU_ARM_BF16 = 1u << 9,  // FEAT_BF16: BFMMLA, BFDOT, BFCVT
    CPU_SVE = 1u << 10,
    CPU_SVE_BF16 = 1u << 11,  // SVE with BF16
    CPU_SVE_256 = 1u << 12,   // vectors of 256 bits or more; MOELAB_SVE_ANY_LENGTH=1 lets shorter ones pass
};

// Features of this CPU less those named in MOELAB_CPU_MASK (comma separated, e.g. "avx512,bf16"), read once.
uint64_t cpu_features();

// Bytes of an SVE vector when first asked, 0 without SVE. A thread that changes its length afterwards must not call us.
int sve_vector_bytes();

// "avx512_bf16, amx_bf16": the names of the bits, for messages.
std::string feature_names(uint64_t bits);

// One line that identifies the core: "AuthenticAMD 25/17/1" or "MIDR 0x410fd4f0 Neoverse V2".
std::string cpu_part();

}  // namespace moelab
