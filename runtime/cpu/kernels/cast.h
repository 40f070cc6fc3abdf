// Conversions between element types, n elements each, dense. To f16 and bf16: to nearest, ties to
// even, NaN stays NaN. From f32 to i64: toward zero, NaN and values out of range undefined. To
// bool: x != 0 (NaN is true), stored as 0 or 1.
#ifndef RUNTIME_CPU_KERNELS_CAST_H_
#define RUNTIME_CPU_KERNELS_CAST_H_

#include <cstdint>

namespace shardc::cpu {

struct CastKernels {
  void (*f32_to_bf16)(const float* x, uint16_t* y, int64_t n, int threads);
  void (*bf16_to_f32)(const uint16_t* x, float* y, int64_t n, int threads);
  void (*f32_to_f16)(const float* x, uint16_t* y, int64_t n, int threads);
  void (*f16_to_f32)(const uint16_t* x, float* y, int64_t n, int threads);
  void (*f32_to_f64)(const float* x, double* y, int64_t n, int threads);
  void (*f64_to_f32)(const double* x, float* y, int64_t n, int threads);
  void (*f32_to_i64)(const float* x, int64_t* y, int64_t n, int threads);
  void (*i64_to_f32)(const int64_t* x, float* y, int64_t n, int threads);
  void (*f32_to_bool)(const float* x, uint8_t* y, int64_t n, int threads);
  void (*bool_to_f32)(const uint8_t* x, float* y, int64_t n, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_CAST_H_
