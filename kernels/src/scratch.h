// Working memory of a call: belongs to the calling thread, grows, is reused.
#pragma once

#include <cstdint>

#include "moelab.h"

namespace moelab {

class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release(); }

    // At least `bytes` bytes, 64-byte aligned, contents undefined; nullptr when there is no memory.
    void* reserve(int64_t bytes) {
        if (bytes <= bytes_) return memory_;
        release();
        memory_ = moelab_alloc(static_cast<uint64_t>(bytes));
        bytes_ = memory_ ? bytes : 0;
        return memory_;
    }

  private:
    void release() {
        if (memory_) moelab_free(memory_, static_cast<uint64_t>(bytes_));
        memory_ = nullptr;
        bytes_ = 0;
    }

    void* memory_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace moelab
