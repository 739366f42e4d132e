// Instruction sets: a name that cannot run is refused by name and reason, everywhere, before any such instruction.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core_table.h"
#include "cpu.h"
#include "layer_case.h"
#include "registry.h"

namespace {

// Runs this program again with features masked, told what is left; false where the system cannot (an emulator).
bool run_again(const char* mask, const std::string& expected, const char* filter, int* status) {
    const pid_t child = fork();
    if (child == 0) {
        setenv("MOELAB_CPU_MASK", mask, 1);
        setenv("MOELAB_EXPECTED_ISAS", expected.c_str(), 1);
        if (!freopen("/dev/null", "w", stdout)) _exit(126);
        execl("/proc/self/exe", "moelab_tests", "--quick", "--filter", filter, static_cast<char*>(nullptr));
        _exit(127);
    }
    if (child < 0 || waitpid(child, status, 0) != child) return false;
    return !(WIFEXITED(*status) && WEXITSTATUS(*status) == 127);
}

// The instruction sets that can run, best first, but those named in `lost`.
std::string usable_without(const std::string& lost) {
    std::string names;
    for (int isa = moelab_isa_count() - 1; isa >= 0; isa--) {
        const std::string name = moelab_isa_name(isa);
        if (*moelab_isa_missing(isa) || ("," + lost + ",").find("," + name + ",") != std::string::npos) continue;
        names += (names.empty() ? "" : ",") + name;
    }
    return names;
}

}  // namespace

TEST(isa, table_is_sound) {
    CHECK(moelab_isa_count() >= 1, "no instruction sets");
    CHECK(std::strcmp(moelab_isa_name(0), "scalar") == 0, "the first is %s", moelab_isa_name(0));
    CHECK(*moelab_isa_missing(0) == '\0', "scalar lacks %s", moelab_isa_missing(0));
    for (const int bad : {-1, moelab_isa_count(), 1 << 30, -(1 << 30)}) {
        CHECK(moelab_isa_name(bad) == nullptr, "a name for index %d", bad);
        CHECK(moelab_isa_missing(bad) == nullptr, "an answer for index %d", bad);
    }
    for (int isa = 0; isa < moelab_isa_count(); isa++)
        for (int other = 0; other < isa; other++)
            CHECK(std::strcmp(moelab_isa_name(isa), moelab_isa_name(other)) != 0, "%s twice", moelab_isa_name(isa));
}

TEST(isa, order_follows_the_core) {
    const auto order = [](const char* part) {
        std::string names;
        for (const moelab::Isa* isa : moelab::isas_of(moelab::tuning_of(part))) names += std::string(isa->name) + " ";
        return names;
    };
    std::string here;
    for (int isa = 0; isa < moelab_isa_count(); isa++) here += std::string(moelab_isa_name(isa)) + " ";
    CHECK(here == order(moelab::cpu_part().c_str()), "%s on %s", here.c_str(), moelab::cpu_part().c_str());
#if defined(__x86_64__)
    // As registry.cpp has them; where vdpbf16ps is at half rate and less, fp32 FMA comes before it and after AMX.
    const char* const rising = "scalar avx2 avx512 avx512_bf16 amx_bf16 ";
    if (moelab_isa_count() < 5) SKIP("this build lacks instruction sets");
    for (const char* part : {"AuthenticAMD family 25 model 17", "AuthenticAMD family 26 model 2", "an unknown core"})
        CHECK(order(part) == rising, "%s: %s", part, order(part).c_str());
    for (const char* part : {"GenuineIntel family 6 model 143", "GenuineIntel family 6 model 207 stepping 2"})
        CHECK(order(part) == "scalar avx2 avx512_bf16 avx512 amx_bf16 ", "%s: %s", part, order(part).c_str());
#endif
}

TEST(isa, expected_ones_can_run) {
    // Who starts the tests on a known CPU says what it has, so that nothing runs there by mistake.
    const char* expected = std::getenv("MOELAB_EXPECTED_ISAS");
    if (!expected) SKIP("MOELAB_EXPECTED_ISAS is not set");
    const std::string usable = usable_without("");
    CHECK(usable == expected, "can run: %s; expected: %s", usable.c_str(), expected);
}

TEST(isa, unusable_ones_are_refused_by_name) {
    int refused = 0;
    for (int isa = 0; isa < moelab_isa_count(); isa++) {
        const std::string missing = moelab_isa_missing(isa), name = moelab_isa_name(isa);
        int found = -1;
        if (missing.empty()) {
            CHECK_STATUS(moelab_isa_find(name.c_str(), &found), MOELAB_OK);
            CHECK(found == isa, "%s found at %d", name.c_str(), found);
            continue;
        }
        refused++;
        const auto says_so = [&] {
            CHECK_MESSAGE(name);
            CHECK_MESSAGE(missing);
        };
        CHECK_STATUS(moelab_isa_find(name.c_str(), &found), MOELAB_UNSUPPORTED);
        says_so();
        const moelab_layer layer = {isa, MOELAB_SILU, 1, 8, 8, 0, 0, 0};
        uint64_t bytes;
        CHECK_STATUS(moelab_packed_bytes(&layer, &bytes), MOELAB_UNSUPPORTED);
        says_so();
        alignas(64) char memory[8192];
        CHECK_STATUS(moelab_pack_begin(&layer, memory, sizeof memory), MOELAB_UNSUPPORTED);
        says_so();
        const float value = 1;
        uint16_t out;
        CHECK_STATUS(moelab_activate(isa, MOELAB_SILU, 0, 0, &value, &value, &out, 1), MOELAB_UNSUPPORTED);
        says_so();
        double rate;
        CHECK_STATUS(moelab_peak(MOELAB_PEAK_FP32, isa, 1, 0.001, &rate), MOELAB_UNSUPPORTED);
        const int64_t rows = 1;
        CHECK_STATUS(moelab_partition_cost(&layer, 1, &rows, 1, &rate), MOELAB_UNSUPPORTED);
    }
    if (const char* mask = std::getenv("MOELAB_CPU_MASK")) CHECK(refused > 0, "MOELAB_CPU_MASK=%s masks nothing", mask);
    if (refused == 0) SKIP("this CPU can run them all; see isa.masked_features_are_refused");
}

