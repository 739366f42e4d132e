// Where the time of a call goes, for those who ask with MOELAB_PROFILE=1; otherwise a branch a phase.
#pragma once

#include <chrono>

namespace moelab {

// In the order of moelab_last_profile, where the time spent waiting at barriers comes last.
enum Phase { kRoute, kPack, kGemm1, kGemm2, kCombine, kPhases };

class PhaseClock {
  public:
    explicit PhaseClock(bool on) : on_(on) {
        if (on) begin_ = now();
    }

    // By every thread of the team when its part is done, before the barrier.
    void arrive(Phase phase) {
        if (!on_) return;
        const double t = now() - begin_;
#pragma omp atomic
        arrived_[phase] += t;
#pragma omp atomic
        threads_[phase] += 1;
    }

    // By one thread, behind the barrier.
    void end(Phase phase) {
        if (on_) ended_[phase] = now() - begin_;
    }

    // Adds each phase as long as a thread was busy with it in the mean, and the mean of what all of them waited.
    void add_to(double seconds[kPhases + 1]) const {
        if (!on_) return;
        double begin = 0;
        for (int phase = 0; phase < kPhases; ++phase) {
            double done = threads_[phase] ? arrived_[phase] / threads_[phase] : ended_[phase];
            if (done < begin) done = begin;  // nothing to do, and quicker than the one who looks at the clock
            seconds[phase] += done - begin;
            seconds[kPhases] += ended_[phase] - done;
            begin = ended_[phase];
        }
    }

  private:
    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    bool on_;
    double begin_ = 0;
    double arrived_[kPhases] = {}, ended_[kPhases] = {};
    int threads_[kPhases] = {};
};

}  // namespace moelab
