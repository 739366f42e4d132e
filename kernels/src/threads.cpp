#include "threads.h"

#include <omp.h>
#include <pthread.h>

#include <atomic>

namespace moelab {
namespace {

std::atomic<bool> team_started{false}, orphaned{false};

void after_fork_in_child() {
    if (team_started.load()) orphaned.store(true);
}

const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

int clamp_threads(int num_threads) {
    if (registered == 0 && orphaned.load(std::memory_order_relaxed)) return 1;
    const int threads = num_threads > 0 ? num_threads : omp_get_max_threads();
    if (threads > 1) team_started.store(true, std::memory_order_relaxed);
    return threads > 1024 ? 1024 : threads;
}

}  // namespace moelab
