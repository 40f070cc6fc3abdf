// The CUDA kernels on the CPU, by emulation.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/cuda/kernels/bind.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {

class EmulatedMachine : public KernelMachine {
 public:
  std::unique_ptr<cuda::CudaKernel> Make(const KernelRequest& request) override {
    return cuda::emulated::MakeKernelFor(request);
  }
  std::byte* Allocate(int64_t bytes) override {
    constexpr int64_t kFilled = 1 << 20;  // a library's workspace is large
    auto* p = static_cast<std::byte*>(
        std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)));
    std::memset(p, 0xff, static_cast<size_t>(std::min(bytes, kFilled)));  // NaNs
    return p;
  }
  void Free(std::byte* p) override { std::free(p); }
  void Upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    Copy(to, from, bytes);
  }
  void Download(std::byte* to, const std::byte* from, int64_t bytes) override {
    Copy(to, from, bytes);
  }
  cuda::Launch NewLaunch() override {
    // Every second run takes the threads in the other order, so that a missing barrier shows as a
    // difference.
    auto& machine = cuda::emulation::Machine::Get();
    machine.reversed = !machine.reversed;
    return {};
  }
  void Wait() override {}

 private:
  static void Copy(std::byte* to, const std::byte* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

}  // namespace shardc::testing
