// Runs the CUDA sources of this folder on the CPU, for tests on machines without a GPU: a fiber per
// thread of a block, one block after the other. Included instead of the CUDA headers where the
// compiler is not nvcc. It is stricter than a GPU: shared memory is full of NaNs when a block
// begins, and ends where an access faults; launches that a GPU refuses, and vectors that are not
// aligned, end the test; and see emulation_races.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernels/emulation_races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// Blocks run one after the other, so what a block shares may live in a static.
#define __shared__ static

// A function whose own accesses are not looked at.
#define SHARDC_UNSEEN __attribute__((no_sanitize("thread")))

namespace shardc::cuda::emulation {

// Of sm_80: what a block may have, and what it has unasked. Of the former, what is not counted
// here: static shared memory.
inline constexpr size_t kMostShared = 163 << 10, kSharedUnasked = 48 << 10, kStaticShared = 1 << 10;
inline constexpr int kMostThreads = 1024;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A barrier of the threads of warps [first_warp, end_warp).
struct Barrier {
  int expected = 0, arrived = 0, first_warp = 0, end_warp = 0;
  int64_t generation = 0;
  uint32_t waiting[kMostThreads / 32] = {};  // a bit a lane, by warp
  char order[2] = {};                        // what is seen by whom, of even and odd generations
};

struct Warp {
  uint32_t ready = 0;  // lanes that neither wait nor are done; who runs is one of them
  Barrier barrier;
};

// What a thread gives the others of its warp, in even and odd generations of the warp's barrier.
struct Exchanged {
  alignas(16) char bytes[2][64];
};

struct Fiber {
  std::unique_ptr<char[]> stack;
  void* at = nullptr;  // on its stack, where it was left
  bool done = true;
  Runner runner = Runner::Thread();
  ~Fiber() { runner.End(); }
};

// Memory that ends, but for what alignment takes, where the next byte faults.
class Guarded {
 public:
  Guarded() = default;
  ~Guarded() { Release(); }
  Guarded(const Guarded&) = delete;

  void Resize(size_t bytes);
  std::byte* data() const { return end_ - bytes_; }
  void Fill() const { std::memset(data(), 0xff, bytes_); }
  // Whether nothing was written between what was asked for and the end.
  bool Whole() const {
    return std::all_of(data() + used_, end_, [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  void Release();
  std::byte *map_ = nullptr, *end_ = nullptr;
  size_t mapped_ = 0, bytes_ = 0, used_ = 0;
};

// The one block that runs: a thread until it waits, then another one of its warp, and a warp until
// all of it waits. `reversed` runs blocks, warps and threads from the last to the first: a kernel
// that lacks a barrier, or whose blocks are not independent, gives other results then.
struct Machine {
  Dim3 grid, block, block_index, thread_index;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::unique_ptr<Warp[]> warps;
  Barrier all;
  Guarded shared;
  size_t largest_shared = 0;  // that a launch asked for
  size_t most_shared = kMostShared;
  // Of a launch, for kernels whose blocks stride over what is left: as on a GPU where there is
  // more.
  int64_t most_blocks = INT32_MAX;
  Fiber* running = nullptr;
  int undone = 0;                          // threads
  std::unique_ptr<Exchanged[]> exchanged;  // one a thread
  void* scheduler = nullptr;               // where the stack of the caller was left
  Runner caller = Runner::Caller();
  char begin = 0, end = 0;  // of a block: see Before
  std::function<void()> body;
  std::exception_ptr failure;
  bool reversed = false;
  std::map<const void*, size_t> allowed;  // shared memory that was asked for, by kernel

  static Machine& Get();

  SHARDC_UNSEEN void Wait(Barrier& barrier, bool orders);
  void RunGrid(const void* kernel, int64_t blocks, int threads, size_t shared_bytes,
               std::function<void()> run);
  void AllowShared(const void* kernel, size_t bytes);

 private:
  void GoOn();
  static void Start();
  void RunBody();
  void RunBlock();
};

inline Machine& kMachine = Machine::Get();

inline std::byte* AlignedShared() {
  Unseen unseen;
  return kMachine.shared.data();
}

// Vectors are read and written only where they are aligned. Ends the process: where it could throw,
// gcc 12 fails on a kernel for ThreadSanitizer.
inline void CheckAligned(const void* p, size_t bytes) noexcept {
  SHARDC_CHECK(reinterpret_cast<uintptr_t>(p) % bytes == 0, "a vector that is not aligned");
}

// What the lanes of a warp gave, until they give something else; zeros of lanes that are not there.
template <typename T>
class Given {
 public:
  Given(const Exchanged* warp, int64_t generation) : warp_(warp), generation_(generation) {}
  SHARDC_UNSEEN T operator[](size_t lane) const {
    T value;
    __builtin_memcpy(&value, warp_[lane].bytes[generation_], sizeof(T));
    return value;
  }

 private:
  const Exchanged* warp_;
  int64_t generation_;
};

// Every lane gives a value and sees those of its warp. No memory is ordered by it.
template <typename T>
SHARDC_UNSEEN Given<T> Exchange(const T& mine) {
  static_assert(sizeof(T) <= 64);
  Machine& m = kMachine;
  const unsigned me = m.thread_index.x;
  Barrier& barrier = m.warps.get()[me / 32].barrier;
  Exchanged* const warp = m.exchanged.get() + me / 32 * 32;
  const int64_t generation = barrier.generation % 2;
  __builtin_memcpy(warp[me % 32].bytes[generation], &mine, sizeof(T));
  m.Wait(barrier, false);
  return {warp, generation};
}

template <typename T>
T ShuffleXor(T value, int mask) {
  const size_t lane = kMachine.thread_index.x % 32;
  return Exchange(value)[lane ^ static_cast<size_t>(mask)];
}
template <typename T>
T Shuffle(T value, int from) {
  return Exchange(value)[static_cast<size_t>(from)];
}

}  // namespace shardc::cuda::emulation

#define threadIdx (::shardc::cuda::emulation::kMachine.thread_index)
#define blockIdx (::shardc::cuda::emulation::kMachine.block_index)
#define blockDim (::shardc::cuda::emulation::kMachine.block)
#define gridDim (::shardc::cuda::emulation::kMachine.grid)

inline void __syncthreads() {
  auto& m = ::shardc::cuda::emulation::kMachine;
  m.Wait(m.all, true);
}
inline void __syncwarp() {
  auto& m = ::shardc::cuda::emulation::kMachine;
  m.Wait(m.warps.get()[m.thread_index.x / 32].barrier, true);
}
