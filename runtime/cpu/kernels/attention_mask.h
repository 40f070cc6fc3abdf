// What a mask does to scores, and to which blocks of them it does nothing or everything. Only for
// *_isa.cc and *_tiles.cc files.
#ifndef RUNTIME_CPU_KERNELS_ATTENTION_MASK_H_
#define RUNTIME_CPU_KERNELS_ATTENTION_MASK_H_

#include "runtime/cpu/kernels/attention.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {

inline constexpr float kNegInf = -__builtin_inff();

// How many of the keys [0, kv_len) query i may see by the causal rule.
SHARDC_INLINE int64_t VisibleKeys(const AttentionShape& s, int64_t i) {
  if (!s.causal) return s.kv_len;
  const int64_t n = i + s.diagonal + 1;
  return n < 0 ? 0 : MinOf(n, s.kv_len);
}

SHARDC_INLINE int64_t PlaceInMask(const AttentionMask& mask, int64_t b, int64_t h, int64_t i,
                                  int64_t j) {
  return b * mask.batch + h * mask.head + i * mask.query + j * mask.key;
}

// Of the n keys from element `at` on, 0 < n <= kLanes: what is added, or 0 where a key is visible
// and -inf where not. Lanes beyond repeat the first one.
SHARDC_INLINE Vec MaskLanes(const AttentionMask& mask, int64_t at, int64_t n) {
  if (mask.add != nullptr) {
    const float* m = mask.add + at;
    if (mask.key == 1) return LoadN(m, n, *m);
    Vec v = Splat(*m);
    for (int64_t j = 1; j < n && mask.key != 0; ++j) v[j] = m[j * mask.key];
    return v;
  }
  const uint8_t* m = mask.visible + at;
  if (mask.key == 1 && n == kLanes) {
    typedef uint8_t Bytes __attribute__((vector_size(kLanes), aligned(1), may_alias));
    const VecInt seen = __builtin_convertvector(*reinterpret_cast<const Bytes*>(m), VecInt);
    return seen != 0 ? Vec{} : Splat(kNegInf);
  }
  Vec v = Splat(*m != 0 ? 0 : kNegInf);
  for (int64_t j = 1; j < n && mask.key != 0; ++j) v[j] = m[j * mask.key] != 0 ? 0 : kNegInf;
  return v;
}

// Scores under what MaskLanes gave of them. A NaN that is not visible does no harm.
SHARDC_INLINE Vec Masked(const AttentionMask& mask, Vec scores, Vec m) {
  if (mask.add != nullptr) return scores + m;
  return m == Vec{} ? scores : m;
}

enum class BlockMask { kMixed, kHidden, kNone };

// What a mask does to each block of kQueries x kKeys scores: kHidden where every probability is 0,
// kNone where no score changes. An element hides a key that is -inf, or 1e30 below the greatest one
// that its query may see: no score outweighs that.
template <int64_t kQueries, int64_t kKeys>
class MaskBlocks {
 public:
  MaskBlocks(const AttentionShape& s, const AttentionMask& mask, int threads)
      : given_(mask.add != nullptr || mask.visible != nullptr) {
    if (!given_) return;
    const bool same_rows = mask.query == 0 && !s.causal;
    const int64_t rows = same_rows ? MinOf(s.q_len, 1) : s.q_len;
    const int64_t queries = CeilDiv(rows, kQueries), keys = CeilDiv(s.kv_len, kKeys);
    const int64_t heads = mask.head == 0 ? 1 : s.q_heads;
    const int64_t count = (mask.batch == 0 ? 1 : s.batch) * heads * queries;
    of_query_ = same_rows ? 0 : keys;
    of_head_ = mask.head == 0 ? 0 : queries * keys;
    of_batch_ = mask.batch == 0 ? 0 : heads * queries * keys;
    does_ = reinterpret_cast<uint8_t*>(room_.Get(CeilDiv(count * keys, 4)));
    ParallelFor(threads, count, 1, [&](int64_t begin, int64_t end) {
      static thread_local Scratch scratch;
      float* greatest = scratch.Get(keys);
      for (int64_t n = begin; n < end; ++n) {
        const int64_t first = n % queries * kQueries, last = MinOf(first + kQueries, rows);
        uint8_t* does = does_ + n * keys;
        for (int64_t k = 0; k < keys; ++k) does[k] = 0;
        for (int64_t i = first; i < last; ++i) {
          AddRow(mask, PlaceInMask(mask, n / queries / heads, n / queries % heads, i, 0),
                 VisibleKeys(s, i), greatest, does);
        }
      }
    });
  }

  BlockMask Of(int64_t b, int64_t h, int64_t i0, int64_t j0) const {
    if (!given_) return BlockMask::kNone;
    const uint8_t does =
        does_[b * of_batch_ + h * of_head_ + i0 / kQueries * of_query_ + j0 / kKeys];
    if ((does & kShows) == 0) return BlockMask::kHidden;
    return (does & kChanges) == 0 ? BlockMask::kNone : BlockMask::kMixed;
  }

 private:
  static constexpr uint8_t kShows = 1, kChanges = 2;

  // A query whose mask begins at `at`. `greatest` has room for an element of each block of keys.
  static void AddRow(const AttentionMask& mask, int64_t at, int64_t visible, float* greatest,
                     uint8_t* does) {
    constexpr float kFar = 1e30F;
    const int64_t blocks = visible <= 0 ? 0 : CeilDiv(visible, kKeys);
    float of_row = kNegInf;
    for (int64_t k = 0; k < blocks; ++k) {
      Vec most = Splat(kNegInf), least = Splat(-kNegInf);
      const int64_t end = MinOf((k + 1) * kKeys, visible);
      for (int64_t j = k * kKeys; j < end; j += kLanes) {
        Vec m = MaskLanes(mask, at + j * mask.key, MinOf(kLanes, end - j));
        m = m != m ? Splat(-kNegInf) : m;  // a NaN shows
        most = Max(m, most);
        least = Min(m, least);
      }
      greatest[k] = MaxOf(most);
      if (greatest[k] != 0 || MaxOf(-least) != 0) does[k] |= kChanges;
      of_row = greatest[k] > of_row ? greatest[k] : of_row;
    }
    for (int64_t k = 0; k < blocks; ++k) {
      if (greatest[k] != kNegInf && !(greatest[k] < of_row - kFar)) does[k] |= kShows;
    }
  }

  bool given_;
  int64_t of_batch_ = 0, of_head_ = 0, of_query_ = 0;
  Scratch room_;
  uint8_t* does_ = nullptr;
};

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_ATTENTION_MASK_H_
