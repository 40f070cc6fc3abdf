// Runs the CUDA sources of this folder on the CPU, for tests on machines without a GPU: a fiber per
// thread of a block, one block after the other. Included instead of the CUDA headers where the
// compiler is not nvcc. It is stricter than a GPU: shared memory is full of NaNs when a block
// begins, and ends where an access faults; launches that a GPU refuses, and vectors that are not
// aligned, end the test; and see emulation_races.h.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

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

// A barrier of some fibers of a block.
struct Barrier {
  int expected = 0, arrived = 0;
  int64_t generation = 0;
  char order[2] = {};  // what is seen by whom, of even and odd generations
};

// What a thread gives the others of its warp, in even and odd generations of the warp's barrier.
struct Exchanged {
  alignas(16) char bytes[2][64];
};

struct Fiber {
  ucontext_t context;
  jmp_buf resume;  // swapcontext is a system call; where no races are looked for this is resumed
  bool started = false;
  std::unique_ptr<char[]> stack;
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

  void Resize(size_t bytes) {
    constexpr size_t kAlignment = 128;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const size_t pages = (bytes_ + page - 1) / page * page;
    if (pages + page > mapped_) {
      Release();
      mapped_ = pages + page;
      void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      SHARDC_CHECK(p != MAP_FAILED, "memory for a block");
      map_ = static_cast<std::byte*>(p);
      SHARDC_CHECK(mprotect(map_ + mapped_ - page, page, PROT_NONE) == 0, "memory for a block");
    }
    end_ = map_ + mapped_ - page;
    used_ = bytes;
  }
  std::byte* data() const { return end_ - bytes_; }
  void Fill() const { std::memset(data(), 0xff, bytes_); }
  // Whether nothing was written between what was asked for and the end.
  bool Whole() const {
    return std::all_of(data() + used_, end_, [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  void Release() {
    if (map_) munmap(map_, mapped_);
    map_ = nullptr;
  }
  std::byte *map_ = nullptr, *end_ = nullptr;
  size_t mapped_ = 0, bytes_ = 0, used_ = 0;
};

// The one block that runs. `reversed` runs blocks and threads from the last to the first: a kernel
// that lacks a barrier, or whose blocks are not independent, gives other results then.
struct Machine {
  Dim3 grid, block, block_index, thread_index;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::unique_ptr<Barrier[]> warps;
  Barrier all;
  Guarded shared;
  size_t largest_shared = 0;  // that a launch asked for
  // Of a launch, for kernels whose blocks stride over what is left: as on a GPU where there is
  // more.
  int64_t most_blocks = INT32_MAX;
  Fiber* running = nullptr;
  std::unique_ptr<Exchanged[]> exchanged;  // one a thread
  jmp_buf scheduler;
  ucontext_t scheduler_context;
  Runner caller = Runner::Caller();
  char begin = 0, end = 0;  // of a block: see Before
  std::function<void()> body;
  std::exception_ptr failure;
  bool reversed = false, progress = false;
  std::map<const void*, size_t> allowed;  // shared memory that was asked for, by kernel

  static Machine& Get() {
    static Machine machine;
    return machine;
  }

  SHARDC_UNSEEN void Yield() {
    Fiber& me = *running;
    if constexpr (kFindsRaces) {
      caller.Switch();
      swapcontext(&me.context, &scheduler_context);
    } else {
      if (_setjmp(me.resume) == 0) _longjmp(scheduler, 1);
    }
  }

  // Runs a fiber until it waits or ends.
  __attribute__((noinline)) void Resume(size_t i) {
    running = fibers[i].get();
    thread_index = {static_cast<unsigned>(i), 0, 0};
    if constexpr (kFindsRaces) {
      running->runner.Switch();
      swapcontext(&scheduler_context, &running->context);
    } else {
      if (_setjmp(scheduler) != 0) return;
      if (running->started) _longjmp(running->resume, 1);
      running->started = true;
      setcontext(&running->context);
    }
  }

  // `orders`: what was done before is seen after.
  SHARDC_UNSEEN void Wait(Barrier& barrier, bool orders) {
    const int64_t generation = barrier.generation;
    char* order = &barrier.order[generation % 2];
    progress = true;
    if (orders) Before(order);
    if (++barrier.arrived == barrier.expected) {
      barrier.arrived = 0;
      ++barrier.generation;
    } else {
      while (barrier.generation == generation) Yield();
    }
    if (orders) After(order);
  }

  // Not instrumented: it is never left. A fiber does the same thread of one block after another.
  SHARDC_UNSEEN static void Start() {
    Machine& m = Get();
    for (;;) {
      m.RunBody();
      m.running->done = m.progress = true;
      m.Yield();
    }
  }
  void RunBody() {
    After(&begin);
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
    Before(&end);
  }
  void RunBlock() {
    constexpr size_t kStack = 256 << 10;
    size_t n = block.x;
    while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
    all = {static_cast<int>(n)};
    warps = std::make_unique<Barrier[]>((n + 31) / 32);
    for (size_t i = 0; i < n; ++i) {
      ++warps[i / 32].expected;
      Fiber& f = *fibers[i];
      // A block that failed leaves threads that are not done.
      if (!f.stack || !f.done) {
        if (!f.stack) f.stack = std::make_unique<char[]>(kStack);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = kStack;
        f.context.uc_link = nullptr;
        f.started = false;
        makecontext(&f.context, &Machine::Start, 0);
      }
      f.done = false;
    }
    Before(&begin);
    for (size_t left = n; left > 0;) {
      progress = false;
      for (size_t j = 0; j < n; ++j) {
        size_t i = reversed ? n - 1 - j : j;
        if (fibers[i]->done) continue;
        Resume(i);
        if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
        if (fibers[i]->done) --left;
      }
      SHARDC_CHECK(progress, "threads of a block wait at different barriers");
    }
    After(&end);
  }

  void RunGrid(const void* kernel, int64_t blocks, int threads, size_t shared_bytes,
               std::function<void()> run) {
    SHARDC_CHECK(blocks <= INT32_MAX && threads > 0 && threads <= kMostThreads, "a launch's size");
    SHARDC_CHECK(shared_bytes <= std::max(allowed[kernel], kSharedUnasked),
                 "shared memory unasked");
    Unseen unseen;
    shared.Resize(shared_bytes);
    largest_shared = std::max(largest_shared, shared_bytes);
    grid = {static_cast<unsigned>(std::min(blocks, most_blocks)), 1, 1};
    block = {static_cast<unsigned>(threads), 1, 1};
    body = std::move(run);
    caller = Runner::Caller();
    exchanged = std::make_unique<Exchanged[]>(block.x);
    for (unsigned b = 0; b < grid.x; ++b) {
      block_index = {reversed ? grid.x - 1 - b : b, 0, 0};
      shared.Fill();  // neither memory of another block, nor zero
      RunBlock();
      SHARDC_CHECK(shared.Whole(), "a kernel writes behind its shared memory");
    }
  }

  void AllowShared(const void* kernel, size_t bytes) {
    SHARDC_CHECK(bytes <= kMostShared, "shared memory that no GPU has");
    allowed[kernel] = std::max(allowed[kernel], bytes);
  }
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

// Every lane gives a value and sees those of its warp. No memory is ordered by it.
template <typename T>
SHARDC_UNSEEN void Exchange(const T& mine, T (&all)[32]) {
  static_assert(sizeof(T) <= 64);
  Machine& m = kMachine;
  const unsigned me = m.thread_index.x, first = me / 32 * 32;
  Barrier& warp = m.warps.get()[me / 32];
  const int64_t generation = warp.generation % 2;
  Exchanged* const exchanged = m.exchanged.get();
  __builtin_memcpy(exchanged[me].bytes[generation], &mine, sizeof(T));
  m.Wait(warp, false);
  for (int lane = 0; lane < warp.expected; ++lane) {
    __builtin_memcpy(&all[lane], exchanged[first + static_cast<unsigned>(lane)].bytes[generation],
                     sizeof(T));
  }
}

template <typename T>
T ShuffleXor(T value, int mask) {
  T all[32] = {};
  const size_t lane = kMachine.thread_index.x % 32;
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
  m.Wait(m.warps.get()[m.thread_index.x / 32], true);
}
