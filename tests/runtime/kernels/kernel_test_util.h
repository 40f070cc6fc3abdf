// Data and comparisons for the kernel tests, which hold every instruction set against naive f64
// loops.
#ifndef TESTS_RUNTIME_KERNELS_KERNEL_TEST_UTIL_H_
#define TESTS_RUNTIME_KERNELS_KERNEL_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {

// Reproducible numbers in (-scale, scale).
inline std::vector<float> RandomVector(int64_t n, uint64_t seed, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (float& x : v) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    x = (static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1) * scale;
  }
  return v;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size() || a.empty()) return a.size() == b.size();
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Every |got - want| <= atol + rtol * |want|; infinities must match.
inline void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double rtol,
                       double atol, const char* what = "") {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;
    ASSERT_LE(std::abs(got[i] - want[i]), atol + rtol * std::abs(want[i]))
        << what << " at " << i << ": got " << got[i] << ", want " << want[i];
  }
}

// Matrices one behind the other, each perhaps as the transposed one lies.
struct Matrices {
  const std::vector<float>& data;
  bool transposed;
  int64_t between_rows, between_matrices;
  double At(int64_t z, int64_t row, int64_t col) const {
    if (transposed) std::swap(row, col);
    return data[static_cast<size_t>(z * between_matrices + row * between_rows + col)];
  }
};

// Calls fn(z, i, j, element) for all elements of each a * b.
template <typename Fn>
void ForEachProduct(const Matrices& a, const Matrices& b, int64_t batch, int64_t m, int64_t n,
                    int64_t k, const Fn& fn) {
  for (int64_t z = 0; z < batch; ++z) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += a.At(z, i, p) * b.At(z, p, j);
        fn(z, i, j, sum);
      }
    }
  }
}

// Runs fn(table, threads) for several team sizes.
template <typename Fn>
void ForTeams(const char* name, const KernelTable& table, const Fn& fn) {
  for (int threads : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << name << " threads " << threads);
    fn(table, threads);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// For every instruction set of this machine.
template <typename Fn>
void ForEveryKernelSet(const Fn& fn) {
  for (Isa isa : SupportedIsas()) {
    ForTeams(IsaName(isa), KernelsFor(isa), fn);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace shardc::cpu

#endif  // TESTS_RUNTIME_KERNELS_KERNEL_TEST_UTIL_H_
