// A test framework of one page: the binary must be self-contained, static and cheap to start under an emulator.
//
//     TEST(suite, name) { CHECK(condition, "format", ...); }
//     TEST_EACH_ISA(suite, name) { ... isa ... }        // once for every usable instruction set
//     if (!testing::slow()) SKIP("why");
//
// A suite is a property; it is what the table of property x ISA in the README lists.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <string>

namespace testing {

struct Failure {
    std::string message;
};
struct Skip {
    std::string reason;
};

using Body = void (*)(int isa);

struct Registration {
    Registration(const char* suite, const char* name, bool each_isa, Body body);
};

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

bool quick();  // --quick: what fits an emulator, a sanitizer or a mutant
bool slow();   // --slow: also what takes gigabytes or minutes

int run(int argc, char** argv);

}  // namespace testing

#define TESTING_DEFINE(suite, name, each)                                                                     \
    static void test_##suite##_##name([[maybe_unused]] int isa);                                              \
    static const testing::Registration register_##suite##_##name(#suite, #name, each, test_##suite##_##name); \
    static void test_##suite##_##name([[maybe_unused]] int isa)
#define TEST(suite, name) TESTING_DEFINE(suite, name, false)
#define TEST_EACH_ISA(suite, name) TESTING_DEFINE(suite, name, true)

#define CHECK(condition, ...)                                                                       \
    do {                                                                                            \
        if (!(condition))                                                                           \
            throw testing::Failure{testing::format("%s:%d: %s: ", __FILE__, __LINE__, #condition) + \
                                   testing::format(__VA_ARGS__)};                                   \
    } while (0)
#define SKIP(...)                    \
    throw testing::Skip {            \
        testing::format(__VA_ARGS__) \
    }
