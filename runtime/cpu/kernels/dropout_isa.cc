#include "runtime/cpu/kernels/dropout_draws.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

// Calls all(from, words) for what a vector holds of elements from ..., and one(i, word) for the
// others.
template <typename All, typename One>
SHARDC_INLINE void ForEachDrawn(const DropoutArgs& a, All all, One one) {
  // From the block that holds the first element.
  for (int64_t begin = a.first / 4 * 4; begin < a.first + a.n; begin += kDrawn) {
    Words words[4];
    DrawWords(a.draw, begin, words);
    const int64_t at = begin - a.first;
    for (int64_t w = 0; w < 4; ++w) {
      const int64_t from = at + w * kLanes;
      if (from >= 0 && from + kLanes <= a.n) {
        all(from, words[w]);
        continue;
      }
      for (int64_t i = MaxOf(from, 0); i < MinOf(from + kLanes, a.n); ++i) {
        one(i, words[w][i - from]);
      }
    }
  }
}

void Stretch(const DropoutArgs& a) {
  ForEachDrawn(
      a,
      [&](int64_t from, const Words& words) {
        const Vec x = Load(a.x + from) * a.scale;
        Store(a.y + from, words >= a.draw.threshold ? x : Vec{});
      },
      [&](int64_t i, uint32_t word) {
        a.y[i] = word >= a.draw.threshold ? a.x[i] * a.scale : 0.0f;
      });
}

void Uniform(const DropoutArgs& a) {
  ForEachDrawn(
      a,
      [&](int64_t from, const Words& words) {
        Store(a.y + from, __builtin_convertvector((VecInt)(words >> 8), Vec) * 0x1p-24f);
      },
      [&](int64_t i, uint32_t word) { a.y[i] = static_cast<float>(word >> 8) * 0x1p-24f; });
}

}  // namespace

extern const DropoutKernels kDropoutKernels;
const DropoutKernels kDropoutKernels = {.stretch = Stretch, .uniform = Uniform};

}  // namespace shardc::cpu::SHARDC_ISA
