// FakeDevices as the GPUs of the fake libnccl.so.2.
#pragma once

#include <utility>

#include "tests/runtime/cuda/fake_nccl.h"
#include "tests/runtime/fake_device.h"

namespace shardc::testing {

inline const FakeGpus& FakeDevicesForNccl() {
  static const FakeGpus gpus = {
      [] { return static_cast<void*>(FakeDevice::Current()); },
      [](void* gpu, CUstream_st* s) { return static_cast<FakeDevice*>(gpu)->Captures(s); },
      [](void* gpu, CUstream_st* s, std::function<void()> work) {
        auto* device = static_cast<FakeDevice*>(gpu);
        device->Activate();
        device->Enqueue("nccl", s, {}, std::move(work));
      }};
  return gpus;
}

}  // namespace shardc::testing
