#include "runtime/cpu/kernels/team_memory.h"

#include <execinfo.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "runtime/cpu/kernels/matmul.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// Has so many threads at once; glibc keeps their stacks for the next ones.
void TryThreads(int count) {
  std::mutex mutex;
  std::condition_variable wake;
  bool all = false;
  std::vector<std::thread> threads;
  auto join = [&] {
    {
      std::lock_guard lock(mutex);
      all = true;
    }
    wake.notify_all();
    for (std::thread& t : threads) t.join();
  };
  try {
    threads.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return all; });
      });
    }
  } catch (...) {
    join();
    throw;
  }
  join();
}

// oneDNN takes and gives back aligned memory with each product. What alignment leaves over are
// small blocks, which glibc puts into the thread's cache, and there they keep their large
// neighbours from becoming one free block again: until the cache is full of them, product after
// product takes new memory. So it is filled first, on each thread of the team.
void FillSmallBlockCache() {
  constexpr size_t kSmallest = 24, kLargest = 184, kStep = 16, kOfEach = 7;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (size_t size = kSmallest; size <= kLargest; size += kStep) {
    for (size_t i = 0; i < kOfEach; ++i) blocks.emplace_back(new char[size]);
  }
}

}  // namespace

void ThrowNoMemory() { throw std::bad_alloc(); }

void CheckRoomForCode() {
  // Some kernels of 256 KiB each; and 64 MiB that glibc may take for the thread at any malloc.
  constexpr size_t kBytes = size_t{96} << 20;
  void* room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  munmap(room, kBytes);
}

void MakeTeam(int threads) {
  // One rank after the other: what was tried must still be there.
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  // glibc loads what it needs to end threads, and to throw through C, when that happens.
  void* unused = nullptr;
  backtrace(&unused, 1);
  // While the other ranks wait here, and take nothing.
  MakeSgemm();
  TryThreads(threads - 1);
  ParallelChunks(threads, threads, [](int64_t, int64_t) { FillSmallBlockCache(); });
}

}  // namespace shardc::cpu
