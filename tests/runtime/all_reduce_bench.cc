// all_reduce of the in-process communicator beside the memcpy of the bytes that it must move at
// least: each of n ranks reads n - 1 others' share and writes its sum to all, 2 (n - 1) / n of the
// buffer.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/in_process/in_process.h"

namespace shardc {
namespace {

constexpr int64_t kElements = 3 << 18;  // 3 MiB of f32

// Runs fn(rank) on n threads at once, `times` times each; seconds of the slowest.
template <typename Fn>
double Together(int n, int64_t times, Fn fn) {
  std::vector<std::thread> threads;
  std::vector<double> seconds(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] { seconds[r] = fn(r, times); });
  }
  for (std::thread& t : threads) t.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

template <typename Fn>
double Seconds(Fn fn) {
  auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void AllReduce(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  std::vector<std::vector<float>> data(static_cast<size_t>(n), std::vector<float>(kElements, 1.0F));
  for (auto _ : state) {
    auto world = MakeInProcessWorld(n);
    constexpr int64_t kTimes = 20;
    double slowest = Together(n, kTimes, [&](int r, int64_t times) {
      float* mine = data[r].data();
      const Buffers buffers{mine, mine, kElements, DType::kF32};
      auto once = [&] { world[r]->AllReduce({&buffers, 1}, ReduceOp::kMax); };
      once();
      return Seconds([&] {
        for (int64_t i = 0; i < times; ++i) once();
      });
    });
    state.SetIterationTime(slowest / kTimes);
  }
}
BENCHMARK(AllReduce)->Arg(2)->UseManualTime();

void Memcpy(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const size_t bytes = kElements * 4 * 2 * static_cast<size_t>(n - 1) / static_cast<size_t>(n);
  std::vector<std::vector<char>> from(static_cast<size_t>(n), std::vector<char>(bytes)), to = from;
  for (auto _ : state) {
    constexpr int64_t kTimes = 20;
    double slowest = Together(n, kTimes, [&](int r, int64_t times) {
      char *out = to[r].data(), *in = from[r].data();
      std::memcpy(out, in, bytes);
      return Seconds([&] {
        for (int64_t i = 0; i < times; ++i) {
          std::memcpy(out, in, bytes);
          benchmark::ClobberMemory();
        }
      });
    });
    state.SetIterationTime(slowest / kTimes);
  }
}
BENCHMARK(Memcpy)->Arg(2)->UseManualTime();

}  // namespace
}  // namespace shardc
