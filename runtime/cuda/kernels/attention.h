// What the attention kernels share. Three families: attention_mma.cu on tensor cores for bf16 and
// f16, attention_tiles.cu for f32 with heads of at most kTiledHeadDim that have room, and
// attention_plain.cu for all others. All walk over tiles of keys (or queries) with a running
// softmax (FlashAttention-2, arXiv:2307.08691), and sum gradients in a fixed order: one pass for
// dq, one for dk and dv.
#pragma once

#include "runtime/cuda/kernels/draw.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

inline constexpr int kMaxHeadDim = 256, kTiledHeadDim = 128;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// 2^x; what is less than 2^-126 is 0.
__device__ __forceinline__ float Exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = ::exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
#endif
}

// lse of scores in units of log 2, by their maximum and the sum of their powers above it. The
// lowest number is lse and score alike, of queries all of whose keys have it.
__device__ __forceinline__ float LseOf(float max, float sum) {
  if (sum == 0 || max == -kGreatest<float>) return max;
  return max * kLn2 + ::logf(sum);
}
// What the gradient takes from such scores: a query that sees no key has probabilities of zero.
__device__ __forceinline__ float BaseOf(float lse) {
  if (lse == -Infinity<float>()) return Infinity<float>();
  return lse < -kGreatest<float> / kLog2E ? -kGreatest<float> : lse * kLog2E;
}

// Where heads and rows of a tensor lie, in elements.
struct HeadStrides {
  int64_t batch, head, row;
  __device__ int64_t At(int64_t b, int64_t h, int64_t i) const {
    return b * batch + h * head + i * row;
  }
};

struct AttentionMask {
  const std::byte* data = nullptr;
  DType dtype = DType::kBool;
  int64_t strides[4] = {0, 0, 0, 0};
  // The score with the mask: added to it, or -inf where it hides the key. `unit` is what the scores
  // are counted in.
  template <typename W>
  __device__ W Apply(W score, int64_t b, int64_t h, int64_t i, int64_t j, W unit) const {
    if (!data) return score;
    const int64_t at = b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3];
    W value = 0;
    switch (dtype) {
      case DType::kBool:
        return Widen(reinterpret_cast<const Bool*>(data)[at]) ? score : -Infinity<W>();
      case DType::kF32:
        value = static_cast<W>(reinterpret_cast<const float*>(data)[at]);
        break;
      case DType::kF64:
        value = static_cast<W>(reinterpret_cast<const double*>(data)[at]);
        break;
      case DType::kF16:
        value = static_cast<W>(Widen(reinterpret_cast<const F16*>(data)[at]));
        break;
      default:
        value = static_cast<W>(Widen(reinterpret_cast<const BF16*>(data)[at]));
    }
    // The lowest number is one in any unit: where all keys have it, none is hidden.
    // (fmax: of a comparison of the product gcc 13 concludes that the value was infinite.)
    const W added = value * unit, lowest = -kGreatest<W>;
    return score + (value >= lowest ? ::fmax(added, lowest) : added);
  }
};

// What is dropped of the probabilities; (b, h, i, j) is element batch[b] + head[h] + query[i] + j
// of the whole tensor.
template <typename W>
struct AttentionDropout {
  Draw draw;
  W scale = 1;                                                        // of what is kept
  const int64_t *batch = nullptr, *head = nullptr, *query = nullptr;  // null: nothing is dropped
  bool aligned = false;                                               // rows begin with a word 0

  __device__ int64_t Row(int64_t b, int64_t h, int64_t i) const {
    return batch[b] + head[h] + query[i];
  }
  // What element `at` is multiplied by.
  __device__ W Factor(int64_t at, uint32_t now) const {
    return draw.Keeps(WordOf(draw.Block(at / 4, now), static_cast<int>(at % 4))) ? scale : W(0);
  }
};

template <typename T>
struct Attention {
  int64_t b, hq, hkv, s, t;
  int d, dv;
  Wide<T> scale;
  bool causal;
  int64_t diagonal;  // if causal: query i sees keys j <= i + diagonal
  bool packed;       // rows of all tensors may be read 16 bytes at a time
  const T *q, *k, *v;
  const T *grad, *o_in;  // of the gradient
  const Wide<T>* lse_in;
  T* o;          // of the forward
  Wide<T>* lse;  // statistics of halves are f32
  T *dq, *dk, *dv_out;
  HeadStrides sq, sk, sv, so;
  AttentionMask mask;
  AttentionDropout<Wide<T>> dropout;
  Wide<T>* delta;  // sum(do * o) for each query, [b, hq, s]

  __device__ int64_t KvHead(int64_t h) const { return h / (hq / hkv); }
  __device__ int64_t Statistic(int64_t bi, int64_t h, int64_t i) const {
    return (bi * hq + h) * s + i;
  }
  // Keys that some query of [.., last] sees are before this.
  __device__ int64_t KeyEnd(int64_t last) const {
    int64_t end = causal ? last + diagonal + 1 : t;
    return end < 0 ? 0 : end < t ? end : t;
  }
  // Queries that see some key of [first, ..] begin here.
  __device__ int64_t QueryBegin(int64_t first) const {
    int64_t begin = causal ? first - diagonal : 0;
    return begin < 0 ? 0 : begin;
  }
  __device__ bool Sees(int64_t i, int64_t j) const {
    return i < s && j < t && (!causal || j <= i + diagonal);
  }
  // Whether all queries of [first, first + queries) see all keys before `end`.
  __device__ bool SeeAll(int64_t first, int queries, int64_t end) const {
    return Sees(first, end - 1) && first + queries <= s;
  }
};

// delta, a warp per query.
template <typename T>
struct DeltaRows {
  Attention<T> a;
  __device__ void operator()(int64_t group) const {
    const int64_t row = group * (blockDim.x / 32) + threadIdx.x / 32;
    Wide<T> sum = 0;
    if (row < a.b * a.hq * a.s) {
      int64_t at = a.so.At(row / (a.hq * a.s), row / a.s % a.hq, row % a.s);
      for (int c = static_cast<int>(threadIdx.x % 32); c < a.dv; c += 32) {
        sum += Widen(a.grad[at + c]) * Widen(a.o_in[at + c]);
      }
    }
    for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
    if (threadIdx.x % 32 == 0 && row < a.b * a.hq * a.s) a.delta[row] = sum;
  }
};
template <typename T>
void LaunchDelta(const Launch& launch, const Attention<T>& a) {
  int64_t groups = CeilDiv(a.b * a.hq * a.s, 8);
  LaunchKernel(launch, RowsKernel<DeltaRows<T>>, groups, 256, 0, DeltaRows<T>{a}, groups);
}

// The kernels, each in its file; of tiles, null where the GPU's shared memory is too small.
// `a.delta` is set when they enqueue.
KernelPtr MakePlainForward(const Attention<float>& a);
KernelPtr MakePlainForward(const Attention<double>& a);
KernelPtr MakePlainBackward(const Attention<float>& a);
KernelPtr MakePlainBackward(const Attention<double>& a);
KernelPtr MakeTiledForward(Attention<float> a);
KernelPtr MakeTiledBackward(Attention<float> a);
KernelPtr MakeMmaForward(const Attention<BF16>& a);
KernelPtr MakeMmaForward(const Attention<F16>& a);
KernelPtr MakeMmaBackward(const Attention<BF16>& a);
KernelPtr MakeMmaBackward(const Attention<F16>& a);

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
