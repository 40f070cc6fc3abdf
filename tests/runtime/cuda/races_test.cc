// Races among the threads of a block: the kernels on the CPU, every thread of them a fiber of
// ThreadSanitizer.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/runtime/emulated_machine.h"

static int reports = 0;
extern "C" {
// Called by ThreadSanitizer, which is not to look at it in turn.
__attribute__((no_sanitize("thread"))) void __tsan_on_report(void*) { ++reports; }
const char* __tsan_default_options() { return "exitcode=0 suppress_equal_addresses=0"; }
}

namespace shardc::testing {
namespace {

using namespace cuda::emulated;  // NOLINT

// In one run of each: what a barrier lacks for is found in either order of the threads. That
// results are right is for CudaKernels to say.
void ExpectNone(const std::vector<KernelCase>& cases) {
  EmulatedMachine machine;
  EXPECT_FALSE(cases.empty());
  for (const KernelCase& c : cases) {
    reports = 0;
    EXPECT_FALSE(RunOn(machine, c).empty()) << c.name;
    EXPECT_EQ(reports, 0) << c.name;
  }
}

TEST(CudaRaces, Samples) { ExpectNone(SampleCases(DType::kF32)); }
TEST(CudaRaces, Sharded) {
  EmulatedMachine machine;
  for (const KernelCase& c : ShardedCases()) {
    reports = 0;
    EXPECT_EQ(RunCase(machine, c), "") << c.name;
    EXPECT_EQ(reports, 0) << c.name;
  }
}
TEST(CudaRaces, Large) {
  std::vector<KernelCase> cases;
  for (KernelCase& c : LargeCases(DType::kBF16)) {
    // Thousands of columns are hundreds of blocks: of these one that does all that the others do.
    const Shape& shape = c.operands[0].shape();
    const int64_t cols = shape.empty() ? 0 : shape.back();
    if (cols < 2100 || (cols < 9000 && c.op == "layer_norm_grad_add"))
      cases.push_back(std::move(c));
  }
  ExpectNone(cases);
}
TEST(CudaRaces, LargeAttentionWithoutTensorCores) {
  std::vector<KernelCase> cases;
  for (KernelCase& c : LargeCases(DType::kF32)) {
    if (c.op.find("attention") != std::string::npos) cases.push_back(std::move(c));
  }
  ExpectNone(cases);
}

template <typename F>
__global__ void Call(F f) {
  f();
}
// Each call has more memory before that of the last one: where ThreadSanitizer has found a race,
// that of gcc 14 finds no other.
constexpr size_t kBytes = 1024;
size_t calls = 0;
int* Ints() { return reinterpret_cast<int*>(SharedMemory()); }
// Of one block.
template <typename F>
int ReportsOf(int threads, F f) {
  reports = 0;
  LaunchKernel({}, Call<F>, 1, threads, ++calls * kBytes, f);
  return reports;
}
int Next() { return static_cast<int>((threadIdx.x + 1) % blockDim.x); }

TEST(CudaRaces, AreFoundWhereABarrierLacks) {
  EXPECT_GT(ReportsOf(64,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        Ints()[threadIdx.x + 64] = Ints()[Next()];
                      }),
            0);
  EXPECT_GT(ReportsOf(64,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        __syncthreads();
                        const int next = Ints()[Next()];
                        Ints()[threadIdx.x] = next;
                      }),
            0);
  EXPECT_EQ(ReportsOf(64,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        __syncthreads();
                        const int next = Ints()[Next()];
                        __syncthreads();
                        Ints()[threadIdx.x] = next;
                      }),
            0);
}

TEST(CudaRaces, AreFoundWhereOnlyAnExchangeStandsBetween) {
  EXPECT_GT(ReportsOf(32,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        ShuffleXor(1, 1);
                        Ints()[threadIdx.x + 32] = Ints()[Next()];
                      }),
            0);
  EXPECT_EQ(ReportsOf(32,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        __syncwarp();
                        Ints()[threadIdx.x + 32] = Ints()[Next()];
                      }),
            0);
  EXPECT_GT(ReportsOf(64,
                      [] {
                        Ints()[threadIdx.x] = 1;
                        __syncwarp();
                        Ints()[threadIdx.x + 64] = Ints()[Next()];
                      }),
            0);
}

TEST(CudaRaces, AtomicsAreNone) {
  int count = 0;
  EXPECT_EQ(ReportsOf(64, [p = &count] { AtomicAdd(p, 1); }), 0);
  EXPECT_EQ(count, 64);
  EXPECT_GT(ReportsOf(64, [p = &count] { ++*p; }), 0);
}

}  // namespace
}  // namespace shardc::testing
