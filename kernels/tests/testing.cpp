#include "testing.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "moelab.h"

namespace testing {
namespace {

struct Case {
    const char *suite, *name;
    bool each_isa;
    Body body;
};

struct Options {
    const char *filter = "", *skip = nullptr, *isa = nullptr, *json = nullptr;
    bool list = false, quick = false, slow = false;
    int timeout = 300;
} options;

std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

char current[256];

// A worker thread may be the one that faults, so nothing can be unwound: name the test and leave.
void on_signal(int signal) {
    const char* what = signal == SIGALRM ? "TIMEOUT" : signal == SIGILL ? "ILLEGAL INSTRUCTION" : "CRASHED";
    char line[320];
    const int n = snprintf(line, sizeof line, "FAIL %s: %s (signal %d)\n", current, what, signal);
    if (write(STDOUT_FILENO, line, static_cast<size_t>(n)) < 0) _exit(3);
    _exit(2);
}

bool selected(const std::string& name) {
    if (options.skip && name.find(options.skip) != std::string::npos) return false;
    // --filter a,b,c: any of them
    const std::string all = options.filter;
    for (size_t begin = 0; begin <= all.size();) {
        const size_t end = std::min(all.find(',', begin), all.size());
        if (name.find(all.substr(begin, end - begin)) != std::string::npos) return true;
        begin = end + 1;
    }
    return false;
}

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
        if (c == '"' || c == '\\')
            out += {'\\', c};
        else
            out += c == '\n' ? ' ' : c;
    return out;
}

void usage(const char* program) {
    printf(
        "%s: tests of the moelab kernels\n\n"
        "  --list          print the names of the tests and stop\n"
        "  --filter A,B    only tests whose name contains A or B\n"
        "  --skip A        not those whose name contains A\n"
        "  --isa NAME      only this instruction set\n"
        "  --quick         small cases: for emulators, sanitizers and mutants\n"
        "  --slow          also the cases that need gigabytes or minutes\n"
        "  --timeout S     a test that runs longer has failed (default 300)\n"
        "  --json FILE     write the results there\n",
        program);
}

void parse(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        const std::string arg = argv[i];
        const auto value = [&]() -> const char* {
            if (++i < argc) return argv[i];
            fprintf(stderr, "%s needs a value; see --help\n", arg.c_str());
            exit(64);
        };
        if (arg == "--help") {
            usage(argv[0]);
            exit(0);
        } else if (arg == "--list") {
            options.list = true;
        } else if (arg == "--quick") {
            options.quick = true;
        } else if (arg == "--slow") {
            options.slow = true;
        } else if (arg == "--filter") {
            options.filter = value();
        } else if (arg == "--skip") {
            options.skip = value();
        } else if (arg == "--isa") {
            options.isa = value();
        } else if (arg == "--json") {
            options.json = value();
        } else if (arg == "--timeout") {
            options.timeout = atoi(value());
        } else {
            fprintf(stderr, "unknown option %s; see --help\n", arg.c_str());
            exit(64);
        }
    }
}

}  // namespace

Registration::Registration(const char* suite, const char* name, bool each_isa, Body body) {
    cases().push_back({suite, name, each_isa, body});
}

std::string format(const char* text, ...) {
    char buffer[1024];
    va_list args;
    va_start(args, text);
    vsnprintf(buffer, sizeof buffer, text, args);
    va_end(args);
    return buffer;
}

bool quick() {
    return options.quick;
}
bool slow() {
    return options.slow;
}

int run(int argc, char** argv) {
    parse(argc, argv);
    // A named ISA that cannot run is an error, not a run without tests.
    int only = -1;
    if (options.isa && moelab_isa_find(options.isa, &only) != MOELAB_OK) {
        fprintf(stderr, "--isa %s: %s\n", options.isa, moelab_last_error());
        return 64;
    }
    FILE* json = nullptr;
    if (options.json && !(json = fopen(options.json, "w"))) {
        perror(options.json);
        return 64;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(MOELAB_SANITIZED)  // a sanitizer's own report says more
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::signal(signal, on_signal);
#endif
    ::signal(SIGALRM, on_signal);

    int passed = 0, failed = 0, skipped = 0;
    const auto one = [&](const Case& test, int isa) {
        const char* isa_name = test.each_isa ? moelab_isa_name(isa) : "";
        const std::string name = std::string(test.suite) + "." + test.name + (test.each_isa ? "/" : "") + isa_name;
        if (!selected(name)) return;
        if (options.list) {
            printf("%s\n", name.c_str());
            return;
        }
        snprintf(current, sizeof current, "%s", name.c_str());
        alarm(static_cast<unsigned>(options.timeout));
        const auto start = std::chrono::steady_clock::now();
        const char* result = "ok";
        std::string message;
        try {
            test.body(isa);
            passed++;
        } catch (const Skip& skip) {
            result = "skip";
            message = skip.reason;
            skipped++;
        } catch (const Failure& failure) {
            result = "FAIL";
            message = failure.message;
            failed++;
        }
        alarm(0);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        printf("%-4s %s%s%s (%.2f s)\n", result, name.c_str(), message.empty() ? "" : ": ", message.c_str(), seconds);
        if (json)
            fprintf(json,
                    "%s{\"suite\": \"%s\", \"name\": \"%s\", \"isa\": \"%s\", \"result\": \"%s\", "
                    "\"seconds\": %.3f, \"message\": \"%s\"}",
                    passed + failed + skipped > 1 ? ",\n" : "[\n", test.suite, test.name, isa_name, result, seconds,
                    escaped(message).c_str());
    };

    for (const Case& test : cases()) {
        if (!test.each_isa && !options.isa) one(test, -1);
        // Instruction sets innermost: the reference of a case is computed once and kept for the next ISA.
        for (int isa = 0; test.each_isa && isa < moelab_isa_count(); isa++)
            if (*moelab_isa_missing(isa) == '\0' && (only < 0 || only == isa)) one(test, isa);
    }
    if (json) {
        fprintf(json, passed + failed + skipped ? "\n]\n" : "[]\n");
        fclose(json);
    }
    if (options.list) return 0;
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (passed + failed == 0) fprintf(stderr, "no test ran\n");
    return failed || passed + failed == 0;
}

}  // namespace testing

#ifndef MOELAB_TESTING_NO_MAIN
int main(int argc, char** argv) {
    return testing::run(argc, argv);
}
#endif
