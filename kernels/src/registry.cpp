// Every instruction set, weakest first, but for what core_table.cpp says of the core we run on. The last one that this
// CPU can run is the best.
//
//   name          multiply instruction    needs                     weight panel      row tile
//   scalar        mul + add               nothing                   4 columns         4
//   avx2          vfmadd (fp32)           AVX2, FMA, F16C           16                see isa/avx2.cpp
//   avx512        vfmadd (fp32)           AVX-512 F, BW, DQ, VL     32                see isa/avx512.cpp
//   avx512_bf16   vdpbf16ps               + AVX512_BF16             32                see isa/avx512_bf16.cpp
//   amx_bf16      tdpbf16ps               + AMX-BF16                32                see isa/amx_bf16.cpp
//   neon          fmla (fp32)             Armv8.0                   8                 see isa/neon.cpp
//   neon_bf16     bfmmla                  FEAT_BF16                 see isa/neon_bf16.cpp
//   sve_bf16      bfmmla (SVE)            SVE + BF16, >= 256 bits   8 per 128 bits    see isa/sve_bf16.cpp
#include "registry.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core_table.h"
#include "cpu.h"
#include "error.h"
#include "moelab.h"

namespace moelab {

extern const Isa kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16, kNeon, kNeonBf16, kSveBf16;

namespace {

#ifdef MOELAB_HAVE_SVE_BF16
// With panels as wide as this machine's vectors. Not in sve_bf16.cpp: what runs there before main() could be SVE.
const Isa kSveBf16Here = [] {
    Isa isa = kSveBf16;
    if (sve_vector_bytes()) isa.geometry.nr *= sve_vector_bytes() / 16;
    return isa;
}();
#endif

const Isa* const table[] = {
    &kScalar,
#ifdef MOELAB_HAVE_AVX2
    &kAvx2,
#endif
#ifdef MOELAB_HAVE_AVX512
    &kAvx512,
#endif
#ifdef MOELAB_HAVE_AVX512_BF16
    &kAvx512Bf16,
#endif
#ifdef MOELAB_HAVE_AMX_BF16
    &kAmxBf16,
#endif
#ifdef MOELAB_HAVE_NEON
    &kNeon,
#endif
#ifdef MOELAB_HAVE_NEON_BF16
    &kNeonBf16,
#endif
#ifdef MOELAB_HAVE_SVE_BF16
    &kSveBf16Here,
#endif
};

constexpr int count = sizeof table / sizeof *table;

}  // namespace

std::vector<const Isa*> isas_of(const CoreTuning& core) {
    std::vector<const Isa*> isas(table, table + count);
    if (!core.slow_isa) return isas;
    const auto at = [&](const char* name) {
        return std::find_if(isas.begin(), isas.end(), [&](const Isa* isa) { return !std::strcmp(isa->name, name); });
    };
    const auto faster = at(core.faster_isa), slow = at(core.slow_isa);
    if (faster < slow && slow != isas.end()) std::rotate(faster, slow, slow + 1);
    return isas;
}

int isa_count() {
    return count;
}

const Isa* isa_at(int index) {
    static const std::vector<const Isa*> isas = isas_of(core_tuning());
    return index >= 0 && index < count ? isas[static_cast<size_t>(index)] : nullptr;
}

uint64_t isa_missing(const Isa& isa) {
    return isa.needs & ~cpu_features();
}

}  // namespace moelab

using moelab::fail;
using moelab::isa_at;

extern "C" int32_t moelab_isa_count(void) {
    return moelab::count;
}

extern "C" const char* moelab_isa_name(int32_t isa) {
    return isa_at(isa) ? isa_at(isa)->name : nullptr;
}

extern "C" const char* moelab_isa_missing(int32_t isa) {
    if (!isa_at(isa)) return nullptr;
    static thread_local char text[128];
    std::strncpy(text, moelab::feature_names(moelab::isa_missing(*isa_at(isa))).c_str(), sizeof text - 1);
    return text;
}

extern "C" moelab_status moelab_isa_find(const char* name, int32_t* isa) {
    if (!name || !isa) return fail(MOELAB_INVALID, "isa: a null pointer; expected a name");
    char known[128] = "";
    for (int i = 0; i < moelab::count; ++i) {
        const moelab::Isa& candidate = *isa_at(i);
        std::strncat(known, i ? ", " : "", sizeof known - std::strlen(known) - 1);
        std::strncat(known, candidate.name, sizeof known - std::strlen(known) - 1);
        if (std::strcmp(candidate.name, name) != 0) continue;
        const uint64_t missing = moelab::isa_missing(candidate);
        if (missing)
            return fail(MOELAB_UNSUPPORTED, "isa '%s': this CPU (%s) lacks %s", name, moelab::cpu_part().c_str(),
                        moelab::feature_names(missing).c_str());
        *isa = i;
        return MOELAB_OK;
    }
    return fail(MOELAB_UNSUPPORTED, "isa '%.40s' is not in this build; it has %s", name, known);
}

extern "C" moelab_status moelab_isa_best(int32_t* isa) {
    if (!isa) return fail(MOELAB_INVALID, "isa: a null pointer");
    const char* forced = std::getenv("MOELAB_ISA");
    if (forced && *forced) return moelab_isa_find(forced, isa);
    for (int i = moelab::count - 1; i >= 0; --i) {
        if (moelab::isa_missing(*isa_at(i))) continue;
        *isa = i;
        return MOELAB_OK;
    }
    return fail(MOELAB_UNSUPPORTED, "no instruction set of this build can run on this CPU");
}
