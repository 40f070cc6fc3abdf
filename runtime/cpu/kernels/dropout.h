// Dropout with a mask that is a function of the element's place (ir/dropout.h), in place or not;
// and numbers that are.
#ifndef RUNTIME_CPU_KERNELS_DROPOUT_H_
#define RUNTIME_CPU_KERNELS_DROPOUT_H_

#include <cstdint>

namespace shardc::cpu {

// Element i is kept where word i % 4 of Philox4x32-10 with the key `seed` and the counter i / 4,
// whose upper words are `stream` and `step`, is at least `threshold`.
struct DropoutDraw {
  uint64_t seed = 0;
  uint32_t stream = 0, step = 0;
  uint32_t threshold = 0;
};

// y[j] = scale * x[j] where element first + j is kept, else 0. y may be x.
struct DropoutArgs {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t n = 0;
  int64_t first = 0;
  DropoutDraw draw;
  float scale = 1;  // 0: nothing is kept
};

struct DropoutKernels {
  void (*stretch)(const DropoutArgs&);  // on the calling thread
  // y[j] = the upper 24 bits of the word of element first + j, times 2^-24; x, the threshold and
  // the scale do not count.
  void (*uniform)(const DropoutArgs&);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_DROPOUT_H_
