// The library's own scratch between guard pages: the linker hands its allocations to this file (--wrap).
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "layer_case.h"

extern "C" {
void* __real_moelab_alloc(uint64_t bytes);              // NOLINT: names that --wrap prescribes
void __real_moelab_free(void* memory, uint64_t bytes);  // NOLINT
void* __wrap_moelab_alloc(uint64_t bytes);              // NOLINT
void __wrap_moelab_free(void* memory, uint64_t bytes);  // NOLINT
}

namespace {

thread_local bool guard_scratch = false;
thread_local Guarded::Side guard_side = Guarded::kEnd;
thread_local int guarded_blocks = 0;
thread_local void* last_block = nullptr;
thread_local char* last_map = nullptr;

size_t rounded(uint64_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

// Runs a call on a thread of its own: scratch belongs to the thread, so it is allocated anew, in the call's own size.
Bits run_guarded(const Problem& p, const Packed& packed, const Options& o, Guarded::Side side) {
    Bits out;
    std::string failure;
    int blocks = 0;
    std::thread([&] {
        guard_scratch = true;
        guard_side = side;
        guarded_blocks = 0;
        try {
            out = run(p, packed, o);
        } catch (const testing::Failure& f) {
            failure = f.message;
        }
        blocks = guarded_blocks;
    }).join();
    if (!failure.empty()) throw testing::Failure{failure};
    CHECK(blocks > 0, "no scratch was allocated through moelab_alloc: this test guards nothing");
    return out;
}

}  // namespace

// The start of a block lies on a guard page, or its end, up to the alignment of 64 that callers rely on.
// Every byte is NaN: what is read before it is written shows.
void* __wrap_moelab_alloc(uint64_t bytes) {
    if (!guard_scratch) return __real_moelab_alloc(bytes);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), room = rounded(bytes);
    void* map = mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    last_map = static_cast<char*>(map);
    char* const first = last_map + page;
    mprotect(first, room, PROT_READ | PROT_WRITE);
    std::memset(first, 0xff, room);
    guarded_blocks++;
    last_block = first + (guard_side == Guarded::kEnd ? (room - bytes) / 64 * 64 : 0);
    return last_block;
}

void __wrap_moelab_free(void* memory, uint64_t bytes) {
    if (!guard_scratch || memory != last_block) return __real_moelab_free(memory, bytes);
    munmap(last_map, rounded(bytes) + 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
    last_block = nullptr;
}

TEST_EACH_ISA(scratch, between_guard_pages_and_never_read_before_written) {
    Random random(77);
    for (int n = 0; n < (testing::quick() ? 20 : 150); n++) {
        const int64_t experts = 1 + random.below(9);
        Problem p = make_problem({experts, 1 + random.below(150), 1 + random.below(150), 1 + random.below(40),
                                  1 + random.below(4), static_cast<int>(random.below(4)), random.below(2) == 0},
                                 random.bits());
        p.on_input = random.below(3) == 0;
        for (int64_t& id : p.ids)
            if (random.below(6) == 0) id = -1;
        const Packed packed = pack(p, isa);
        Options o;
        o.threads = static_cast<int>(1 + random.below(3));
        const Guarded::Side side = n % 2 ? Guarded::kStart : Guarded::kEnd;
        check_same_bits(run_guarded(p, packed, o, side), run(p, packed, o), p.hidden, "in guarded scratch");
    }
}

TEST_EACH_ISA(scratch, every_number_of_rows) {
    for (int64_t tokens = 1; tokens <= (testing::quick() ? 26 : 60); tokens++) {
        const Problem p = make_problem({2, 33, 31, tokens, 1, MOELAB_SILU, true});
        const Packed packed = pack(p, isa);
        for (const Guarded::Side side : {Guarded::kStart, Guarded::kEnd})
            check_same_bits(run_guarded(p, packed, {}, side), run(p, packed), p.hidden, "in guarded scratch");
    }
}