TEST(isa, unknown_names_are_refused) {
    int found = -1;
    for (const char* name :
         {"", "avx3", "AVX2", "scalar ", "a_name_that_is_longer_than_any_buffer_could_ever_want_it_to_be"}) {
        CHECK_STATUS(moelab_isa_find(name, &found), MOELAB_UNSUPPORTED);
        CHECK_MESSAGE("scalar");
    }
    CHECK_STATUS(moelab_isa_find(nullptr, &found), MOELAB_INVALID);
    CHECK_STATUS(moelab_isa_find("scalar", nullptr), MOELAB_INVALID);
}

TEST(isa, best_is_the_strongest_that_can_run) {
    if (std::getenv("MOELAB_ISA")) SKIP("MOELAB_ISA is set");
    int best = -1, strongest = -1;
    CHECK_STATUS(moelab_isa_best(&best), MOELAB_OK);
    for (int isa = 0; isa < moelab_isa_count(); isa++)
        if (*moelab_isa_missing(isa) == '\0') strongest = isa;
    CHECK(best == strongest, "%d, expected %d", best, strongest);
}

TEST_EACH_ISA(isa, forced_by_environment) {
    setenv("MOELAB_ISA", moelab_isa_name(isa), 1);
    int best = -1;
    const moelab_status status = moelab_isa_best(&best);
    unsetenv("MOELAB_ISA");
    CHECK(status == MOELAB_OK && best == isa, "status %d, isa %d", static_cast<int>(status), best);
}

TEST(isa, forcing_an_unusable_one_is_an_error) {
    std::string wanted = "no_such_isa";
    for (int isa = 0; isa < moelab_isa_count(); isa++)
        if (*moelab_isa_missing(isa)) wanted = moelab_isa_name(isa);
    setenv("MOELAB_ISA", wanted.c_str(), 1);
    int best = -1;
    const moelab_status status = moelab_isa_best(&best);
    unsetenv("MOELAB_ISA");
    CHECK(status == MOELAB_UNSUPPORTED, "status %d, isa %d", static_cast<int>(status), best);
    CHECK_MESSAGE(wanted);
}

TEST(isa, masked_features_are_refused) {
    // Features are read once per process, so each mask has a process of its own. A mask takes along what builds on it.
#if defined(__x86_64__)
    const char* const masks[] = {"avx2", "avx512", "avx512_bf16", "amx_bf16", "avx2,avx512"};
    const char* const lost[] = {"avx2,avx512,avx512_bf16,amx_bf16", "avx512,avx512_bf16,amx_bf16",
                                "avx512_bf16,amx_bf16", "amx_bf16", "avx2,avx512,avx512_bf16,amx_bf16"};
#else
    const char* const masks[] = {"neon", "bf16", "sve", "sve_bf16", "sve_256"};
    const char* const lost[] = {"neon,neon_bf16,sve_bf16", "neon_bf16,sve_bf16", "sve_bf16", "sve_bf16", "sve_bf16"};
#endif
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        int had = -1, status = 0;
        const std::string first = std::string(lost[i]).substr(0, std::strcspn(lost[i], ","));
        if (moelab_isa_find(first.c_str(), &had) != MOELAB_OK) continue;  // not in this build or not on this CPU
        if (!run_again(masks[i], usable_without(lost[i]), "isa.expected,isa.unusable,isa.best,router_weight.on_input",
                       &status))
            SKIP("this system cannot start the program again");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "MOELAB_CPU_MASK=%s: exit status %d", masks[i], status);
    }
}

TEST(isa, build_info_names_what_is_there) {
    const std::string info = moelab_build_info();
    CHECK(!info.empty() && info.front() == '{' && info.back() == '}', "%s", info.c_str());
    for (int isa = 0; isa < moelab_isa_count(); isa++)
        CHECK(info.find("\"" + std::string(moelab_isa_name(isa)) + "\"") != std::string::npos, "%s lacks %s",
              info.c_str(), moelab_isa_name(isa));
    CHECK(moelab_abi_version() == MOELAB_ABI_VERSION, "%d", moelab_abi_version());
}

TEST_EACH_ISA(isa, probes_answer) {
    for (const int kind : {MOELAB_PEAK_BF16, MOELAB_PEAK_FP32, MOELAB_PEAK_READ}) {
        if (kind == MOELAB_PEAK_READ && testing::quick()) continue;  // reads gigabytes
        double rate = -1;
        CHECK_STATUS(moelab_peak(kind, isa, 2, 0.01, &rate), MOELAB_OK);
        CHECK(rate > 1e6 && rate < 1e16, "kind %d: %g", kind, rate);
    }
    double rate;
    CHECK_STATUS(moelab_peak(7, isa, 2, 0.01, &rate), MOELAB_INVALID);
}
