// Fused parameter updates in place, by PyTorch's formulas (torch.optim.AdamW and
// torch.optim.SGD, 2.x).
#ifndef RUNTIME_CPU_KERNELS_OPTIMIZER_H_
#define RUNTIME_CPU_KERNELS_OPTIMIZER_H_

#include <cstdint>

namespace shardc::cpu {

// With g' = grad_scale * g and t = step, counted from 1:
//   w -= lr * weight_decay * w
//   m = beta1 m + (1 - beta1) g'        v = beta2 v + (1 - beta2) g'^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
struct AdamWArgs {
  float* w = nullptr;
  const float* g = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  int64_t n = 0;
  int64_t step = 1;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double grad_scale = 1;
};

// g' = grad_scale * g + weight_decay * w;  buf = momentum * buf + g' (buf starts as zeros; null if
// momentum is 0); w -= lr * (nesterov ? g' + momentum * buf : buf).
struct SgdArgs {
  float* w = nullptr;
  const float* g = nullptr;
  float* momentum_buffer = nullptr;
  int64_t n = 0;
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  double grad_scale = 1;
  bool nesterov = false;
};

struct OptimizerKernels {
  void (*adamw)(const AdamWArgs&, int threads);
  void (*sgd)(const SgdArgs&, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_OPTIMIZER_H_
