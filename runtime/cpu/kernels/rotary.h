// Pairs of a row's elements turned by angles of which cos and sin are given, in place or not.
#ifndef RUNTIME_CPU_KERNELS_ROTARY_H_
#define RUNTIME_CPU_KERNELS_ROTARY_H_

#include <cstdint>

namespace shardc::cpu {

// Rows x[rows, cols] and y of floats or bf16, computed in f32. Of each the first 2 * pairs elements
// are turned, the others copied: elements i and i + pairs are a pair, or 2 i and 2 i + 1
// (interleaved). y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin; `inverse`: with -sin. Row r has the
// angles cos[r * cos_step ...] and sin[r * sin_step ...]. y may be x where they have one type.
template <typename T, typename U>
struct RotaryRowsOf {
  const T* x = nullptr;
  U* y = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t rows = 0, cols = 0, pairs = 0;
  int64_t cos_step = 0, sin_step = 0;
  bool interleaved = false, inverse = false;
};

struct RotaryKernels {
  // On the calling thread.
  void (*rows)(const RotaryRowsOf<float, float>&);
  void (*rows_to_bf16)(const RotaryRowsOf<float, uint16_t>&);
  void (*rows_from_bf16)(const RotaryRowsOf<uint16_t, float>&);
  void (*rows_bf16)(const RotaryRowsOf<uint16_t, uint16_t>&);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ROTARY_H_
