// Softmax over the middle axis of x[rows, cols, inner].
#ifndef RUNTIME_CPU_KERNELS_SOFTMAX_H_
#define RUNTIME_CPU_KERNELS_SOFTMAX_H_

#include <cstdint>

namespace shardc::cpu {

struct SoftmaxKernels {
  // y = exp(x - max) / sum. y may be x. -inf only gives NaN, as PyTorch's does.
  void (*forward)(const float* x, float* y, int64_t rows, int64_t cols, int64_t inner, int threads);
  // dx = y * (dy - sum(dy * y)). dx may be dy or y.
  void (*backward)(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols,
                   int64_t inner, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_SOFTMAX_H_
