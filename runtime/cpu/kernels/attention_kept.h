// The mask of dropout for blocks of transposed scores, as bits. Only for *_amx.cc files.
#ifndef RUNTIME_CPU_KERNELS_ATTENTION_KEPT_H_
#define RUNTIME_CPU_KERNELS_ATTENTION_KEPT_H_

#include <immintrin.h>

#include "runtime/cpu/kernels/attention.h"
#include "runtime/cpu/kernels/dropout_draws.h"

namespace shardc::cpu::SHARDC_ISA {

// Bit i: whether element first + i is kept.
[[gnu::noinline]] inline uint64_t KeptBits(const DropoutDraw& d, int64_t first) {
  constexpr int kNotLess = 5;
  const auto drawn = [&](int64_t from) {
    uint64_t bits = 0;
    WideWords pairs[2][2];
    DrawPairs(d, from / 4, pairs);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 2; ++i) {
        const __mmask16 kept = _mm512_cmp_epu32_mask(
            (__m512i)pairs[half][i], _mm512_set1_epi32(static_cast<int>(d.threshold)), kNotLess);
        // To the bits of words 0 and 1, or 2 and 3, of each block.
        bits |= _pdep_u64(kept, 0x3333333333333333u << (2 * i)) << (32 * half);
      }
    }
    return bits;
  };
  const int64_t skip = first % 4;
  const uint64_t bits = drawn(first - skip);
  return skip == 0 ? bits : bits >> skip | drawn(first - skip + 64) << (64 - skip);
}

// Bit j of row i and bit i of row j change places.
inline void TransposeBits(uint64_t (&rows)[64]) {
  uint64_t mask = 0x00000000ffffffffu;
  for (int size = 32; size > 0; size /= 2, mask ^= mask << size) {
    for (int i = 0; i < 64; i = (i + size + 1) & ~size) {
      const uint64_t swapped = (rows[i] >> size ^ rows[i + size]) & mask;
      rows[i] ^= swapped << size;
      rows[i + size] ^= swapped;
    }
  }
}

// Which probabilities are kept of 64 queries and as many keys: bit q of key k, from bit 0 on.
struct Kept {
  uint64_t keys[64];

  void Draw(const AttentionDropout& dropout, int64_t b, int64_t h, int64_t i0, int64_t rows,
            int64_t j0) {
    for (int64_t q = 0; q < 64; ++q) {
      keys[q] = q < rows ? KeptBits(dropout.draw, dropout.First(b, h, i0 + q) + j0) : 0;
    }
    TransposeBits(keys);
  }
  // v of the key and a vector of queries where it is kept, else zero.
  SHARDC_INLINE Vec Of(int64_t key, int64_t vector, Vec v) const {
    const auto mask = static_cast<__mmask16>(keys[key] >> (vector * kLanes));
    return (Vec)_mm512_maskz_mov_ps(mask, (__m512)v);
  }
};

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_ATTENTION_KEPT_H_
