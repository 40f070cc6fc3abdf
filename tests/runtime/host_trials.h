// Trials of kernels that run on the CPU.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/cuda/kernels/trial.h"

namespace shardc::testing {

// Memory is the host's. How long something takes is a test's to say.
class HostTrials : public cuda::TrialGpu {
 public:
  // Before memory is touched: waits for what the stream was given.
  std::function<void(Stream)> synchronize = [](Stream) {};
  int64_t most_bytes = int64_t{1} << 40;  // that it has, at once
  int64_t taken = 0, largest = 0;         // of it; ever at once

  std::string Name() override { return "CPU"; }
  std::byte* Allocate(int64_t bytes) override {
    if (bytes > most_bytes) return nullptr;
    taken += bytes;
    largest = std::max(largest, bytes);
    return static_cast<std::byte*>(
        std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256)));
  }
  void Free(std::byte* p) noexcept override { std::free(p); }
  void Fill(std::byte* to, int byte, int64_t bytes, Stream s) override {
    synchronize(s);
    if (bytes > 0) std::memset(to, byte, static_cast<size_t>(bytes));
  }
  void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override {
    synchronize(s);
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void Draw(const cuda::Noise& noise, Stream s) override {
    synchronize(s);
    cuda::emulated::LaunchNoise({}, noise);
  }
  cuda::Deviation Compare(const cuda::Comparison& c, Stream s) override {
    synchronize(s);
    std::vector<cuda::Deviation> parts(static_cast<size_t>(cuda::SumBlocks(c.count)));
    cuda::emulated::LaunchComparison({}, c, parts.data());
    return cuda::Joined(parts);
  }
};

}  // namespace shardc::testing
