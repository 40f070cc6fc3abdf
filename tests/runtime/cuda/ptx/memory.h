// What was allocated on the device, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>

namespace shardc::ptx {

class DeviceMemory {
 public:
  ~DeviceMemory() {
    for (auto [p, bytes] : owned_) std::free(p);
  }
  std::byte* Allocate(int64_t bytes) {
    const int64_t rounded = (bytes + 255) / 256 * 256;
    auto* p = static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(rounded)));
    owned_[p] = bytes;
    Add(p, bytes);
    return p;
  }
  void Free(void* p) {
    auto* begin = static_cast<std::byte*>(p);
    if (owned_.erase(begin) == 0) return;
    held_.erase(begin);
    last_ = last_end_ = nullptr;
    std::free(p);
  }
  // Memory of somebody else's.
  void Add(const std::byte* p, int64_t bytes) { held_[p] = p + bytes; }
  void Remove(const std::byte* p) {
    held_.erase(p);
    last_ = last_end_ = nullptr;
  }
  bool Holds(const std::byte* p, int64_t bytes) const {
    if (p >= last_ && p + bytes <= last_end_) return true;
    auto it = held_.upper_bound(p);
    if (it == held_.begin()) return false;
    --it;
    if (p + bytes > it->second) return false;
    last_ = it->first;
    last_end_ = it->second;
    return true;
  }

 private:
  std::map<std::byte*, int64_t> owned_;
  std::map<const std::byte*, const std::byte*> held_;
  mutable const std::byte *last_ = nullptr, *last_end_ = nullptr;
};

}  // namespace shardc::ptx
