#include "runtime/cpu/kernels/attention_blocks.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kQueryBlock = 48;  // a multiple of kTileRows
constexpr int64_t kKeyBlock = 128;   // measured: 10% over 64, fewer rescalings

// Keys transposed per block and values padded, packed once per kv head; then one block of queries
// at a time.
struct Workspace {
  int64_t d;       // head_dim
  int64_t padded;  // head_dim rounded up to whole vectors
  float* keys_t;   // [key blocks][d][kKeyBlock]
  float* values;   // [kv_len][padded]
  float* queries;  // [kQueryBlock][d], scaled
  float* out;      // [kQueryBlock][padded]
  float* scores;   // [kTileRows][kKeyBlock]
  float max[kQueryBlock];
  Vec sum[kQueryBlock];  // lane by lane; added up at the end
};

// Softmax of one row of scores against the running maximum; returns the factor for what was
// accumulated before.
SHARDC_INLINE float OnlineSoftmax(float* s, int64_t padded, float* max, Vec* sum) {
  Vec m = Splat(*max);
  for (int64_t j = 0; j < padded; j += kLanes) m = Max(m, Load(s + j));
  const float new_max = MaxOf(m);
  const float shift = new_max == kNegInf ? 0.0f : new_max;
  Vec total = {};
  for (int64_t j = 0; j < padded; j += kLanes) {
    const Vec p = Exp(Load(s + j) - shift);
    Store(s + j, p);
    total += p;
  }
  float factor = 1;
  if (*max != new_max) {
    factor = *max == kNegInf ? 0.0f : Exp(Splat(*max - shift))[0];
    *max = new_max;
  }
  *sum = *sum * factor + total;
  return factor;
}

template <typename T>
void QueryBlock(const AttentionForwardArgsOf<T>& a, int64_t b, int64_t h, int64_t i0, int64_t rows,
                Workspace& w) {
  const AttentionShape& s = a.shape;
  const HeadStrides& qs = a.q_strides;
  PackRows(a.q + b * qs.batch + h * qs.head + i0 * qs.seq, qs.seq, rows, rows, w.d, w.d, s.scale,
           w.queries);
  for (int64_t i = 0; i < rows * w.padded; ++i) w.out[i] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    w.max[i] = kNegInf;
    w.sum[i] = Vec{};
  }
  const bool masked = a.mask.add != nullptr || a.mask.visible != nullptr;
  const int64_t last = VisibleKeys(s, i0 + rows - 1);
  for (int64_t j0 = 0; j0 < last; j0 += kKeyBlock) {
    const float* keys_t = w.keys_t + j0 * w.d;
    const float* values = w.values + j0 * w.padded;
    for (int64_t r0 = 0; r0 < rows; r0 += kTileRows) {
      const int tile = static_cast<int>(MinOf(kTileRows, rows - r0));
      const int64_t seen = MinOf(kKeyBlock, VisibleKeys(s, i0 + r0 + tile - 1) - j0);
      if (seen <= 0) continue;
      const int64_t padded = RoundUp(seen, kLanes);
      MicroGemm<false>(tile, padded, w.d, {w.queries + r0 * w.d, w.d, 1}, keys_t, kKeyBlock,
                       w.scores, kKeyBlock);
      for (int r = 0; r < tile; ++r) {
        const int64_t i = r0 + r;
        float* row = w.scores + r * kKeyBlock;
        int64_t visible = MinOf(kKeyBlock, VisibleKeys(s, i0 + i) - j0);
        if (visible < 0) visible = 0;
        if (masked || visible < padded) MaskRow(a.mask, b, h, i0 + i, j0, visible, padded, row);
        const float factor = OnlineSoftmax(row, padded, &w.max[i], &w.sum[i]);
        if (factor != 1) {
          float* out = w.out + i * w.padded;
          for (int64_t c = 0; c < w.padded; c += kLanes) Store(out + c, Load(out + c) * factor);
        }
      }
      MicroGemm<true>(tile, w.padded, seen, {w.scores, kKeyBlock, 1}, values, w.padded,
                      w.out + r0 * w.padded, w.padded);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const HeadStrides& os = a.o_strides;
    T* o = a.o + b * os.batch + h * os.head + (i0 + i) * os.seq;
    const float sum = Sum(w.sum[i]);
    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    for (int64_t c = 0; c < w.d; ++c) Put(o + c, w.out[i * w.padded + c] * inverse);
    if (a.lse != nullptr) {
      a.lse[(b * s.q_heads + h) * s.q_len + i0 + i] =
          sum == 0 ? kNegInf : w.max[i] + __builtin_logf(sum);
    }
  }
}

template <typename T>
void Forward(const AttentionForwardArgsOf<T>& a, int threads) {
  const AttentionShape& s = a.shape;
  const int64_t heads = s.batch * s.q_heads;
  if (heads == 0 || s.q_len == 0) return;
  const int64_t group = s.q_heads / s.kv_heads;
  const int64_t blocks = CeilDiv(s.q_len, kQueryBlock);
  // Heads that share keys stay together; below one per thread the query blocks are dealt out in
  // turn.
  int64_t tasks = s.batch * s.kv_heads;
  int64_t split = 1;
  if (tasks < threads) split = MinOf(CeilDiv(threads, tasks), group * blocks);
  ParallelChunks(threads, tasks * split, [&](int64_t task, int64_t) {
    static thread_local Scratch scratch;
    const int64_t b = task / split / s.kv_heads;
    const int64_t kv = task / split % s.kv_heads;
    Workspace w;
    w.d = s.head_dim;
    w.padded = RoundUp(w.d, kLanes);
    const int64_t keys = RoundUp(s.kv_len, kKeyBlock);
    w.keys_t = scratch.Get(RoundUp(keys * w.d, 16) + keys * w.padded +
                           kQueryBlock * (w.d + w.padded) + kTileRows * kKeyBlock);
    w.values = w.keys_t + RoundUp(keys * w.d, 16);
    w.out = w.values + keys * w.padded;
    w.scores = w.out + kQueryBlock * w.padded;
    w.queries = w.scores + kTileRows * kKeyBlock;
    const T* k = a.k + b * a.k_strides.batch + kv * a.k_strides.head;
    const T* v = a.v + b * a.v_strides.batch + kv * a.v_strides.head;
    for (int64_t j = 0; j < s.kv_len; j += kKeyBlock) {
      PackTransposed<kKeyBlock>(k + j * a.k_strides.seq, a.k_strides.seq,
                                MinOf(kKeyBlock, s.kv_len - j), w.d, w.keys_t + j * w.d);
    }
    PackRows(v, a.v_strides.seq, s.kv_len, s.kv_len, w.d, w.padded, 1, w.values);
    for (int64_t n = task % split; n < group * blocks; n += split) {
      const int64_t i0 = n % blocks * kQueryBlock;
      QueryBlock(a, b, kv * group + n / blocks, i0, MinOf(kQueryBlock, s.q_len - i0), w);
    }
  });
}

}  // namespace

void AttentionBackward(const AttentionBackwardArgs& a, int threads);
void AttentionBackwardBf16(const AttentionBackwardArgsOf<uint16_t>& a, int threads);

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {.forward = Forward<float>,
                                            .backward = AttentionBackward,
                                            .forward_bf16 = Forward<uint16_t>,
                                            .backward_bf16 = AttentionBackwardBf16};

}  // namespace shardc::cpu::SHARDC_ISA
