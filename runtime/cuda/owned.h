// Device resources that free themselves.
#pragma once

#include <string>
#include <utility>

#include "runtime/cuda/device.h"

namespace shardc::cuda {

// Memory on the device, or on the host within reach of its copies.
class Memory {
 public:
  Memory() = default;
  Memory(Device& device, int64_t bytes, const std::string& what, bool on_host = false)
      : device_(&device), bytes_(bytes), on_host_(on_host) {
    if (bytes == 0) return;
    data_ = on_host ? device.AllocateHost(bytes, what) : device.Allocate(bytes, what);
  }
  Memory(Memory&& o) noexcept { *this = std::move(o); }
  Memory& operator=(Memory&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(on_host_, o.on_host_);
    return *this;
  }
  ~Memory() {
    if (!data_) return;
    if (on_host_) {
      device_->FreeHost(data_);
    } else {
      device_->Free(data_);
    }
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool on_host_ = false;
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
