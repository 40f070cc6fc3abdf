#include "runtime/cpu/kernels/dropout.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint64_t Wide __attribute__((vector_size(kLanes * 8)));

// Upper and lower halves of the products.
SHARDC_INLINE void Multiply(Words a, uint32_t b, Words& high, Words& low) {
  const Wide product = __builtin_convertvector(a, Wide) * static_cast<uint64_t>(b);
  high = __builtin_convertvector(product >> 32, Words);
  low = __builtin_convertvector(product, Words);
}

// Blocks block ... block + kLanes - 1: word w of block k is words[w][k].
SHARDC_INLINE void Philox(const DropoutArgs& a, int64_t block, Words (&c)[4]) {
  Words low, high;
  for (int k = 0; k < kLanes; ++k) {
    low[k] = static_cast<uint32_t>(block + k);
    high[k] = static_cast<uint32_t>((block + k) >> 32);
  }
  c[0] = low;
  c[1] = high;
  c[2] = Words{} + a.stream;
  c[3] = Words{} + a.step;
  uint32_t key0 = static_cast<uint32_t>(a.seed), key1 = static_cast<uint32_t>(a.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Words high0, low0, high2, low2;
    Multiply(c[0], 0xD2511F53, high0, low0);
    Multiply(c[2], 0xCD9E8D57, high2, low2);
    c[0] = high2 ^ c[1] ^ key0;
    c[1] = low2;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

// a0 b0 a1 b1 ... of the lower or the upper halves.
SHARDC_INLINE Words Interleave(Words a, Words b, int from) {
  VecInt order;
  for (int i = 0; i < kLanes; ++i) order[i] = from + i / 2 + (i % 2) * kLanes;
  return __builtin_shuffle(a, b, order);
}

// The words of the blocks one after the other.
SHARDC_INLINE void Interleave(Words (&c)[4]) {
  constexpr int kUpper = kLanes / 2;
  const Words even_low = Interleave(c[0], c[2], 0), odd_low = Interleave(c[1], c[3], 0);
  const Words even_high = Interleave(c[0], c[2], kUpper), odd_high = Interleave(c[1], c[3], kUpper);
  c[0] = Interleave(even_low, odd_low, 0);
  c[1] = Interleave(even_low, odd_low, kUpper);
  c[2] = Interleave(even_high, odd_high, 0);
  c[3] = Interleave(even_high, odd_high, kUpper);
}

void Stretch(const DropoutArgs& a) {
  constexpr int64_t kElements = 4 * kLanes;
  // Whole groups of blocks, from the one that holds the first element.
  for (int64_t begin = a.first / 4 * 4; begin < a.first + a.n; begin += kElements) {
    Words c[4];
    Philox(a, begin / 4, c);
    Interleave(c);
    const int64_t at = begin - a.first;
    for (int64_t w = 0; w < 4; ++w) {
      const int64_t from = at + w * kLanes;
      if (from >= 0 && from + kLanes <= a.n) {
        const Vec x = Load(a.x + from) * a.scale;
        Store(a.y + from, c[w] >= a.threshold ? x : Vec{});
        continue;
      }
      for (int64_t i = MaxOf(from, 0); i < MinOf(from + kLanes, a.n); ++i) {
        a.y[i] = c[w][i - from] >= a.threshold ? a.x[i] * a.scale : 0.0f;
      }
    }
  }
}

}  // namespace

extern const DropoutKernels kDropoutKernels;
const DropoutKernels kDropoutKernels = {.stretch = Stretch};

}  // namespace shardc::cpu::SHARDC_ISA
