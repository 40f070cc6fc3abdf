// Layer norm and RMS norm over the last axis of x[rows, cols].
//
//   layer_norm: y = (x - mean) * rstd * w + b,  rstd = 1 / sqrt(var + eps), var the biased variance
//   rms_norm:   y = x * rstd * w,               rstd = 1 / sqrt(mean(x^2) + eps)
#ifndef RUNTIME_CPU_KERNELS_NORM_H_
#define RUNTIME_CPU_KERNELS_NORM_H_

#include <cstdint>

namespace shardc::cpu {

// With a residual, x + residual is written to `sum` (which may be x or residual) and normed. `y`
// may be x if there is no residual, and may be neither null nor `sum` otherwise.
struct NormForwardArgs {
  const float* x = nullptr;
  const float* residual = nullptr;          // optional
  const uint16_t* residual_bf16 = nullptr;  // in place of it
  const float* w = nullptr;                 // [cols], optional: ones
  const float* b = nullptr;                 // [cols], optional: zeros; layer norm only
  float* sum = nullptr;                     // with residual only
  float* y = nullptr;
  uint16_t* y_bf16 = nullptr;  // in place of y: the same, rounded to bf16; apart from all operands
  float* mean = nullptr;       // [rows], optional; layer norm only
  float* rstd = nullptr;       // [rows], optional
  int64_t rows = 0;
  int64_t cols = 0;
  float eps = 1e-5F;
};

// dx = gradient through the norm, plus `residual_grad` if given. dw, db and dx_sums are
// overwritten; null ones are not computed. y has the bits that the forward gave. dx may be dy or
// residual_grad. The sums over rows go by row blocks that depend on the sizes only, so that they do
// not depend on `threads` either.
struct NormBackwardArgs {
  const float* dy = nullptr;
  const uint16_t* dy_bf16 = nullptr;  // in place of dy
  const float* x = nullptr;           // what was normed: the sum, if there was a residual
  const float* w = nullptr;           // optional: ones
  const float* mean = nullptr;        // layer norm only
  const float* rstd = nullptr;
  const float* residual_grad = nullptr;  // optional
  float* dx = nullptr;                   // optional
  float* dw = nullptr;                   // optional
  float* db = nullptr;                   // optional; layer norm only
  uint16_t* dx_bf16 = nullptr;           // optional: dx, rounded to bf16; apart from all operands
  float* dx_copy = nullptr;              // optional: dx; apart from all operands
  float* dx_sums = nullptr;              // optional: the sum of dx over all rows
  const float* b = nullptr;              // for y, optional: zeros; layer norm only
  float* y = nullptr;                    // optional: the norm's result; apart from all operands
  uint16_t* y_bf16 = nullptr;            // in place of y: the same, rounded to bf16
  int64_t rows = 0;
  int64_t cols = 0;
};

struct NormKernels {
  void (*layer_norm_forward)(const NormForwardArgs&, int threads);
  void (*layer_norm_backward)(const NormBackwardArgs&, int threads);
  void (*rms_norm_forward)(const NormForwardArgs&, int threads);
  void (*rms_norm_backward)(const NormBackwardArgs&, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_NORM_H_
