// That the emulation of a GPU finds what a GPU would not forgive.
#include <gmock/gmock.h>

#include "runtime/cuda/kernels/vector.h"

namespace shardc::testing {
namespace {

using namespace cuda::emulated;  // NOLINT
using ::testing::HasSubstr;

template <typename F>
__global__ void Call(F f) {
  f();
}
template <typename F>
std::string FailureOf(int64_t blocks, int threads, size_t shared, F f) {
  try {
    LaunchKernel({}, Call<F>, blocks, threads, shared, f);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
float* Floats() { return reinterpret_cast<float*>(SharedMemory()); }

TEST(CudaEmulation, LaunchesThatAGpuRefuses) {
  auto nothing = [] {};
  EXPECT_EQ(FailureOf(1, 1024, 48 << 10, nothing), "");
  EXPECT_THAT(FailureOf(1, 1056, 0, nothing), HasSubstr("a launch's size"));
  EXPECT_THAT(FailureOf(int64_t{1} << 31, 32, 0, nothing), HasSubstr("a launch's size"));
  EXPECT_THAT(FailureOf(1, 32, 49 << 10, nothing), HasSubstr("shared memory unasked"));
  AllowShared(Call<decltype(nothing)>, 100 << 10);
  EXPECT_EQ(FailureOf(1, 32, 49 << 10, nothing), "");
  EXPECT_THROW(AllowShared(Call<decltype(nothing)>, 164 << 10), std::exception);
}

TEST(CudaEmulation, SharedMemoryIsOfItsSizeAndHoldsNothing) {
  bool empty = true;
  auto whether_empty = [&empty] {
    for (int i = 0; i < 24; ++i) empty = empty && Floats()[i] != Floats()[i];
    Floats()[threadIdx.x] = 1;
  };
  EXPECT_EQ(FailureOf(3, 1, 96, whether_empty), "");
  EXPECT_TRUE(empty);
  EXPECT_THAT(FailureOf(1, 1, 96, [] { Floats()[24] = 1; }), HasSubstr("behind its shared memory"));
  EXPECT_DEATH(FailureOf(1, 1, 96, [] { Floats()[32] = 1; }), "");
  EXPECT_DEATH(FailureOf(1, 1, 0, [] { Floats()[1] = Floats()[0]; }), "");
}

TEST(CudaEmulation, VectorsAreAligned) {
  alignas(16) float x[8] = {};
  for (int at : {0, 4}) {
    EXPECT_EQ(FailureOf(1, 1, 0, [p = x + at] { StorePack(p, LoadPack<float, 4>(p)); }), "");
  }
  for (int at : {1, 2}) {
    EXPECT_DEATH(FailureOf(1, 1, 0, [p = x + at] { LoadPack<float, 4>(p); }), "not aligned");
    EXPECT_DEATH(FailureOf(1, 1, 0, [p = x + at] { StorePack(p, Pack<float, 4>{}); }),
                 "not aligned");
  }
}

TEST(CudaEmulation, BarriersThatSomeThreadsMiss) {
  EXPECT_THAT(FailureOf(2, 64, 0,
                        [] {
                          if (threadIdx.x < 60) __syncthreads();
                        }),
              HasSubstr("different barriers"));
  EXPECT_EQ(FailureOf(2, 64, 0, [] { __syncthreads(); }), "");
}

TEST(CudaEmulation, EitherOrderOfBlocksAndThreads) {
  auto& machine = cuda::emulation::Machine::Get();
  for (bool reversed : {false, true}) {
    machine.reversed = reversed;
    std::vector<unsigned> order;
    EXPECT_EQ(
        FailureOf(2, 2, 0, [&order] { order.push_back(blockIdx.x * blockDim.x + threadIdx.x); }),
        "");
    EXPECT_EQ(order,
              reversed ? (std::vector<unsigned>{3, 2, 1, 0}) : (std::vector<unsigned>{0, 1, 2, 3}));
  }
}

// What only threads of a warp wait for orders nothing among warps.
TEST(CudaEmulation, AWarpRunsUntilAllOfItWaits) {
  auto& machine = cuda::emulation::Machine::Get();
  for (bool reversed : {false, true}) {
    machine.reversed = reversed;
    std::vector<unsigned> warps;
    auto twice = [&warps] {
      warps.push_back(threadIdx.x / 32);
      __syncwarp();
      warps.push_back(threadIdx.x / 32);
    };
    EXPECT_EQ(FailureOf(1, 48, 0, twice), "");  // the second warp is half a one
    const unsigned last = reversed ? 0 : 1;
    const size_t sizes[] = {32, 16};
    std::vector<unsigned> expected(2 * sizes[1 - last], 1 - last);
    expected.resize(96, last);
    EXPECT_EQ(warps, expected);
  }
  machine.reversed = false;
}

}  // namespace
}  // namespace shardc::testing
