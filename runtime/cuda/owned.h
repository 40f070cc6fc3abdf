// Device resources that free themselves.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "runtime/cuda/device.h"

namespace shardc::cuda {

// Memory on the device, or on the host within reach of its copies.
class Memory {
 public:
  Memory() = default;
  Memory(Device& device, int64_t bytes, const std::string& what, bool on_host = false)
      : bytes_(bytes) {
    if (bytes == 0) return;
    data_ = on_host ? device.AllocateHost(bytes, what) : device.Allocate(bytes, what);
    free_ = [d = &device, on_host](std::byte* p) { on_host ? d->FreeHost(p) : d->Free(p); };
  }
  // Takes over what `free` frees.
  Memory(std::byte* data, int64_t bytes, std::function<void(std::byte*)> free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Memory(Memory&& o) noexcept { *this = std::move(o); }
  Memory& operator=(Memory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(free_, o.free_);
    return *this;
  }
  ~Memory() {
    if (data_) free_(data_);
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::function<void(std::byte*)> free_;
};

class OwnedStream {
 public:
  OwnedStream(Device& device, bool urgent) : device_(&device), s_(device.MakeStream(urgent)) {}
  OwnedStream(OwnedStream&& o) noexcept : device_(o.device_), s_(std::exchange(o.s_, nullptr)) {}
  ~OwnedStream() {
    if (s_) device_->DestroyStream(s_);
  }
  Stream get() const { return s_; }

 private:
  Device* device_;
  Stream s_;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(Device& device) : device_(&device), e_(device.MakeEvent()) {}
  OwnedEvent(OwnedEvent&& o) noexcept : device_(o.device_), e_(std::exchange(o.e_, nullptr)) {}
  ~OwnedEvent() {
    if (e_) device_->DestroyEvent(e_);
  }
  Event get() const { return e_; }

 private:
  Device* device_;
  Event e_;
};

}  // namespace shardc::cuda
