#include "runtime/cpu/kernels/optimizer.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 16384;

void AdamW(const AdamWArgs& a, int threads) {
  const double correction1 = 1 - __builtin_pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = 1 - __builtin_pow(a.beta2, static_cast<double>(a.step));
  const float keep = static_cast<float>(1 - a.lr * a.weight_decay);
  const float step_size = static_cast<float>(a.lr / correction1);
  const float root = static_cast<float>(__builtin_sqrt(correction2));
  const float new1 = static_cast<float>(1 - a.beta1);
  const float beta2 = static_cast<float>(a.beta2);
  const float new2 = static_cast<float>(1 - a.beta2);
  const float eps = static_cast<float>(a.eps);
  const float scale = static_cast<float>(a.grad_scale);
  ParallelFor(
      threads, a.n, kGrain,
      [&](int64_t begin, int64_t end) {
        ForLanes(begin, end, [&](int64_t i, int64_t n) {
          const Vec g = LoadN(a.g + i, n) * scale;
          Vec m = LoadN(a.m + i, n);
          m += (g - m) * new1;
          const Vec v = LoadN(a.v + i, n) * beta2 + g * g * new2;
          const Vec denominator = Sqrt(v) / root + eps;
          StoreN(a.w + i, n, LoadN(a.w + i, n) * keep - step_size * (m / denominator));
          StoreN(a.m + i, n, m);
          StoreN(a.v + i, n, v);
        });
      },
      16);
}

void Sgd(const SgdArgs& a, int threads) {
  const float lr = static_cast<float>(a.lr);
  const float momentum = static_cast<float>(a.momentum);
  const float decay = static_cast<float>(a.weight_decay);
  const float scale = static_cast<float>(a.grad_scale);
  ParallelFor(
      threads, a.n, kGrain,
      [&](int64_t begin, int64_t end) {
        ForLanes(begin, end, [&](int64_t i, int64_t n) {
          const Vec w = LoadN(a.w + i, n);
          Vec g = LoadN(a.g + i, n) * scale + w * decay;
          if (a.momentum_buffer != nullptr) {
            const Vec buffer = LoadN(a.momentum_buffer + i, n) * momentum + g;
            StoreN(a.momentum_buffer + i, n, buffer);
            g = a.nesterov ? g + buffer * momentum : buffer;
          }
          StoreN(a.w + i, n, w - g * lr);
        });
      },
      16);
}

}  // namespace

extern const OptimizerKernels kOptimizerKernels;
const OptimizerKernels kOptimizerKernels = {.adamw = AdamW, .sgd = Sgd};

}  // namespace shardc::cpu::SHARDC_ISA
