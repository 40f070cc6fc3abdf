// Products of very few rows, as when a model makes token after token: they take as long as reading
// B does, which is read once, where it lies and as it lies.
#ifndef RUNTIME_CPU_KERNELS_ROW_PRODUCT_H_
#define RUNTIME_CPU_KERNELS_ROW_PRODUCT_H_

#include <cstdint>

namespace shardc::cpu {

// C[m, n] = A[m, k] B + bias, or C += that, m <= kMaxRows. B is [k, n], or with m = 1 also [n, k]
// transposed. `ld`: elements from one stored row to the next.
struct RowProductArgs {
  static constexpr int64_t kMaxRows = 3;
  int64_t m = 1, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_b = false;
  const float* a = nullptr;
  const float* b = nullptr;
  const float* bias = nullptr;  // null: none
  float* c = nullptr;
  bool accumulate = false;
};

struct RowProductKernels {
  void (*run)(const RowProductArgs&, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ROW_PRODUCT_H_
