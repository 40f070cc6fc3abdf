#include "runtime/cpu/kernels/rotary.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

template <typename T, typename U>
SHARDC_INLINE void Halves(const RotaryRowsOf<T, U>& a, const T* x, U* y, const float* cos,
                          const float* sin, float sign) {
  ForLanes(0, a.pairs, [&](int64_t i, int64_t n) {
    const Vec x1 = LoadN(x + i, n), x2 = LoadN(x + a.pairs + i, n);
    const Vec c = LoadN(cos + i, n), s = sign * LoadN(sin + i, n);
    StoreN(y + i, n, x1 * c - x2 * s);
    StoreN(y + a.pairs + i, n, x2 * c + x1 * s);
  });
}

template <typename T, typename U>
SHARDC_INLINE void Neighbours(const RotaryRowsOf<T, U>& a, const T* x, U* y, const float* cos,
                              const float* sin, float sign) {
#pragma omp simd
  for (int64_t i = 0; i < a.pairs; ++i) {
    const float x1 = ToFloat(x[2 * i]), x2 = ToFloat(x[2 * i + 1]);
    const float c = cos[i], s = sign * sin[i];
    Put(y + 2 * i, x1 * c - x2 * s);
    Put(y + 2 * i + 1, x2 * c + x1 * s);
  }
}

template <typename T, typename U>
void Rows(const RotaryRowsOf<T, U>& a) {
  const float sign = a.inverse ? -1.0f : 1.0f;
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = a.x + r * a.cols;
    U* y = a.y + r * a.cols;
    const float *cos = a.cos + r * a.cos_step, *sin = a.sin + r * a.sin_step;
    if (a.interleaved) {
      Neighbours(a, x, y, cos, sin, sign);
    } else {
      Halves(a, x, y, cos, sin, sign);
    }
    if (static_cast<const void*>(x) == y) continue;
    for (int64_t i = 2 * a.pairs; i < a.cols; ++i) Put(y + i, ToFloat(x[i]));
  }
}

}  // namespace

extern const RotaryKernels kRotaryKernels;
const RotaryKernels kRotaryKernels = {
    .rows = Rows<float, float>,
    .rows_to_bf16 = Rows<float, uint16_t>,
    .rows_from_bf16 = Rows<uint16_t, float>,
    .rows_bf16 = Rows<uint16_t, uint16_t>,
};

}  // namespace shardc::cpu::SHARDC_ISA
