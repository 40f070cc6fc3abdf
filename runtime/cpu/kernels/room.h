// Work memory that the kernels of one thread use in turn.
#ifndef RUNTIME_CPU_KERNELS_ROOM_H_
#define RUNTIME_CPU_KERNELS_ROOM_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace shardc::cpu {

// To be a thread_local variable: as large as the largest kernel of the thread asked for when it was
// made. Contents are lost from one Run to the next, and the place may move until all are made.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(data_); }

  // Returns by how many bytes the room grew.
  int64_t Reserve(size_t bytes) {
    if (bytes <= bytes_) return 0;
    const auto grown = static_cast<int64_t>(bytes - bytes_);
    std::free(data_);
    bytes_ = 0;
    data_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
    return grown;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ROOM_H_
