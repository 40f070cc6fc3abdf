// What attention forward and backward share: packing and masking of rows. Only for *_isa.cc
// files.
#ifndef RUNTIME_CPU_KERNELS_ATTENTION_BLOCKS_H_
#define RUNTIME_CPU_KERNELS_ATTENTION_BLOCKS_H_

#include "runtime/cpu/kernels/attention_mask.h"
#include "runtime/cpu/kernels/dropout_draws.h"
#include "runtime/cpu/kernels/micro_gemm.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec_bf16.h"
#include "runtime/cpu/kernels/vec_transpose.h"

namespace shardc::cpu::SHARDC_ISA {

// Rows of a head that are asked for a few at a time before they are read or written: they lie far
// apart, where the processor does not foresee them.
template <typename T>
struct RowsAhead {
  const T* at;
  int64_t stride;
  int64_t rows;
  int64_t d;

  SHARDC_INLINE void Fetch(int64_t count) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (; count > 0 && rows > 0; --count, --rows, at += stride) {
      for (int64_t c = 0; c < d; c += kLine) __builtin_prefetch(at + c);
    }
  }
};

// dst[r * padded + c] = src[r * stride + c] * scale, zeros in the columns [d, padded) and the rows
// [rows, all_rows).
template <typename T>
SHARDC_INLINE void PackRows(const T* src, int64_t stride, int64_t rows, int64_t all_rows, int64_t d,
                            int64_t padded, float scale, float* dst) {
  for (int64_t r = 0; r < all_rows; ++r, dst += padded) {
    const int64_t used = r < rows ? d : 0;
    const T* from = src + r * stride;
    for (int64_t c = 0; c < used; ++c) dst[c] = ToFloat(from[c]) * scale;
    for (int64_t c = used; c < padded; ++c) dst[c] = 0;
  }
}

// dst[c * kBlock + r] = src[r * stride + c], zeros for r in [rows, kBlock).
template <int64_t kBlock, typename T>
SHARDC_INLINE void PackTransposed(const T* src, int64_t stride, int64_t rows, int64_t d,
                                  float* dst) {
  static_assert(kBlock % kLanes == 0);
  const int64_t whole_rows = rows / kLanes * kLanes, whole_d = d / kLanes * kLanes;
  for (int64_t c = 0; c < whole_d; c += kLanes) {
    for (int64_t r = 0; r < whole_rows; r += kLanes) {
      TransposeLanes(src + r * stride + c, stride, dst + c * kBlock + r, kBlock);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = src + r * stride;
    for (int64_t c = r < whole_rows ? whole_d : 0; c < d; ++c) {
      dst[c * kBlock + r] = ToFloat(from[c]);
    }
  }
  if (rows == kBlock) return;
  for (int64_t c = 0; c < d; ++c) {
    for (int64_t r = rows; r < kBlock; ++r) dst[c * kBlock + r] = 0;
  }
}

// s[j] = value for j in [from, padded); `padded` is a multiple of kLanes. In whole vectors: what
// reads s next does so in vectors, and would wait for narrower stores.
SHARDC_INLINE void FillFrom(int64_t from, int64_t padded, float value, float* s) {
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int64_t j = from / kLanes * kLanes; j < padded; j += kLanes) {
    Store(s + j, lane >= static_cast<int32_t>(from - j) ? Splat(value) : Load(s + j));
  }
}

// Applies the mask to the scores of query i and keys [j0, j0 + visible), and leaves anything in
// what fills the last vector.
SHARDC_INLINE void MaskRow(const AttentionMask& mask, int64_t b, int64_t h, int64_t i, int64_t j0,
                           int64_t visible, float* s) {
  const int64_t at = PlaceInMask(mask, b, h, i, j0);
  for (int64_t j = 0; j < visible; j += kLanes) {
    const Vec m = MaskLanes(mask, at + j * mask.key, MinOf(kLanes, visible - j));
    Store(s + j, Masked(mask, Load(s + j), m));
  }
}

// Into dq: the sum over the first dim, in its order, of partial[chunks][batch][q_heads][q_len][d].
template <typename T>
void SumQueryGradients(const AttentionBackwardArgsOf<T>& a, const float* partial, int64_t chunks,
                       int threads) {
  const AttentionShape& s = a.shape;
  const int64_t rows = s.batch * s.q_heads * s.q_len, part = rows * s.head_dim;
  ParallelFor(threads, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t b = n / s.q_len / s.q_heads, h = n / s.q_len % s.q_heads;
      T* dq =
          a.dq + b * a.dq_strides.batch + h * a.dq_strides.head + n % s.q_len * a.dq_strides.seq;
      for (int64_t c = 0; c < s.head_dim; ++c) {
        float sum = 0;
        for (int64_t p = 0; p < chunks; ++p) sum += partial[p * part + n * s.head_dim + c];
        Put(dq + c, sum);
      }
    }
  });
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_ATTENTION_BLOCKS_H_
