#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/softmax.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 8192;
constexpr float kNegInf = -__builtin_inff();

void Forward(const float* x, float* y, int64_t rows, int64_t cols, int threads) {
  if (cols == 0) return;
  ParallelFor(threads, rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x + r * cols;
      float* out = y + r * cols;
      Vec m = Splat(kNegInf);
      ForLanes(0, cols, [&](int64_t i, int64_t n) { m = Max(LoadN(in + i, n, kNegInf), m); });
      const float max = MaxOf(m);
      Vec sum = {};
      ForLanes(0, cols, [&](int64_t i, int64_t n) {
        const Vec e = ExpOrZero(LoadN(in + i, n, kNegInf) - max);
        sum += e;
        StoreN(out + i, n, e);
      });
      // A row of -inf only: the padding of a partial vector must not make up for the missing sum.
      const float scale = max == kNegInf ? __builtin_nanf("") : 1.0f / Sum(sum);
      ForLanes(0, cols,
               [&](int64_t i, int64_t n) { StoreN(out + i, n, LoadN(out + i, n) * scale); });
    }
  });
}

void Backward(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, int threads) {
  if (cols == 0) return;
  ParallelFor(threads, rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* p = y + r * cols;
      const float* g = dy + r * cols;
      float* out = dx + r * cols;
      Vec sum = {};
      ForLanes(0, cols, [&](int64_t i, int64_t n) { sum += LoadN(p + i, n) * LoadN(g + i, n); });
      const float dot = Sum(sum);
      ForLanes(0, cols, [&](int64_t i, int64_t n) {
        StoreN(out + i, n, LoadN(p + i, n) * (LoadN(g + i, n) - dot));
      });
    }
  });
}

}  // namespace

extern const SoftmaxKernels kSoftmaxKernels;
const SoftmaxKernels kSoftmaxKernels = {.forward = Forward, .backward = Backward};

}  // namespace shardc::cpu::SHARDC_ISA
