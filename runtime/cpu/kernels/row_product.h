// The product of one row and a matrix, as when a model makes token after token: it takes as long as
// reading the matrix does, which is read once, where it lies and as it lies.
#ifndef RUNTIME_CPU_KERNELS_ROW_PRODUCT_H_
#define RUNTIME_CPU_KERNELS_ROW_PRODUCT_H_

#include <cstdint>

namespace shardc::cpu {

// c[n] = a[k] B + bias, or c += that. B is [k, n], or [n, k] transposed, with ldb elements from one
// stored row to the next.
struct RowProductArgs {
  int64_t n = 0, k = 0, ldb = 0;
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
