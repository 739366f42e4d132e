// Memory between two pages that nothing may touch: a read or write past either end faults at once.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "testing.h"

class Guarded {
  public:
    enum Side { kStart, kEnd };  // which end of the data lies exactly on a guard page

    Guarded() = default;
    Guarded(size_t bytes, Side side, size_t align = 1) : bytes_(bytes) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t room = (bytes + page - 1) / page * page;
        mapped_ = room + 2 * page;
        void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) throw testing::Failure{testing::format("mmap of %zu bytes failed", mapped_)};
        map_ = static_cast<char*>(map);
        if (room) mprotect(map_ + page, room, PROT_READ | PROT_WRITE);
        data_ = map_ + page + (side == kEnd ? (room - bytes) / align * align : 0);
    }
    Guarded(Guarded&& other) noexcept { swap(other); }
    Guarded& operator=(Guarded&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Guarded() {
        if (map_) munmap(map_, mapped_);
    }

    void* data() const { return data_; }
    size_t size() const { return bytes_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    void read_only() const { protect(PROT_READ); }
    void read_write() const { protect(PROT_READ | PROT_WRITE); }

  private:
    void protect(int how) const {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        if (mapped_ > 2 * page) mprotect(map_ + page, mapped_ - 2 * page, how);
    }
    void swap(Guarded& other) {
        std::swap(map_, other.map_);
        std::swap(data_, other.data_);
        std::swap(mapped_, other.mapped_);
        std::swap(bytes_, other.bytes_);
    }
    char *map_ = nullptr, *data_ = nullptr;
    size_t mapped_ = 0, bytes_ = 0;
};
