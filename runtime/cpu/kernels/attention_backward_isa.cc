#include "runtime/cpu/kernels/attention_blocks.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"

namespace shardc::cpu::SHARDC_ISA {

void AttentionBackward(const AttentionBackwardArgs& a, int threads);
void AttentionBackwardBf16(const AttentionBackwardArgsOf<uint16_t>& a, int threads);

namespace {

constexpr int64_t kQueryBlock = 48;  // a multiple of kTileRows
constexpr int64_t kKeyBlock = 64;
using Blocks = MaskBlocks<kQueryBlock, kKeyBlock>;

// Everything one task touches, rows of d (of q and k) and d_v (of v and o) padded to whole vectors.
struct Workspace {
  int64_t d, padded;
  int64_t d_v, padded_v;
  int64_t
      held_keys;    // of one block; of all blocks of the task where several query heads add to them
  float* queries;   // [q_len][padded], not scaled
  float* grad_out;  // [q_len][padded_v]
  float* delta;     // [q_len]: do . o
  float* grad_q;    // [q_len][padded]
  float* keys;      // [kKeyBlock][padded]
  float* keys_t;    // [d][kKeyBlock]
  float* values_t;  // [d_v][kKeyBlock]
  float* grad_k;    // [held_keys][padded]
  float* grad_v;    // [held_keys][padded_v]
  float* p;         // [kQueryBlock][kKeyBlock]
  float* ds;        // [kQueryBlock][kKeyBlock]
};

// Points `w` into `base`, or only counts when that is null. Returns the number of floats taken.
int64_t Carve(Workspace& w, int64_t q_len, float* base) {
  int64_t used = 0;
  const auto take = [&](int64_t count) {
    float* p = base == nullptr ? nullptr : base + used;
    used += RoundUp(count, 16);
    return p;
  };
  w.queries = take(q_len * w.padded);
  w.grad_out = take(q_len * w.padded_v);
  w.delta = take(q_len);
  w.grad_q = take(q_len * w.padded);
  w.keys = take(kKeyBlock * w.padded);
  w.keys_t = take(kKeyBlock * w.d);
  w.values_t = take(kKeyBlock * w.d_v);
  w.grad_k = take(w.held_keys * w.padded);
  w.grad_v = take(w.held_keys * w.padded_v);
  w.p = take(kQueryBlock * kKeyBlock);
  w.ds = take(kQueryBlock * kKeyBlock);
  return used;
}

// p and ds of the queries [i0, i0 + rows) and the keys [j0, j0 + kKeyBlock), which a mask changes
// where `masked`. Entries beyond what a
// tile of rows sees are set to zero.
template <typename T>
void ScoreGradients(const AttentionBackwardArgsOf<T>& a, int64_t b, int64_t h, int64_t i0,
                    int64_t rows, int64_t j0, bool masked, Workspace& w) {
  const AttentionShape& s = a.shape;
  const float* lse = a.lse + (b * s.q_heads + h) * s.q_len + i0;
  float room[RoomForFactors(kKeyBlock)];
  for (int64_t r0 = 0; r0 < rows; r0 += kTileRows) {
    const int tile = static_cast<int>(MinOf(kTileRows, rows - r0));
    int64_t seen = MinOf(kKeyBlock, VisibleKeys(s, i0 + r0 + tile - 1) - j0);
    if (seen < 0) seen = 0;
    const int64_t used = RoundUp(seen, kLanes);
    float* p = w.p + r0 * kKeyBlock;
    float* ds = w.ds + r0 * kKeyBlock;
    MicroGemm<Into::kNew>(tile, used, w.d, {w.queries + (i0 + r0) * w.padded, w.padded, 1},
                          w.keys_t, kKeyBlock, p, kKeyBlock);
    MicroGemm<Into::kNew>(tile, used, w.d_v, {w.grad_out + (i0 + r0) * w.padded_v, w.padded_v, 1},
                          w.values_t, kKeyBlock, ds, kKeyBlock);
    for (int r = 0; r < tile; ++r, p += kKeyBlock, ds += kKeyBlock) {
      const int64_t i = i0 + r0 + r;
      int64_t visible = MinOf(kKeyBlock, VisibleKeys(s, i) - j0);
      if (visible < 0) visible = 0;
      const float delta = w.delta[i];
      const float sum = lse[r0 + r] == kNegInf ? -kNegInf : lse[r0 + r];
      const float scale = masked ? 1.0f : s.scale;
      if (masked) {
        for (int64_t j = 0; j < used; ++j) p[j] *= s.scale;
        MaskRow(a.mask, b, h, i, j0, visible, p);
      }
      if (a.dropout.drops()) {
        const float* z =
            DrawFactors(a.dropout.draw, a.dropout.First(b, h, i) + j0, used, a.dropout.scale, room);
        for (int64_t j = 0; j < used; j += kLanes) {
          const Vec e = ExpOrZero(Load(p + j) * scale - sum), factor = Load(z + j);
          Store(p + j, e * factor);
          Store(ds + j, e * (Load(ds + j) * factor - delta) * s.scale);
        }
      } else {
        for (int64_t j = 0; j < used; j += kLanes) {
          const Vec e = ExpOrZero(Load(p + j) * scale - sum);
          Store(p + j, e);
          Store(ds + j, e * (Load(ds + j) - delta) * s.scale);
        }
      }
      FillFrom(visible, kKeyBlock, 0, p);
      FillFrom(visible, kKeyBlock, 0, ds);
    }
  }
}

template <typename T>
void QueryKeyBlock(const AttentionBackwardArgsOf<T>& a, int64_t b, int64_t h, int64_t i0,
                   int64_t rows, int64_t j0, int64_t keys, bool masked, Workspace& w, float* grad_k,
                   float* grad_v) {
  const AttentionShape& s = a.shape;
  ScoreGradients(a, b, h, i0, rows, j0, masked, w);
  for (int64_t r0 = 0; r0 < rows; r0 += kTileRows) {
    const int tile = static_cast<int>(MinOf(kTileRows, rows - r0));
    const int64_t seen = MinOf(keys, VisibleKeys(s, i0 + r0 + tile - 1) - j0);
    if (seen <= 0) continue;
    MicroGemm<Into::kSum>(tile, w.padded, seen, {w.ds + r0 * kKeyBlock, kKeyBlock, 1}, w.keys,
                          w.padded, w.grad_q + (i0 + r0) * w.padded, w.padded);
  }
  for (int64_t c0 = 0; c0 < keys; c0 += kTileRows) {
    const int tile = static_cast<int>(MinOf(kTileRows, keys - c0));
    // The first query of the block that sees any key of this tile.
    int64_t first = s.causal ? j0 + c0 - s.diagonal - i0 : 0;
    if (first < 0) first = 0;
    if (first >= rows) continue;
    const int64_t from = i0 + first;
    MicroGemm<Into::kSum>(
        tile, w.padded_v, rows - first, {w.p + first * kKeyBlock + c0, 1, kKeyBlock},
        w.grad_out + from * w.padded_v, w.padded_v, grad_v + c0 * w.padded_v, w.padded_v);
    MicroGemm<Into::kSum>(tile, w.padded, rows - first,
                          {w.ds + first * kKeyBlock + c0, 1, kKeyBlock},
                          w.queries + from * w.padded, w.padded, grad_k + c0 * w.padded, w.padded);
  }
}

template <typename T>
SHARDC_INLINE void WriteRows(const float* src, int64_t padded, int64_t rows, int64_t d, T* dst,
                             int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < d; ++c) Put(dst + r * stride + c, src[r * padded + c]);
  }
}

