#include "runtime/cpu/kernels/peaks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/cpu/kernels/matmul.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// The shortest run of `work` in seconds: one to warm up, then for as long as `budget` lasts.
template <typename Work>
double ShortestRun(double budget, const Work& work) {
  using Clock = std::chrono::steady_clock;
  auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  work();
  Clock::time_point begin = Clock::now(), now;
  double best = 1e9;
  do {
    Clock::time_point start = Clock::now();
    work();
    now = Clock::now();
    best = std::min(best, seconds(now - start));
  } while (seconds(now - begin) < budget);
  return std::max(best, 1e-9);
}

}  // namespace

double MeasureGemmFlops(int threads) {
  double best = 0;
  // The small one is short enough to run undisturbed on a busy machine, the large one feeds many
  // threads.
  for (int64_t size : {512, 1024}) {
    MatmulConfig config;
    config.m = config.n = config.k = size;
    config.threads = threads;
    MatmulF32 matmul = MatmulF32::Create(config);
    auto elements = static_cast<size_t>(size * size);
    // Ones: zeros may be cheaper than what models multiply.
    std::vector<float> a(elements, 1.0f), b(elements, 1.0f), c(elements);
    double seconds =
        ShortestRun(0.08, [&] { matmul.Execute(a.data(), b.data(), nullptr, c.data()); });
    best = std::max(best, 2.0 * static_cast<double>(elements * size) / seconds);
  }
  return best;
}

double MeasureCopyBytes(int threads, int64_t bytes) {
  std::vector<char> from(static_cast<size_t>(bytes), 1), to(static_cast<size_t>(bytes), 0);
  auto copy = [&](int64_t begin, int64_t end) {
    std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
  };
  double best = ShortestRun(0.1, [&] { ParallelFor(threads, bytes, 4096, copy, 64); });
  return 2.0 * static_cast<double>(bytes) / best;
}

}  // namespace shardc::cpu
