// Reductions of x[rows, cols]. The order of every sum is fixed by the sizes alone: no result
// depends on `threads`.
#ifndef RUNTIME_CPU_KERNELS_REDUCE_H_
#define RUNTIME_CPU_KERNELS_REDUCE_H_

#include <cstdint>

namespace shardc::cpu {

struct ReduceKernels {
  // y[c] = sum over r of x[r, c], added to what y holds if `accumulate`.
  void (*sum_rows)(const float* x, float* y, int64_t rows, int64_t cols, bool accumulate,
                   int threads);
  // The same of bf16, summed in f32.
  void (*sum_rows_bf16)(const uint16_t* x, float* y, int64_t rows, int64_t cols, bool accumulate,
                        int threads);
  // y[o, c] = sum over r of x[o, r, c].
  void (*sum_middle)(const float* x, float* y, int64_t outer, int64_t rows, int64_t cols,
                     int threads);
  // y[r] = sum over c of x[r, c].
  void (*sum_last)(const float* x, float* y, int64_t rows, int64_t cols, int threads);
  // Sum and sum of squares of n elements: vectors in f32 over blocks of 1024, the blocks in f64.
  void (*sum)(const float* x, int64_t n, double* y, int threads);
  void (*sum_squares)(const float* x, int64_t n, double* y, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_REDUCE_H_