// Loads what a query head needs whole: q, do and delta.
template <typename T>
void LoadHead(const AttentionBackwardArgsOf<T>& a, int64_t b, int64_t h, Workspace& w) {
  const AttentionShape& s = a.shape;
  const HeadStrides& qs = a.q_strides;
  const HeadStrides& os = a.o_strides;
  const HeadStrides& ds = a.d_o_strides;
  const T* o = a.o + b * os.batch + h * os.head;
  const T* d_o = a.d_o + b * ds.batch + h * ds.head;
  PackRows(a.q + b * qs.batch + h * qs.head, qs.seq, s.q_len, s.q_len, w.d, w.padded, 1, w.queries);
  PackRows(d_o, ds.seq, s.q_len, s.q_len, w.d_v, w.padded_v, 1, w.grad_out);
  for (int64_t i = 0; i < s.q_len; ++i) {
    Vec dot = {};
    ForLanes(0, w.d_v, [&](int64_t c, int64_t n) {
      dot += LoadN(o + i * os.seq + c, n) * LoadN(d_o + i * ds.seq + c, n);
    });
    w.delta[i] = Sum(dot);
  }
}

// The key blocks chunk, chunk + chunks, ... of one kv head. dq of head h is added into `grad_q` of
// the workspace and handed to finish(h).
template <typename T, typename Finish>
void KeyBlocks(const AttentionBackwardArgsOf<T>& a, const Blocks& masks, int64_t b, int64_t kv,
               int64_t chunk, int64_t chunks, Workspace& w, const Finish& finish) {
  const AttentionShape& s = a.shape;
  const int64_t group = s.q_heads / s.kv_heads;
  const HeadStrides& ks = a.k_strides;
  const HeadStrides& vs = a.v_strides;
  const auto clear = [](float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] = 0;
  };
  for (int64_t g = 0; g < group; ++g) {
    const int64_t h = kv * group + g;
    LoadHead(a, b, h, w);
    clear(w.grad_q, s.q_len * w.padded);
    int64_t held = 0;  // where this block's sums begin
    for (int64_t j0 = chunk * kKeyBlock; j0 < s.kv_len; j0 += chunks * kKeyBlock) {
      const int64_t keys = MinOf(kKeyBlock, s.kv_len - j0);
      const T* k = a.k + b * ks.batch + kv * ks.head + j0 * ks.seq;
      const T* v = a.v + b * vs.batch + kv * vs.head + j0 * vs.seq;
      float* grad_k = w.grad_k + held * w.padded;
      float* grad_v = w.grad_v + held * w.padded_v;
      if (group > 1) held += kKeyBlock;
      PackRows(k, ks.seq, keys, kKeyBlock, w.d, w.padded, 1, w.keys);
      PackTransposed<kKeyBlock>(k, ks.seq, keys, w.d, w.keys_t);
      PackTransposed<kKeyBlock>(v, vs.seq, keys, w.d_v, w.values_t);
      if (g == 0) {
        clear(grad_k, kKeyBlock * w.padded);
        clear(grad_v, kKeyBlock * w.padded_v);
      }
      T* dk = a.dk + b * a.dk_strides.batch + kv * a.dk_strides.head + j0 * a.dk_strides.seq;
      T* dv = a.dv + b * a.dv_strides.batch + kv * a.dv_strides.head + j0 * a.dv_strides.seq;
      const int64_t after = chunks * kKeyBlock,
                    keys_after = MinOf(kKeyBlock, s.kv_len - j0 - after);
      RowsAhead<T> ahead[] = {{dk, a.dk_strides.seq, keys, w.d},
                              {dv, a.dv_strides.seq, keys, w.d_v},
                              {k + after * ks.seq, ks.seq, keys_after, w.d},
                              {v + after * vs.seq, vs.seq, keys_after, w.d_v}};
      for (int64_t i0 = 0; i0 < s.q_len; i0 += kQueryBlock) {
        const int64_t rows = MinOf(kQueryBlock, s.q_len - i0);
        if (VisibleKeys(s, i0 + rows - 1) <= j0) continue;
        const BlockMask does = masks.Of(b, h, i0, j0);
        if (does == BlockMask::kHidden) continue;
        for (RowsAhead<T>& x : ahead) x.Fetch(kKeyBlock / 4);
        QueryKeyBlock(a, b, h, i0, rows, j0, keys, does == BlockMask::kMixed, w, grad_k, grad_v);
      }
      if (g + 1 < group) continue;
      WriteRows(grad_k, w.padded, keys, w.d, dk, a.dk_strides.seq);
      WriteRows(grad_v, w.padded_v, keys, w.d_v, dv, a.dv_strides.seq);
    }
    finish(h);
  }
}

