#include "runtime/cpu/kernels/dropout_draws.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

void Stretch(const DropoutArgs& a) {
  // From the block that holds the first element.
  for (int64_t begin = a.first / 4 * 4; begin < a.first + a.n; begin += kDrawn) {
    Words words[4];
    DrawWords(a.draw, begin, words);
    const int64_t at = begin - a.first;
    for (int64_t w = 0; w < 4; ++w) {
      const int64_t from = at + w * kLanes;
      if (from >= 0 && from + kLanes <= a.n) {
        const Vec x = Load(a.x + from) * a.scale;
        Store(a.y + from, words[w] >= a.draw.threshold ? x : Vec{});
        continue;
      }
      for (int64_t i = MaxOf(from, 0); i < MinOf(from + kLanes, a.n); ++i) {
        a.y[i] = words[w][i - from] >= a.draw.threshold ? a.x[i] * a.scale : 0.0f;
      }
    }
  }
}

}  // namespace

extern const DropoutKernels kDropoutKernels;
const DropoutKernels kDropoutKernels = {.stretch = Stretch};

}  // namespace shardc::cpu::SHARDC_ISA
