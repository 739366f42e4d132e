// sve_bf16: vectors as long as the machine's. It is the choice where they are longer than NEON's, gives the bits of
// neon_bf16 at every length, and refuses weights packed for another one.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "layer_case.h"
#include "packed.h"

#if defined(__aarch64__)
#include <sys/prctl.h>
#endif

namespace {

int usable(const char* name) {
    int isa = -1;
    return moelab_isa_find(name, &isa) == MOELAB_OK ? isa : -1;
}

// Bits of this process's SVE vectors, from the system; 0 without SVE.
int vector_bits() {
#if defined(__aarch64__) && defined(PR_SVE_GET_VL)
    const int length = prctl(PR_SVE_GET_VL);
    return length > 0 ? (length & PR_SVE_VL_LEN_MASK) * 8 : 0;
#else
    return 0;
#endif
}

bool without_environment() {
    return !std::getenv("MOELAB_ISA") && !std::getenv("MOELAB_CPU_MASK") && !std::getenv("MOELAB_SVE_ANY_LENGTH");
}

}  // namespace

TEST(vector_length, decides_the_choice) {
    if (!without_environment()) SKIP("the environment chooses");
    int best = -1;
    CHECK_STATUS(moelab_isa_best(&best), MOELAB_OK);
    const bool chosen = std::strcmp(moelab_isa_name(best), "sve_bf16") == 0;
    if (chosen) {
        CHECK(vector_bits() >= 256, "chosen with vectors of %d bits", vector_bits());
    } else if (vector_bits() >= 256 && usable("neon_bf16") >= 0) {
        CHECK(usable("sve_bf16") < 0, "usable, but %s was chosen", moelab_isa_name(best));
        // SVE without BF16, or a length that is no power of two.
        const bool whole_panels = (vector_bits() & (vector_bits() - 1)) == 0;
        CHECK_MESSAGE(whole_panels ? "lacks sve_bf16" : "lacks sve_256");
    }
    if (vector_bits() == 128 && usable("sve_bf16") < 0) CHECK_MESSAGE("lacks sve_256");
}

TEST(vector_length, panels_are_four_vectors) {
    const int sve = usable("sve_bf16");
    if (sve < 0) SKIP("no sve_bf16 on this CPU");
    moelab::Layout layout;
    CHECK_STATUS(moelab::make_layout({sve, MOELAB_SILU, 1, 8, 8, 0, 0, 0}, &layout), MOELAB_OK);
    CHECK(layout.isa->geometry.nr == vector_bits() / 16, "%d columns, vectors of %d bits", layout.isa->geometry.nr,
          vector_bits());
}

TEST(vector_length, changes_no_bits) {
    const int sve = usable("sve_bf16"), neon = usable("neon_bf16");
    if (sve < 0 || neon < 0) SKIP("not both kernels on this CPU");
    // Every kind of row block, both GEMMs with partial panels, and k beyond one cache block.
    for (const Shape& shape : {Shape{2, 70, 45, 37, 2, MOELAB_SWIGLUOAI, true}, Shape{1, 37, 300, 29, 1, MOELAB_GELU},
                               Shape{3, 2880, 24, 40, 1, MOELAB_SILU, false}}) {
        const Problem p = make_problem(shape);
        const Packed packed_sve = pack(p, sve), packed_neon = pack(p, neon);
        for (int64_t tokens = 1; tokens <= p.tokens; tokens += testing::quick() ? 4 : 1) {
            std::vector<int64_t> some;
            for (int64_t t = 0; t < tokens; t++) some.push_back(t);
            const Problem part = batch_of(p, some);
            check_same_bits(run(part, packed_sve), run(part, packed_neon), p.hidden, "SVE and NEON");
        }
    }
}

TEST_EACH_ISA(vector_length, another_ones_weights_are_refused) {
    const Problem p = make_problem({2, 33, 17, 2, 2});
    const Packed packed = pack(p, isa);
    Guarded copy(packed.bytes(), Guarded::kEnd, 64);
    std::memcpy(copy.data(), packed.data(), packed.bytes());
    moelab::Header& header = *copy.as<moelab::Header>();
    header.nr *= 2;
    header.checksum = moelab::checksum(&header, offsetof(moelab::Header, checksum));
    Bits out(static_cast<size_t>(p.tokens * p.hidden));
    const moelab_call c = plain_call(p, out.data());
    CHECK_STATUS(moelab_fused_moe(copy.data(), packed.bytes(), nullptr, &c), MOELAB_CORRUPT);
    CHECK_MESSAGE("for another vector length");
    moelab_layer layer;
    CHECK_STATUS(moelab_packed_layer(copy.data(), packed.bytes(), 1, &layer), MOELAB_CORRUPT);
}