template <typename T>
void Backward(const AttentionBackwardArgsOf<T>& a, int threads) {
  const AttentionShape& s = a.shape;
  const int64_t tasks = s.batch * s.kv_heads;
  if (tasks == 0 || (s.q_len == 0 && s.kv_len == 0)) return;
  // Below one kv head per thread the key blocks of a head are dealt out to several tasks, whose
  // parts of dq are added up afterwards in their order.
  int64_t chunks = 1;
  if (tasks < threads) chunks = MinOf(CeilDiv(threads, tasks), CeilDiv(s.kv_len, kKeyBlock));
  if (chunks < 1) chunks = 1;
  const int64_t blocks =
      s.q_heads == s.kv_heads ? 1 : CeilDiv(CeilDiv(s.kv_len, kKeyBlock), chunks);
  const int64_t part = s.batch * s.q_heads * s.q_len * s.head_dim;
  Scratch partial_scratch;
  float* partial = chunks > 1 ? partial_scratch.Get(chunks * part) : nullptr;
  const Blocks masks(s, a.mask, threads);
  ParallelChunks(threads, tasks * chunks, [&](int64_t task, int64_t) {
    static thread_local Scratch scratch;
    const int64_t b = task / chunks / s.kv_heads;
    const int64_t kv = task / chunks % s.kv_heads;
    const int64_t chunk = task % chunks;
    Workspace w;
    w.d = s.head_dim;
    w.padded = RoundUp(w.d, kLanes);
    w.d_v = s.value_dim;
    w.padded_v = RoundUp(w.d_v, kLanes);
    w.held_keys = blocks * kKeyBlock;
    Carve(w, s.q_len, scratch.Get(Carve(w, s.q_len, nullptr)));
    KeyBlocks(a, masks, b, kv, chunk, chunks, w, [&](int64_t h) {
      if (chunks == 1) {
        const HeadStrides& ds = a.dq_strides;
        WriteRows(w.grad_q, w.padded, s.q_len, w.d, a.dq + b * ds.batch + h * ds.head, ds.seq);
      } else {
        WriteRows(w.grad_q, w.padded, s.q_len, w.d,
                  partial + chunk * part + (b * s.q_heads + h) * s.q_len * w.d, w.d);
      }
    });
  });
  if (chunks > 1) SumQueryGradients(a, partial, chunks, threads);
}

}  // namespace

void AttentionBackward(const AttentionBackwardArgs& a, int threads) { Backward(a, threads); }
void AttentionBackwardBf16(const AttentionBackwardArgsOf<uint16_t>& a, int threads) {
  Backward(a, threads);
}

}  // namespace shardc::cpu::SHARDC_ISA
