// Runs the CUDA sources of this folder on the CPU, for tests on machines without a GPU: a fiber per
// thread of a block, one block after the other. Included instead of the CUDA headers where the
// compiler is not nvcc.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "ir/diagnostic.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after the other, so what a block shares may live in a static.
#define __shared__ static

namespace shardc::cuda::emulation {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A barrier of some fibers of a block.
struct Barrier {
  int expected = 0, arrived = 0;
  int64_t generation = 0;
};

struct Fiber {
  ucontext_t context;  // where it starts; from then on it is resumed by `resume`: swapcontext is a
                       // system call
  jmp_buf resume;
  bool started = false;
  std::unique_ptr<char[]> stack;
  bool done = true;
};

// The one block that runs. `reversed` runs the threads from the last to the first: a kernel that
// lacks a barrier gives other results then.
struct Machine {
  Dim3 grid, block, block_index, thread_index;
  std::vector<Fiber> fibers;
  std::vector<Barrier> warps;
  Barrier all;
  std::vector<std::byte> shared;
  std::vector<std::byte> exchange;  // 64 bytes a thread, for shuffles
  jmp_buf scheduler;
  std::function<void()> body;
  int current = 0;
  bool reversed = false, progress = false;

  static Machine& Get() {
    static Machine machine;
    return machine;
  }

  void Yield() {
    if (_setjmp(fibers[static_cast<size_t>(current)].resume) == 0) _longjmp(scheduler, 1);
  }

  // Runs a fiber until it waits or ends.
  __attribute__((noinline)) void Resume(size_t i) {
    current = static_cast<int>(i);
    thread_index = {static_cast<unsigned>(i), 0, 0};
    if (_setjmp(scheduler) != 0) return;
    if (fibers[i].started) _longjmp(fibers[i].resume, 1);
    fibers[i].started = true;
    setcontext(&fibers[i].context);
  }

  void Wait(Barrier& barrier) {
    int64_t generation = barrier.generation;
    progress = true;
    if (++barrier.arrived == barrier.expected) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) Yield();
  }

  static void Start() {
    Machine& m = Get();
    int me = m.current;
    m.body();
    m.fibers[static_cast<size_t>(me)].done = true;
    m.progress = true;
    _longjmp(m.scheduler, 1);
  }

  void RunBlock() {
    constexpr size_t kStack = 256 << 10;
    size_t n = block.x;
    if (fibers.size() < n) fibers.resize(n);
    exchange.resize(n * 64);
    all = {static_cast<int>(n), 0, 0};
    warps.assign((n + 31) / 32, Barrier());
    for (size_t i = 0; i < n; ++i) {
      ++warps[i / 32].expected;
      Fiber& f = fibers[i];
      if (!f.stack) f.stack = std::make_unique<char[]>(kStack);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = kStack;
      f.context.uc_link = nullptr;
      f.done = f.started = false;
      makecontext(&f.context, &Machine::Start, 0);
    }
    for (size_t left = n; left > 0;) {
      progress = false;
      for (size_t j = 0; j < n; ++j) {
        size_t i = reversed ? n - 1 - j : j;
        if (fibers[i].done) continue;
        Resume(i);
        if (fibers[i].done) --left;
      }
      SHARDC_CHECK(progress, "threads of a block wait at different barriers");
    }
  }

  void RunGrid(int64_t blocks, int threads, size_t shared_bytes, std::function<void()> kernel) {
    // Neither memory of the last block, nor zero.
    shared.assign(shared_bytes + 128, std::byte{0xee});
    grid = {static_cast<unsigned>(blocks), 1, 1};
    block = {static_cast<unsigned>(threads), 1, 1};
    body = std::move(kernel);
    for (unsigned b = 0; b < grid.x; ++b) {
      block_index = {b, 0, 0};
      RunBlock();
    }
  }
};

inline std::byte* AlignedShared() {
  auto at = reinterpret_cast<uintptr_t>(Machine::Get().shared.data());
  return reinterpret_cast<std::byte*>((at + 127) / 128 * 128);
}

// Every lane gives a value and sees those of its warp.
template <typename T>
void Exchange(const T& mine, T (&all)[32]) {
  static_assert(sizeof(T) <= 64);
  Machine& m = Machine::Get();
  size_t me = static_cast<size_t>(m.current), warp = me / 32;
  std::memcpy(&m.exchange[me * 64], &mine, sizeof(T));
  m.Wait(m.warps[warp]);
  for (size_t lane = 0; lane < static_cast<size_t>(m.warps[warp].expected); ++lane) {
    std::memcpy(&all[lane], &m.exchange[(warp * 32 + lane) * 64], sizeof(T));
  }
  m.Wait(m.warps[warp]);
}

template <typename T>
T ShuffleXor(T value, int mask) {
  T all[32] = {};
  size_t lane = static_cast<size_t>(Machine::Get().current % 32);
  Exchange(value, all);
  return all[lane ^ static_cast<size_t>(mask)];
}
template <typename T>
T Shuffle(T value, int from) {
  T all[32] = {};
  Exchange(value, all);
  return all[from];
}

}  // namespace shardc::cuda::emulation

#define threadIdx (::shardc::cuda::emulation::Machine::Get().thread_index)
#define blockIdx (::shardc::cuda::emulation::Machine::Get().block_index)
#define blockDim (::shardc::cuda::emulation::Machine::Get().block)
#define gridDim (::shardc::cuda::emulation::Machine::Get().grid)

inline void __syncthreads() {
  auto& m = ::shardc::cuda::emulation::Machine::Get();
  m.Wait(m.all);
}
inline void __syncwarp() {
  auto& m = ::shardc::cuda::emulation::Machine::Get();
  m.Wait(m.warps[static_cast<size_t>(m.current / 32)]);
}
