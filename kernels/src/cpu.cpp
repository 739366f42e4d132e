#include "cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace moelab {
namespace {

struct FeatureName {
    uint64_t bit;
    const char* name;
};

const FeatureName names[] = {
    {CPU_AVX2, "avx2"},         {CPU_AVX512, "avx512"},     {CPU_AVX512_BF16, "avx512_bf16"},
    {CPU_AMX_BF16, "amx_bf16"}, {CPU_NEON, "neon"},         {CPU_ARM_BF16, "bf16"},
    {CPU_SVE, "sve"},           {CPU_SVE_BF16, "sve_bf16"}, {CPU_SVE_256, "sve_256"},
};

#if defined(__x86_64__)

uint64_t read_xcr0() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives AMX's 8 KiB of tile state only to processes that ask for it.
bool amx_granted() {
#ifdef SYS_arch_prctl
    constexpr int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

uint64_t detect() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d)) return 0;
    const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const uint64_t xcr0 = read_xcr0();
    uint64_t found = 0;
    const bool ymm = (xcr0 & 6) == 6, zmm = (xcr0 & 0xe6) == 0xe6, tiles = (xcr0 & 0x60000) == 0x60000;
    if (ymm && fma && f16c && (b >> 5 & 1)) found |= CPU_AVX2;
    const bool avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
    if (zmm && avx512) found |= CPU_AVX512;
    const bool amx = (d >> 22 & 1) && (d >> 24 & 1);  // AMX-BF16, AMX-TILE
    unsigned a1 = 0, b1, c1, d1;
    if (a >= 1) __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    if ((found & CPU_AVX512) && (a1 >> 5 & 1)) found |= CPU_AVX512_BF16;
    if ((found & CPU_AVX512_BF16) && amx && tiles && amx_granted()) found |= CPU_AMX_BF16;
    return found;
}

#elif defined(__aarch64__)

#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif
#ifndef HWCAP2_SVEBF16
#define HWCAP2_SVEBF16 (1 << 12)
#endif

// MOELAB_SVE_ANY_LENGTH=1: the SVE kernel also where its vectors are no longer than NEON's, to test it there.
bool any_length() {
    const char* text = std::getenv("MOELAB_SVE_ANY_LENGTH");
    return text && std::strcmp(text, "1") == 0;
}

// Bytes of this thread's SVE vectors, by the kernel's word: no SVE instruction runs. 0 without SVE.
int vector_bytes() {
#if defined(HWCAP_SVE) && defined(PR_SVE_GET_VL)
    const int length = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) : 0;
    return length > 0 ? length & PR_SVE_VL_LEN_MASK : 0;
#else
    return 0;
#endif
}

uint64_t detect() {
    uint64_t found = 0;
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    if (cap & HWCAP_ASIMD) found |= CPU_NEON;
    if ((found & CPU_NEON) && (cap2 & HWCAP2_BF16)) found |= CPU_ARM_BF16;
    if (const int length = vector_bytes()) {
        found |= CPU_SVE;
        if (cap2 & HWCAP2_SVEBF16) found |= CPU_SVE_BF16;
        const bool power_of_two = (length & (length - 1)) == 0;  // what a panel's width may be
        if (power_of_two && (length >= 32 || any_length())) found |= CPU_SVE_256;
    }
    return found;
}

#else
uint64_t detect() {
    return 0;
}
#endif

#if !defined(__aarch64__)
int vector_bytes() {
    return 0;
}
#endif

// MOELAB_CPU_MASK names features to do without; a feature takes along those that build on it.
uint64_t masked() {
    const char* text = std::getenv("MOELAB_CPU_MASK");
    uint64_t off = 0;
    while (text && *text) {
        const size_t length = std::strcspn(text, ", ");
        for (const FeatureName& feature : names)
            if (std::strlen(feature.name) == length && std::strncmp(feature.name, text, length) == 0)
                off |= feature.bit;
        text += length;
        text += std::strspn(text, ", ");
    }
    if (off & CPU_AVX2) off |= CPU_AVX512;
    if (off & CPU_AVX512) off |= CPU_AVX512_BF16;
    if (off & CPU_AVX512_BF16) off |= CPU_AMX_BF16;
    if (off & CPU_NEON) off |= CPU_ARM_BF16 | CPU_SVE;
    if (off & CPU_SVE) off |= CPU_SVE_BF16 | CPU_SVE_256;
    return off;
}

#if defined(__aarch64__)
const char* arm_name(unsigned long midr) {
    switch (midr & 0xff00fff0) {
        case 0x4100d080: return "Cortex-A72";
        case 0x4100d0b0: return "Cortex-A76";
        case 0x4100d0c0: return "Neoverse N1";
        case 0x4100d400: return "Neoverse V1";
        case 0x4100d490: return "Neoverse N2";
        case 0x4100d4f0: return "Neoverse V2";
        case 0x4100d830: return "Neoverse V3AE";
        case 0x4100d840: return "Neoverse V3";
        case 0x4100d8e0: return "Neoverse N3";
        case 0x61000230:
        case 0x61000250:
        case 0x61000290: return "Apple M1";  // Firestorm of M1, M1 Pro, M1 Max
        case 0x61000330:
        case 0x61000350:
        case 0x61000390: return "Apple M2";  // Avalanche of M2, M2 Pro, M2 Max
        default: return "unknown core";
    }
}
#endif

}  // namespace

uint64_t cpu_features() {
    static const uint64_t features = detect() & ~masked();
    return features;
}

int sve_vector_bytes() {
    static const int bytes = vector_bytes();
    return bytes;
}

std::string feature_names(uint64_t bits) {
    std::string text;
    for (const FeatureName& feature : names)
        if (bits & feature.bit) text += (text.empty() ? "" : ", ") + std::string(feature.name);
    return text;
}

std::string cpu_part() {
    char text[80] = "unknown CPU";
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    char vendor[13] = "";
    if (__get_cpuid(0, &a, &b, &c, &d)) {
        std::memcpy(vendor, &b, 4);
        std::memcpy(vendor + 4, &d, 4);
        std::memcpy(vendor + 8, &c, 4);
    }
    __get_cpuid(1, &a, &b, &c, &d);
    const unsigned base = a >> 8 & 15;
    const unsigned family = base == 15 ? base + (a >> 20 & 255) : base;
    const unsigned model = (a >> 4 & 15) | (base == 6 || base == 15 ? a >> 12 & 0xf0 : 0);
    std::snprintf(text, sizeof text, "%s family %u model %u stepping %u", vendor, family, model, a & 15);
#elif defined(__aarch64__)
    unsigned long midr = 0;
    if (FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "r")) {
        if (std::fscanf(file, "%lx", &midr) != 1) midr = 0;
        std::fclose(file);
    }
    if (midr) std::snprintf(text, sizeof text, "MIDR 0x%08lx, %s", midr, arm_name(midr));
#endif
    return text;
}

}  // namespace moelab
