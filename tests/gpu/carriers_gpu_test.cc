// The carriers on GPUs: all that the suite asks of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "runtime/cuda/owned.h"
#include "runtime/groups.h"
#include "runtime/in_process/in_process.h"
#include "tests/gpu/gpu.h"
#include "tests/runtime/carrier_suite.h"
#include "tests/runtime/rank_threads.h"

namespace shardc::testing {
namespace {

std::unique_ptr<cuda::Device> Open(int gpu) {
  static auto* open = FromPlugin<CudaPluginOpenGpu>("shardc_cuda_open_gpu");
  return std::unique_ptr<cuda::Device>(open(gpu));
}

TEST(GpuCarriers, SharedDevice) {
  SHARDC_NEEDS_GPU();
  auto device = Open(0);
  for (int ranks : {1, 2, 5}) CheckSharedDevice(*device, ranks, 100003);
}

// The cases on one rank's own GPU.
void CheckNcclRank(cuda::Device& device, cuda::Carrier& carrier, int rank, int ranks) {
  cuda::OwnedStream stream(device, false);
  const std::vector<DType> dtypes(kAllDTypes.begin(), kAllDTypes.end());
  ForEachCarrierCase(ranks, dtypes, 100003, [&](const CarrierCase& c) {
    if (!c.HasPart(rank)) return;
    cuda::Member me{rank, stream.get(), {}};
    std::vector<cuda::Memory> memory;
    std::array<Bytes, 2> got;
    std::array<std::byte*, 2> result = {};
    for (size_t b = 0; b < 2; ++b) {
      const Bytes& send = c.send[rank][b];
      got[b].resize(c.want[rank][b].size());
      memory.emplace_back(device, static_cast<int64_t>(send.size()) + 1, "a test");
      std::byte *from = memory.back().data(), *to = from;
      if (!c.in_place) {
        memory.emplace_back(device, static_cast<int64_t>(got[b].size()) + 1, "a test");
        to = memory.back().data();
      }
      const auto bytes = static_cast<int64_t>(send.size());
      if (bytes > 0) device.CopyIn(from, send.data(), bytes, stream.get());
      me.buffers.push_back(c.BuffersOf(rank, from, to));
      result[b] = to;
    }
    carrier.Enqueue(c.collective, {&me, 1});
    for (size_t b = 0; b < 2; ++b) {
      const auto bytes = static_cast<int64_t>(got[b].size());
      if (bytes > 0) device.CopyOut(got[b].data(), result[b], bytes, stream.get());
    }
    device.Synchronize(stream.get());
    carrier.Check();
    const double rounding = c.dtype == DType::kF64    ? 0x1p-51
                            : c.dtype == DType::kF32  ? 0x1p-22
                            : c.dtype == DType::kBF16 ? 0x1p-6
                                                      : 0x1p-9;
    for (size_t b = 0; b < 2; ++b) EXPECT_EQ(Wrong(c, rank, b, got[b], rounding), "");
  });
}

// One GPU is a group of one rank, which takes the same way.
TEST(GpuCarriers, Nccl) {
  SHARDC_NEEDS_GPU();
  static auto* connect = FromPlugin<CudaPluginConnect>("shardc_cuda_connect");
  const int ranks = std::min(CountCudaGpus(), 4);
  std::vector<Program> programs(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    programs[r].mesh = Mesh::Parse(StrCat("tp=", ranks));
    programs[r].rank = r;
    programs[r].collectives.resize(1);
    programs[r].collectives[0].axes = {0};
  }
  const auto groups = GroupAxes(programs);
  Watchdog watchdog(120);
  World ends = MakeInProcessWorld(ranks);
  std::vector<std::string> errors(programs.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        auto device = Open(r);
        device->Activate();
        std::unique_ptr<cuda::Carrier> carrier(
            connect(device.get(), &programs[r], &groups, &ends[r]));
        CheckNcclRank(*device, *carrier, r, ranks);
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

}  // namespace
}  // namespace shardc::testing
