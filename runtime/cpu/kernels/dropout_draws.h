// Philox4x32-10 on vectors: what dropout draws for elements one after the other. Only for *_isa.cc
// and *_amx.cc files.
#ifndef RUNTIME_CPU_KERNELS_DROPOUT_DRAWS_H_
#define RUNTIME_CPU_KERNELS_DROPOUT_DRAWS_H_

#include "runtime/cpu/kernels/dropout.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {

typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
// A word in the lower half of each lane; what is in the upper half does not count.
typedef uint64_t WideWords __attribute__((vector_size(kLanes * 4)));

inline constexpr int kBlockLanes = kLanes / 2;  // blocks in WideWords
inline constexpr int64_t kDrawn = 4 * kLanes;   // elements drawn at a time

// Whole products of the lower halves.
SHARDC_INLINE WideWords Multiply(WideWords a, uint32_t by) {
  const VecInt b = (VecInt)(WideWords{} + by);
#if defined(__AVX512F__)
  return (WideWords)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (WideWords)__builtin_ia32_pmuludq256((VecInt)a, b);
#elif defined(__SSE2__)
  return (WideWords)__builtin_ia32_pmuludq128((VecInt)a, b);
#else
  return (a & 0xffffffff) * ((WideWords)b & 0xffffffff);
#endif
}

// Pairs of words of two vectors in turn: a0 b0 a1 b1 ...
SHARDC_INLINE void Interleave(WideWords a, WideWords b, Words* lower, Words* upper) {
#if defined(__AVX512F__)
  *lower = (Words)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *upper = (Words)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  *lower = (Words)__builtin_shufflevector(a, b, 0, 4, 1, 5);
  *upper = (Words)__builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  *lower = (Words)__builtin_shufflevector(a, b, 0, 2);
  *upper = (Words)__builtin_shufflevector(a, b, 1, 3);
#endif
}

// Blocks block ... block + kLanes - 1 in two halves, side by side because a round waits for the one
// before it. pairs[h][0] has the words 0 and 1 of a half's blocks next to each other, pairs[h][1]
// the words 2 and 3.
SHARDC_INLINE void DrawPairs(const DropoutDraw& d, int64_t block, WideWords (&pairs)[2][2]) {
  WideWords lane;
  for (int k = 0; k < kBlockLanes; ++k) lane[k] = static_cast<uint64_t>(k);
  WideWords c[2][4];
  for (int h = 0; h < 2; ++h) {
    c[h][0] = lane + static_cast<uint64_t>(block + h * kBlockLanes);
    c[h][1] = c[h][0] >> 32;
    c[h][2] = WideWords{} + d.stream;
    c[h][3] = WideWords{} + d.step;
  }
  uint32_t key0 = static_cast<uint32_t>(d.seed), key1 = static_cast<uint32_t>(d.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int h = 0; h < 2; ++h) {
      const WideWords a = Multiply(c[h][0], 0xD2511F53), b = Multiply(c[h][2], 0xCD9E8D57);
      c[h][0] = (b >> 32) ^ c[h][1] ^ key0;
      c[h][1] = b;
      c[h][2] = (a >> 32) ^ c[h][3] ^ key1;
      c[h][3] = a;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 2; ++i) {
      pairs[h][i] = (c[h][2 * i] & 0xffffffff) | (c[h][2 * i + 1] << 32);
    }
  }
}

// The words of elements first ... first + kDrawn - 1; `first` is a multiple of 4.
SHARDC_INLINE void DrawWords(const DropoutDraw& d, int64_t first, Words (&words)[4]) {
  WideWords pairs[2][2];
  DrawPairs(d, first / 4, pairs);
  for (int half = 0; half < 2; ++half) {
    Interleave(pairs[half][0], pairs[half][1], &words[2 * half], &words[2 * half + 1]);
  }
}

// Room for the factors of n elements, in floats.
SHARDC_INLINE constexpr int64_t RoomForFactors(int64_t n) { return n + 3 + kDrawn; }

// factors[j] = `kept` where element first + j is kept, else 0, for j in [0, n). They lie in `room`.
SHARDC_INLINE const float* DrawFactors(const DropoutDraw& d, int64_t first, int64_t n, float kept,
                                       float* room) {
  const int64_t from = first / 4 * 4;
  for (int64_t at = 0; at < first - from + n; at += kDrawn) {
    Words words[4];
    DrawWords(d, from + at, words);
    for (int64_t w = 0; w < 4; ++w) {
      Store(room + at + w * kLanes, words[w] >= d.threshold ? Splat(kept) : Vec{});
    }
  }
  return room + (first - from);
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_DROPOUT_DRAWS_H_
