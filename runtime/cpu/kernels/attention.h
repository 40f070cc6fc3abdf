// Blocked ("flash") attention, forward and backward: no s x s matrix is ever stored.
//
//   s[i, j] = scale * q[i] . k[j] + mask[i, j]     p = softmax over the visible j
//   o[i] = sum_j p[i, j] v[j]     lse[i] = log sum_j exp(s[i, j])
//
// Formulas: Dao et al., "FlashAttention" (2022), Algorithms 1 and 2; backward, where D[i] is the
// dot product of do[i] and o[i]:
//   p = exp(s - lse)   dv = p^T do   ds = p * (do v^T - D) * scale   dq = ds k   dk = ds^T q
// Dropout multiplies p where it meets v, and do v^T, by z[i, j]: 0 or 1 / (1 - ratio), drawn again
// wherever it is needed.
#ifndef RUNTIME_CPU_KERNELS_ATTENTION_H_
#define RUNTIME_CPU_KERNELS_ATTENTION_H_

#include <cstdint>

#include "runtime/cpu/kernels/dropout.h"

namespace shardc::cpu {

// Element (b, s, h, d) lies at b * batch + s * seq + h * head + d: strides in elements, d is dense.
// Covers bshd, bhsd and slices of a fused qkv buffer.
struct HeadStrides {
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t head = 0;
};

struct AttentionShape {
  int64_t batch = 0;
  // A multiple of kv_heads: query head h reads kv head h / (q_heads / kv_heads).
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;   // of q and k
  int64_t value_dim = 0;  // of v and o
  float scale = 1;
  bool causal = false;   // query i sees the keys j <= i + diagonal
  int64_t diagonal = 0;  // kv_len - q_len where the ends meet
};

// At most one of `add` and `visible` is set; element (b, h, i, j) of it lies at the sum of index
// times stride, a stride of 0 broadcasts. Of an element that lies 1e30 below the greatest visible
// one of its row the probability is 0, whatever the scores. The lse of a row of `add` whose
// greatest visible element absorbs the scores (in f32 from 5e8 on, of either sign) has lost the
// logarithm of how many n elements are so great, so that backward takes each for n times as
// probable: the op's gradient divides d_o there.
struct AttentionMask {
  const float* add = nullptr;
  const uint8_t* visible = nullptr;  // nonzero: the query sees the key
  int64_t batch = 0;
  int64_t head = 0;
  int64_t query = 0;
  int64_t key = 0;
};

// Probability (b, h, i, j) is element batch[b] + head[h] + query[i] + j of the whole tensor.
struct AttentionDropout {
  DropoutDraw draw;
  float scale = 1;                                                    // of what is kept
  const int64_t *batch = nullptr, *head = nullptr, *query = nullptr;  // null: nothing is dropped

  bool drops() const { return batch != nullptr; }
  int64_t First(int64_t b, int64_t h, int64_t i) const { return batch[b] + head[h] + query[i]; }
};

// A row that sees no key gives o = 0 and lse = -inf.
template <typename T>
struct AttentionForwardArgsOf {
  AttentionShape shape;
  const T* q = nullptr;
  HeadStrides q_strides;
  const T* k = nullptr;
  HeadStrides k_strides;
  const T* v = nullptr;
  HeadStrides v_strides;
  AttentionMask mask;
  AttentionDropout dropout;
  T* o = nullptr;
  HeadStrides o_strides;
  float* lse = nullptr;  // [batch, q_heads, q_len] dense; may be null
};
using AttentionForwardArgs = AttentionForwardArgsOf<float>;

// dq, dk, dv are overwritten and may not overlap any input; dk and dv are sums over the query heads
// of a group.
template <typename T>
struct AttentionBackwardArgsOf {
  AttentionShape shape;
  const T* q = nullptr;
  HeadStrides q_strides;
  const T* k = nullptr;
  HeadStrides k_strides;
  const T* v = nullptr;
  HeadStrides v_strides;
  AttentionMask mask;
  AttentionDropout dropout;
  const T* o = nullptr;
  HeadStrides o_strides;
  const float* lse = nullptr;  // [batch, q_heads, q_len] dense
  const T* d_o = nullptr;
  HeadStrides d_o_strides;
  T* dq = nullptr;
  HeadStrides dq_strides;
  T* dk = nullptr;
  HeadStrides dk_strides;
  T* dv = nullptr;
  HeadStrides dv_strides;
};
using AttentionBackwardArgs = AttentionBackwardArgsOf<float>;

struct AttentionKernels {
  void (*forward)(const AttentionForwardArgs&, int threads);
  void (*backward)(const AttentionBackwardArgs&, int threads);
  // q, k, v, o and their gradients in bf16, scores and sums in f32.
  void (*forward_bf16)(const AttentionForwardArgsOf<uint16_t>&, int threads);
  void (*backward_bf16)(const AttentionBackwardArgsOf<uint16_t>&, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ATTENTION_H_
