#include "runtime/cpu/kernels/attention_blocks.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kQueryBlock = 48;  // a multiple of kTileRows
constexpr int64_t kKeyBlock = 64;
using Blocks = MaskBlocks<kQueryBlock, kKeyBlock>;
constexpr int64_t kFactors = kTileRows > kLanes ? 2 * kLanes : kLanes;

// Keys transposed per block and values padded, packed once per kv head; then one block of queries
// at a time.
struct Workspace {
  int64_t d;       // head_dim
  int64_t padded;  // value_dim rounded up to whole vectors
  float* keys_t;   // [key blocks][d][kKeyBlock]
  float* values;   // [kv_len][padded]
  float* queries;  // [kQueryBlock][d], scaled
  float* out;      // [kQueryBlock][padded]
  float* scores;   // [kTileRows][kKeyBlock]
  float max[kQueryBlock];
  Vec sum[kQueryBlock];  // lane by lane; added up at the end
};

// Softmax of a tile of rows of scores against their running maxima. factor[r], for the rows that
// there are and as many more as fill a vector, is for what was accumulated of row r before.
SHARDC_INLINE void OnlineSoftmax(int rows, int64_t padded, float* scores, float* max, Vec* sum,
                                 float* factor) {
  float shift[kTileRows];
  for (int64_t r = 0; r < kFactors; ++r) factor[r] = 0;
  for (int r = 0; r < rows; ++r) {
    const float* s = scores + r * kKeyBlock;
    Vec m = Load(s);
    for (int64_t j = kLanes; j < padded; j += kLanes) m = Max(m, Load(s + j));
    const float most = MaxOf(Max(Splat(max[r]), m));
    shift[r] = most == kNegInf ? 0.0f : most;
    factor[r] = max[r] - shift[r];
    max[r] = most;
  }
  for (int64_t r = 0; r < kFactors; r += kLanes) Store(factor + r, ExpOrZero(Load(factor + r)));
  for (int r = 0; r < rows; ++r) {
    float* s = scores + r * kKeyBlock;
    Vec total = {};
    for (int64_t j = 0; j < padded; j += kLanes) {
      const Vec p = ExpOrZero(Load(s + j) - shift[r]);
      Store(s + j, p);
      total += p;
    }
    sum[r] = sum[r] * factor[r] + total;
  }
}

// Zero where the probabilities [i, i + rows) of the keys [j0, j0 + seen) are dropped.
void DropRows(const AttentionDropout& dropout, int64_t b, int64_t h, int64_t i, int64_t rows,
              int64_t j0, int64_t seen, float* scores) {
  float room[RoomForFactors(kKeyBlock)];
  for (int64_t r = 0; r < rows; ++r, scores += kKeyBlock) {
    const float* keep = DrawFactors(dropout.draw, dropout.First(b, h, i + r) + j0, seen, 1, room);
    for (int64_t j = 0; j < seen; ++j) scores[j] *= keep[j];
  }
}

template <typename T>
void QueryBlock(const AttentionForwardArgsOf<T>& a, const Blocks& blocks, int64_t b, int64_t h,
                int64_t i0, int64_t rows, Workspace& w) {
  const AttentionShape& s = a.shape;
  const HeadStrides& qs = a.q_strides;
  PackRows(a.q + b * qs.batch + h * qs.head + i0 * qs.seq, qs.seq, rows, rows, w.d, w.d, s.scale,
           w.queries);
  for (int64_t i = 0; i < rows * w.padded; ++i) w.out[i] = 0;
  for (int64_t i = 0; i < rows; ++i) {
    w.max[i] = kNegInf;
    w.sum[i] = Vec{};
  }
  const int64_t last = VisibleKeys(s, i0 + rows - 1);
  for (int64_t j0 = 0; j0 < last; j0 += kKeyBlock) {
    const BlockMask does = blocks.Of(b, h, i0, j0);
    if (does == BlockMask::kHidden) continue;
    const float* keys_t = w.keys_t + j0 * w.d;
    const float* values = w.values + j0 * w.padded;
    for (int64_t r0 = 0; r0 < rows; r0 += kTileRows) {
      const int tile = static_cast<int>(MinOf(kTileRows, rows - r0));
      const int64_t seen = MinOf(kKeyBlock, VisibleKeys(s, i0 + r0 + tile - 1) - j0);
      if (seen <= 0) continue;
      const int64_t padded = RoundUp(seen, kLanes);
      MicroGemm<Into::kNew>(tile, padded, w.d, {w.queries + r0 * w.d, w.d, 1}, keys_t, kKeyBlock,
                            w.scores, kKeyBlock);
      for (int r = 0; r < tile; ++r) {
        const int64_t i = i0 + r0 + r;
        int64_t visible = MinOf(kKeyBlock, VisibleKeys(s, i) - j0);
        if (visible < 0) visible = 0;
        float* row = w.scores + r * kKeyBlock;
        if (does == BlockMask::kMixed) MaskRow(a.mask, b, h, i, j0, visible, row);
        FillFrom(visible, padded, kNegInf, row);
      }
      float factor[kFactors];
      OnlineSoftmax(tile, padded, w.scores, w.max + r0, w.sum + r0, factor);
      if (a.dropout.drops()) DropRows(a.dropout, b, h, i0 + r0, tile, j0, seen, w.scores);
      MicroGemm<Into::kScaledSum>(tile, w.padded, seen, {w.scores, kKeyBlock, 1}, values, w.padded,
                                  w.out + r0 * w.padded, w.padded, factor);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const HeadStrides& os = a.o_strides;
    T* o = a.o + b * os.batch + h * os.head + (i0 + i) * os.seq;
    const float sum = Sum(w.sum[i]);
    const float inverse = sum == 0 ? 0.0f : a.dropout.scale / sum;
    for (int64_t c = 0; c < s.value_dim; ++c) Put(o + c, w.out[i * w.padded + c] * inverse);
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
  const Blocks masks(s, a.mask, threads);
  ParallelChunks(threads, tasks * split, [&](int64_t task, int64_t) {
    static thread_local Scratch scratch;
    const int64_t b = task / split / s.kv_heads;
    const int64_t kv = task / split % s.kv_heads;
    Workspace w;
    w.d = s.head_dim;
    w.padded = RoundUp(s.value_dim, kLanes);
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
    PackRows(v, a.v_strides.seq, s.kv_len, s.kv_len, s.value_dim, w.padded, 1, w.values);
    for (int64_t n = task % split; n < group * blocks; n += split) {
      const int64_t i0 = n % blocks * kQueryBlock;
      QueryBlock(a, masks, b, kv * group + n / blocks, i0, MinOf(kQueryBlock, s.q_len - i0), w);
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
