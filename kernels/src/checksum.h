// The checksum of packed weights, for code that sees the bytes in portions or of several pieces at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace moelab {
namespace {  // a copy for every file: what one ISA's compiles to must never be used elsewhere

constexpr uint64_t checksum_prime = 0x9e3779b97f4a7c15u;

// Four independent multiply chains, word i in chain i % 4. Each step is a bijection of its word.
class Checksum {
  public:
    Checksum() = default;
    // Goes on where chains with these values have come after `bytes` bytes, a multiple of 32.
    Checksum(const uint64_t* lanes, int64_t bytes) : bytes_(bytes) { std::memcpy(lane_, lanes, sizeof lane_); }

    // All calls but the last with a multiple of 32 bytes, the last with a multiple of 8.
    void add(const void* data, int64_t bytes) {
        const char* at = static_cast<const char*>(data);
        uint64_t lane[4] = {lane_[0], lane_[1], lane_[2], lane_[3]};  // in registers, whatever `data` may point to
        const auto mix = [&](int i) {
            uint64_t word;
            std::memcpy(&word, at + 8 * i, 8);
            lane[i] = (lane[i] ^ word) * checksum_prime;
            lane[i] ^= lane[i] >> 29;
        };
        int64_t left = bytes;
        for (; left >= 32; left -= 32, at += 32)
            for (int i = 0; i < 4; ++i) mix(i);
        for (int i = 0; left >= 8; left -= 8, ++i) mix(i);
        std::memcpy(lane_, lane, sizeof lane_);
        bytes_ += bytes;
    }

    uint64_t value() const {
        uint64_t sum = static_cast<uint64_t>(bytes_);
        for (uint64_t part : lane_) {
            sum = (sum ^ part) * checksum_prime;
            sum ^= sum >> 32;
        }
        return sum;
    }

  private:
    uint64_t lane_[4] = {1, 2, 3, 4};
    int64_t bytes_ = 0;
};

}  // namespace
}  // namespace moelab
