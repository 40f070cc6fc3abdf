#include "runtime/cpu/kernels/norm.h"
#include "runtime/cpu/kernels/norm_value.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

void LayerNormBackward(const NormBackwardArgs& a, int threads);
void RmsNormBackward(const NormBackwardArgs& a, int threads);

namespace {

constexpr int64_t kGrain = 16384;  // elements per thread below which a team does not pay

SHARDC_INLINE float RowSum(const float* x, int64_t cols) {
  Vec s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    s0 += Load(x + c);
    s1 += Load(x + c + kLanes);
    s2 += Load(x + c + 2 * kLanes);
    s3 += Load(x + c + 3 * kLanes);
  }
  ForLanes(c, cols, [&](int64_t i, int64_t n) { s0 += LoadN(x + i, n); });
  return Sum((s0 + s1) + (s2 + s3));
}

// Sum of (x - mean)^2.
SHARDC_INLINE float RowSquares(const float* x, float mean, int64_t cols) {
  Vec s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    const Vec d0 = Load(x + c) - mean;
    const Vec d1 = Load(x + c + kLanes) - mean;
    const Vec d2 = Load(x + c + 2 * kLanes) - mean;
    const Vec d3 = Load(x + c + 3 * kLanes) - mean;
    s0 += d0 * d0;
    s1 += d1 * d1;
    s2 += d2 * d2;
    s3 += d3 * d3;
  }
  ForLanes(c, cols, [&](int64_t i, int64_t n) {
    const Vec d = LoadN(x + i, n, mean) - mean;
    s0 += d * d;
  });
  return Sum((s0 + s1) + (s2 + s3));
}

template <bool kCentered, typename T, typename R>
void NormRows(const NormForwardArgs& a, const R* added, T* out, int threads) {
  const int64_t cols = a.cols;
  if (cols == 0) return;
  ParallelFor(threads, a.rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x + r * cols;
      if (added != nullptr) {
        const R* residual = added + r * cols;
        float* sum = a.sum + r * cols;
        ForLanes(0, cols, [&](int64_t i, int64_t n) {
          StoreN(sum + i, n, LoadN(x + i, n) + LoadN(residual + i, n));
        });
        x = sum;
      }
      const float mean = kCentered ? RowSum(x, cols) / static_cast<float>(cols) : 0.0f;
      const float var = RowSquares(x, mean, cols) / static_cast<float>(cols);
      const float rstd = 1.0f / __builtin_sqrtf(var + a.eps);
      T* y = out + r * cols;
      ForLanes(0, cols, [&](int64_t i, int64_t n) {
        StoreN(y + i, n,
               NormValue(LoadN(x + i, n), mean, rstd, a.w, kCentered ? a.b : nullptr, i, n));
      });
      if (kCentered && a.mean != nullptr) a.mean[r] = mean;
      if (a.rstd != nullptr) a.rstd[r] = rstd;
    }
  });
}

template <bool kCentered, typename T>
void NormRows(const NormForwardArgs& a, T* out, int threads) {
  if (a.residual_bf16 != nullptr) {
    NormRows<kCentered>(a, a.residual_bf16, out, threads);
  } else {
    NormRows<kCentered>(a, a.residual, out, threads);
  }
}

template <bool kCentered>
void NormForward(const NormForwardArgs& a, int threads) {
  if (a.y_bf16 != nullptr) {
    NormRows<kCentered>(a, a.y_bf16, threads);
  } else {
    NormRows<kCentered>(a, a.y, threads);
  }
}

}  // namespace

extern const NormKernels kNormKernels;
const NormKernels kNormKernels = {
    .layer_norm_forward = NormForward<true>,
    .layer_norm_backward = LayerNormBackward,
    .rms_norm_forward = NormForward<false>,
    .rms_norm_backward = RmsNormBackward,
};

}  // namespace shardc::cpu::SHARDC_ISA
