// Probes: what this machine can multiply and read at this moment.
#include <omp.h>

#include <chrono>
#include <cstring>
#include <mutex>

#include "error.h"
#include "moelab.h"
#include "registry.h"
#include "threads.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sum over threads of what each got done per second while all of them ran.
template <typename Run>
double total_rate(int threads, double seconds, Run run) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        run(omp_get_thread_num(), omp_get_num_threads(), seconds / 8);  // wakes the core and its vector units
#pragma omp barrier
        const Clock::time_point start = Clock::now();
        const double done = run(omp_get_thread_num(), omp_get_num_threads(), seconds);
        sum += done / since(start);
    }
    return sum;
}

double run_flops(double (*block)(int64_t), double seconds) {
    const Clock::time_point start = Clock::now();
    double flops = 0;
    do flops += block(2000);
    while (since(start) < seconds);
    return flops;
}

// Larger than the last-level caches we know of; kept between calls so that a probe can sit beside each sample.
constexpr int64_t buffer_bytes = int64_t{1} << 30;
constexpr int64_t step_bytes = int64_t{4} << 20;

struct ReadBuffer {
    char* data = nullptr;
    std::mutex lock;
};

ReadBuffer& read_buffer() {
    static ReadBuffer buffer;
    return buffer;
}

volatile uint64_t sink;

double run_read(uint64_t (*read)(const void*, int64_t), const char* data, int thread, int threads, double seconds,
                int64_t* position) {
    const int64_t steps = buffer_bytes / step_bytes;
    const int64_t begin = steps * thread / threads, end = steps * (thread + 1) / threads;
    const Clock::time_point start = Clock::now();
    double bytes = 0;
    uint64_t sum = 0;
    do {
        if (*position < begin || *position >= end) *position = begin;
        sum += read(data + *position * step_bytes, step_bytes);
        bytes += static_cast<double>(step_bytes);
        ++*position;
    } while (since(start) < seconds);
    sink = sum;
    return bytes;
}

moelab_status peak_read(const Isa& isa, int threads, double seconds, double* rate) {
    ReadBuffer& buffer = read_buffer();
    const std::lock_guard<std::mutex> guard(buffer.lock);
    if (!buffer.data) {
        buffer.data = static_cast<char*>(moelab_alloc(buffer_bytes));
        if (!buffer.data)
            return fail(MOELAB_NO_MEMORY, "peak: no memory for the %lld byte read buffer",
                        static_cast<long long>(buffer_bytes));
#pragma omp parallel num_threads(threads)
        {
            const int64_t steps = buffer_bytes / step_bytes;
            const int64_t begin = steps * omp_get_thread_num() / omp_get_num_threads();
            const int64_t end = steps * (omp_get_thread_num() + 1) / omp_get_num_threads();
            std::memset(buffer.data + begin * step_bytes, 1, static_cast<size_t>((end - begin) * step_bytes));
        }
    }
    // Each thread's place in the buffer lives on between calls: a short probe must not reread what is cached.
    static thread_local int64_t position = 0;
    double best = 0;
    for (const auto read : {isa.read_linear, isa.read_streams4}) {
        const double got = total_rate(threads, seconds / 2, [&](int thread, int team, double time) {
            return run_read(read, buffer.data, thread, team, time, &position);
        });
        if (got > best) best = got;
    }
    *rate = best;
    return MOELAB_OK;
}

}  // namespace
}  // namespace moelab

using namespace moelab;

extern "C" moelab_status moelab_peak(int32_t kind, int32_t isa, int32_t num_threads, double seconds, double* rate) {
    if (!rate) return fail(MOELAB_INVALID, "rate: a null pointer");
    if (!(seconds > 0 && seconds <= 60)) return fail(MOELAB_INVALID, "seconds: %g; expected (0, 60]", seconds);
    if (isa < 0) {
        const moelab_status status = moelab_isa_best(&isa);
        if (status != MOELAB_OK) return status;
    }
    if (!isa_at(isa)) return fail(MOELAB_INVALID, "isa: index %d; this build has 0 to %d", isa, isa_count() - 1);
    const Isa& entry = *isa_at(isa);
    if (isa_missing(entry)) return moelab_isa_find(entry.name, &isa);  // says what is missing
    const int threads = clamp_threads(num_threads);
    switch (kind) {
        case MOELAB_PEAK_BF16:
        case MOELAB_PEAK_FP32: {
            const auto block = kind == MOELAB_PEAK_BF16 ? entry.peak_bf16 : entry.peak_fp32;
            *rate = total_rate(threads, seconds, [&](int, int, double time) { return run_flops(block, time); });
            return MOELAB_OK;
        }
        case MOELAB_PEAK_READ: return peak_read(entry, threads, seconds, rate);
        default: return fail(MOELAB_INVALID, "kind: %d; expected bf16 (0), fp32 (1) or read (2)", kind);
    }
}
