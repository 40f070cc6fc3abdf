// Attention of bf16 operands, with AMX or with AVX512_BF16 alone. Everything is computed
// transposed, S^T = K Q^T: a query is then a column, so that softmax works on whole vectors of
// queries, and P^T is what dV and dK need on the left. P and dS are rounded to bf16 for the
// products that follow.
#if defined(__AMX_BF16__)
#include "runtime/cpu/kernels/amx.h"
#else
#include "runtime/cpu/kernels/dot_bf16.h"
#endif
#include "runtime/cpu/kernels/attention_blocks.h"
#include "runtime/cpu/kernels/attention_kept.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"
#include "runtime/cpu/kernels/transpose.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

using Forward16 = AttentionForwardArgsOf<uint16_t>;
using Backward16 = AttentionBackwardArgsOf<uint16_t>;

constexpr int64_t kBlock = 64;  // queries, and keys
constexpr int64_t kVectors = kBlock / kLanes;

// Two rows of 16 elements as 16 pairs.
SHARDC_INLINE void StorePairs(VecHalf even, VecHalf odd, uint16_t* to) {
  typedef uint32_t Unaligned __attribute__((vector_size(64), aligned(4), may_alias));
  const VecUint pairs =
      __builtin_convertvector(even, VecUint) | (__builtin_convertvector(odd, VecUint) << 16);
  *reinterpret_cast<Unaligned*>(to) = pairs;
}

// Rows [rows, kBlock) and columns [d, padded) are zero.
void CopyRows(const uint16_t* src, int64_t stride, int64_t rows, int64_t d, int64_t padded,
              uint16_t* dst) {
  for (int64_t r = 0; r < kBlock; ++r, dst += padded) {
    const int64_t used = r < rows ? d : 0;
    __builtin_memcpy(dst, src + r * stride, static_cast<size_t>(used) * 2);
    for (int64_t c = used; c < padded; ++c) dst[c] = 0;
  }
}

// dst[c][r] = rows[r][c] of a block copied by CopyRows.
void TransposeRows(const uint16_t* rows, int64_t padded, uint16_t* dst) {
  for (int64_t c = 0; c < padded; c += 8) {
    for (int64_t r = 0; r < kBlock; r += 8) {
      TransposeBlock(rows + r * padded + c, padded, dst + c * kBlock + r, kBlock);
    }
  }
}

// The same block as the right operand of a product over its rows: pairs of rows.
void PairRows(const uint16_t* rows, int64_t padded, uint16_t* dst) {
  for (int64_t r = 0; r < kBlock; r += 2) {
    const uint16_t* even = rows + r * padded;
    for (int64_t c = 0; c < padded; c += kLanes) {
      StorePairs(*reinterpret_cast<const UnalignedVecHalf*>(even + c),
                 *reinterpret_cast<const UnalignedVecHalf*>(even + padded + c),
                 dst + r * padded + 2 * c);
    }
  }
}

// ... of a product over its columns: the pairs of a row become a column.
void PairColumns(const uint16_t* rows, int64_t padded, uint16_t* dst) {
  typedef int32_t Words __attribute__((vector_size(64)));
  Words index;
  for (int i = 0; i < 16; ++i) index[i] = i * static_cast<int>(padded * 2);
  for (int64_t c = 0; c < padded; c += 2) {
    for (int64_t r = 0; r < kBlock; r += 16) {
      // The masked form: GCC 12 takes an operand of the other for uninitialized.
      const __m512i column = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff,
                                                         (__m512i)index, rows + r * padded + c, 1);
      _mm512_storeu_si512(dst + c * kBlock + 2 * r, column);
    }
  }
}

// To nearest even; subnormals become 0.
SHARDC_INLINE VecHalf Round(Vec v) { return (VecHalf)_mm512_cvtneps_pbh((__m512)v); }

using Blocks = MaskBlocks<kBlock, kBlock>;

// m[j] are the queries [i, i + kLanes) of what MaskLanes gives of key j0 + j.
SHARDC_INLINE void MaskTransposed(const AttentionShape& s, const AttentionMask& mask, int64_t b,
                                  int64_t h, int64_t i, int64_t j0, Vec* m) {
  const int64_t keys = MinOf(kLanes, s.kv_len - j0);
  for (int64_t r = 0; r < kLanes; ++r) {
    m[r] = i + r < s.q_len && keys > 0 ? MaskLanes(mask, PlaceInMask(mask, b, h, i + r, j0), keys)
                                       : Vec{};
  }
  TransposeInPlace(m);
}

// Multiplies the scores by the scale and applies the mask, where there is one, and what is hidden;
// s[key][query] of the keys [j0, j0 + kBlock) and the queries [i0, i0 + kBlock).
void ScaleAndMask(const AttentionShape& shape, const AttentionMask* mask, int64_t b, int64_t h,
                  int64_t i0, int64_t j0, float* s) {
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    for (int64_t k0 = 0; k0 < kBlock; k0 += kLanes) {
      Vec m[kLanes];
      if (mask != nullptr) MaskTransposed(shape, *mask, b, h, i0 + q, j0 + k0, m);
      for (int64_t k = 0; k < kLanes; ++k) {
        const int64_t j = j0 + k0 + k;
        float* at = s + (k0 + k) * kBlock + q;
        Vec x = Load(at) * shape.scale;
        if (mask != nullptr) x = Masked(*mask, x, m[k]);
        if (shape.causal) {
          const int64_t first = MinOf(MaxOf(j - shape.diagonal - i0 - q, 0), kLanes);
          x = lane < static_cast<int32_t>(first) ? Splat(kNegInf) : x;
        }
        Store(at, j < shape.kv_len ? x : Splat(kNegInf));
      }
    }
  }
}

// Whether the block's scores only need their scale.
bool AllVisible(const AttentionShape& s, BlockMask does, int64_t i0, int64_t j0) {
  return does == BlockMask::kNone && j0 + kBlock <= VisibleKeys(s, i0);
}

// Room in 16-bit elements and floats, taken from one allocation.
class Room {
 public:
  explicit Room(float* base) : base_(base) {}
  float* Floats(int64_t n) {
    float* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(n, 16);
    return p;
  }
  uint16_t* Halves(int64_t n) { return reinterpret_cast<uint16_t*>(Floats((n + 1) / 2)); }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

struct ForwardRoom {
  int64_t padded, padded_v;   // dims of q and k, and of v and o
  uint16_t *keys, *values_t;  // all blocks of a kv head: [kBlock][padded] and [padded_v][kBlock]
  uint16_t *rows, *queries;   // one block
  uint16_t* pairs;            // P^T as a right operand
  float *scores, *out_t;      // [kBlock][kBlock], [padded_v][kBlock]

  int64_t Take(int64_t key_blocks, float* base) {
    Room room(base);
    keys = room.Halves(key_blocks * kBlock * padded);
    values_t = room.Halves(key_blocks * kBlock * padded_v);
    rows = room.Halves(kBlock * MaxOf(padded, padded_v));
    queries = room.Halves(kBlock * padded);
    pairs = room.Halves(kBlock * kBlock);
    scores = room.Floats(kBlock * kBlock);
    out_t = room.Floats(kBlock * padded_v);
    return room.used();
  }
};

template <bool kDrops>
void ForwardBlock(const Forward16& a, const Blocks& masks, int64_t b, int64_t h, int64_t i0,
                  const ForwardRoom& w) {
  const AttentionShape& s = a.shape;
  const int64_t rows = MinOf(kBlock, s.q_len - i0);
  CopyRows(a.q + b * a.q_strides.batch + h * a.q_strides.head + i0 * a.q_strides.seq,
           a.q_strides.seq, rows, s.head_dim, w.padded, w.rows);
  PairColumns(w.rows, w.padded, w.queries);
  Vec max[kVectors], sum[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) max[v] = Splat(kNegInf), sum[v] = Vec{};
  for (int64_t i = 0; i < kBlock * w.padded_v; i += kLanes) Store(w.out_t + i, Vec{});
  const int64_t last = VisibleKeys(s, i0 + rows - 1);
  for (int64_t j0 = 0; j0 < last; j0 += kBlock) {
    const BlockMask does = masks.Of(b, h, i0, j0);
    if (does == BlockMask::kHidden) continue;
    TileProduct<false>(kBlock, kBlock, w.padded, w.keys + j0 * w.padded, w.padded, w.queries,
                       2 * kBlock, w.scores, kBlock);
    const bool plain = AllVisible(s, does, i0, j0);
    const AttentionMask* mask = does == BlockMask::kMixed ? &a.mask : nullptr;
    if (!plain) ScaleAndMask(s, mask, b, h, i0, j0, w.scores);
    const float scale = plain ? s.scale : 1.0F;
    Kept kept;
    if (kDrops) kept.Draw(a.dropout, b, h, i0, rows, j0);
    Vec shift[kVectors], factor[kVectors];
    bool same = true;
    for (int64_t v = 0; v < kVectors; ++v) {
      // With a negative scale the least score becomes the largest.
      Vec m = Load(w.scores + v * kLanes);
      for (int64_t k = 1; k < kBlock; ++k) {
        const Vec x = Load(w.scores + k * kBlock + v * kLanes);
        m = scale < 0 ? Min(m, x) : Max(m, x);
      }
      m = Max(max[v], m * scale);
      shift[v] = m == kNegInf ? Vec{} : m;
      factor[v] = max[v] == kNegInf ? Vec{} : ExpOrZero(max[v] - shift[v]);
      const VecInt changed = max[v] != m;
      for (int i = 0; i < kLanes; ++i) same = same && changed[i] == 0;
      max[v] = m;
      sum[v] *= factor[v];
    }
    for (int64_t k = 0; k < kBlock; k += 2) {
      for (int64_t v = 0; v < kVectors; ++v) {
        const float* row = w.scores + k * kBlock + v * kLanes;
        Vec even = ExpOrZero(Load(row) * scale - shift[v]);
        Vec odd = ExpOrZero(Load(row + kBlock) * scale - shift[v]);
        sum[v] += even + odd;
        if (kDrops) even = kept.Of(k, v, even), odd = kept.Of(k + 1, v, odd);
        StorePairs(Round(even), Round(odd), w.pairs + k * kBlock + 2 * v * kLanes);
      }
    }
    if (!same) {
      for (int64_t c = 0; c < w.padded_v; ++c) {
        for (int64_t v = 0; v < kVectors; ++v) {
          float* at = w.out_t + c * kBlock + v * kLanes;
          Store(at, Load(at) * factor[v]);
        }
      }
    }
    TileProduct<true>(w.padded_v, kBlock, kBlock, w.values_t + j0 * w.padded_v, kBlock, w.pairs,
                      2 * kBlock, w.out_t, kBlock);
  }
  const HeadStrides& os = a.o_strides;
  uint16_t* o = a.o + b * os.batch + h * os.head + i0 * os.seq;
  for (int64_t q = 0; q < rows; ++q) {
    const float total = sum[q / kLanes][q % kLanes];
    const float inverse = total == 0 ? 0.0F : a.dropout.scale / total;
    for (int64_t c = 0; c < s.value_dim; ++c) {
      Put(o + q * os.seq + c, w.out_t[c * kBlock + q] * inverse);
    }
    if (a.lse != nullptr) {
      a.lse[(b * s.q_heads + h) * s.q_len + i0 + q] =
          total == 0 ? kNegInf : max[q / kLanes][q % kLanes] + __builtin_logf(total);
    }
  }
}

void Forward(const Forward16& a, int threads) {
  const AttentionShape& s = a.shape;
  if (s.batch * s.q_heads == 0 || s.q_len == 0) return;
  const int64_t group = s.q_heads / s.kv_heads, blocks = CeilDiv(s.q_len, kBlock);
  const int64_t key_blocks = CeilDiv(s.kv_len, kBlock), tasks = s.batch * s.kv_heads;
  // Heads that share keys stay together; below one per thread the query blocks are dealt out in
  // turn.
  const int64_t split = tasks < threads ? MinOf(CeilDiv(threads, tasks), group * blocks) : 1;
  const auto forward = a.dropout.drops() ? ForwardBlock<true> : ForwardBlock<false>;
  const Blocks masks(s, a.mask, threads);
  ParallelChunks(threads, tasks * split, [&](int64_t task, int64_t) {
    static thread_local Scratch scratch;
    Tiles tiles;
    const int64_t b = task / split / s.kv_heads, kv = task / split % s.kv_heads;
    ForwardRoom w;
    w.padded = RoundUp(s.head_dim, 32);
    w.padded_v = RoundUp(s.value_dim, 32);
    w.Take(key_blocks, scratch.Get(w.Take(key_blocks, nullptr)));
    const uint16_t* k = a.k + b * a.k_strides.batch + kv * a.k_strides.head;
    const uint16_t* v = a.v + b * a.v_strides.batch + kv * a.v_strides.head;
    for (int64_t j = 0; j < key_blocks; ++j) {
      const int64_t j0 = j * kBlock, rows = MinOf(kBlock, s.kv_len - j0);
      CopyRows(k + j0 * a.k_strides.seq, a.k_strides.seq, rows, s.head_dim, w.padded,
               w.keys + j0 * w.padded);
      CopyRows(v + j0 * a.v_strides.seq, a.v_strides.seq, rows, s.value_dim, w.padded_v, w.rows);
      TransposeRows(w.rows, w.padded_v, w.values_t + j0 * w.padded_v);
    }
    for (int64_t n = task % split; n < group * blocks; n += split) {
      forward(a, masks, b, kv * group + n / blocks, n % blocks * kBlock, w);
    }
  });
}

struct BackwardRoom {
  int64_t padded, padded_v;  // dims of q and k, and of v and o
  // Of one query head, all blocks: q and do as right operands over columns (d) and rows (queries).
  uint16_t *q_columns, *q_rows, *do_columns, *do_rows;
  float *lse, *delta, *dq_t;             // [blocks * kBlock] twice, [blocks][padded][kBlock]
  uint16_t *rows, *k, *v, *k_t;          // one block
  uint16_t *p, *ds, *ds_pairs;           // [key][query]
  float *scores, *dp, *grad_k, *grad_v;  // the last two of one block, or of all with kv_blocks > 1

  int64_t Take(int64_t blocks, int64_t kv_blocks, float* base) {
    Room room(base);
    const int64_t size = kBlock * padded, size_v = kBlock * padded_v;
    q_columns = room.Halves(blocks * size);
    q_rows = room.Halves(blocks * size);
    do_columns = room.Halves(blocks * size_v);
    do_rows = room.Halves(blocks * size_v);
    lse = room.Floats(blocks * kBlock);
    delta = room.Floats(blocks * kBlock);
    dq_t = room.Floats(blocks * size);
    rows = room.Halves(MaxOf(size, size_v));
    k = room.Halves(size);
    v = room.Halves(size_v);
    k_t = room.Halves(size);
    p = room.Halves(kBlock * kBlock);
    ds = room.Halves(kBlock * kBlock);
    ds_pairs = room.Halves(kBlock * kBlock);
    scores = room.Floats(kBlock * kBlock);
    dp = room.Floats(kBlock * kBlock);
    grad_k = room.Floats(kv_blocks * size);
    grad_v = room.Floats(kv_blocks * size_v);
    return room.used();
  }
};

void LoadHead(const Backward16& a, int64_t b, int64_t h, const BackwardRoom& w) {
  const AttentionShape& s = a.shape;
  const uint16_t* q = a.q + b * a.q_strides.batch + h * a.q_strides.head;
  const uint16_t* d_o = a.d_o + b * a.d_o_strides.batch + h * a.d_o_strides.head;
  const uint16_t* o = a.o + b * a.o_strides.batch + h * a.o_strides.head;
  const float* lse = a.lse + (b * s.q_heads + h) * s.q_len;
  const int64_t size = kBlock * w.padded;
  for (int64_t i0 = 0; i0 < s.q_len; i0 += kBlock) {
    const int64_t rows = MinOf(kBlock, s.q_len - i0), at = i0 * w.padded, at_v = i0 * w.padded_v;
    CopyRows(q + i0 * a.q_strides.seq, a.q_strides.seq, rows, s.head_dim, w.padded, w.rows);
    PairColumns(w.rows, w.padded, w.q_columns + at);
    PairRows(w.rows, w.padded, w.q_rows + at);
    CopyRows(d_o + i0 * a.d_o_strides.seq, a.d_o_strides.seq, rows, s.value_dim, w.padded_v,
             w.rows);
    PairColumns(w.rows, w.padded_v, w.do_columns + at_v);
    PairRows(w.rows, w.padded_v, w.do_rows + at_v);
    for (int64_t r = 0; r < kBlock; ++r) {
      const int64_t i = i0 + r;
      // p = exp(s - lse) is 0 for what sees no key, and beyond the last query.
      w.lse[i] = r < rows && lse[i] != kNegInf ? lse[i] : -kNegInf;
      Vec dot = {};
      if (r < rows) {
        ForLanes(0, s.value_dim, [&](int64_t c, int64_t n) {
          dot += LoadN(o + i * a.o_strides.seq + c, n) * LoadN(d_o + i * a.d_o_strides.seq + c, n);
        });
      }
      w.delta[i] = Sum(dot);
    }
    for (int64_t i = 0; i < size; i += kLanes) Store(w.dq_t + at + i, Vec{});
  }
}

template <bool kDrops>
void BackwardBlock(const Backward16& a, BlockMask does, int64_t b, int64_t h, int64_t i0,
                   int64_t j0, const BackwardRoom& w, float* grad_k, float* grad_v) {
  const AttentionShape& s = a.shape;
  const int64_t at = i0 * w.padded, at_v = i0 * w.padded_v;
  TileProduct<false>(kBlock, kBlock, w.padded, w.k, w.padded, w.q_columns + at, 2 * kBlock,
                     w.scores, kBlock);
  TileProduct<false>(kBlock, kBlock, w.padded_v, w.v, w.padded_v, w.do_columns + at_v, 2 * kBlock,
                     w.dp, kBlock);
  const bool plain = AllVisible(s, does, i0, j0);
  const AttentionMask* mask = does == BlockMask::kMixed ? &a.mask : nullptr;
  if (!plain) ScaleAndMask(s, mask, b, h, i0, j0, w.scores);
  const float scale = plain ? s.scale : 1.0F;
  Kept kept;
  if (kDrops) kept.Draw(a.dropout, b, h, i0, MinOf(kBlock, s.q_len - i0), j0);
  for (int64_t v = 0; v < kVectors; ++v) {
    const Vec lse = Load(w.lse + i0 + v * kLanes), delta = Load(w.delta + i0 + v * kLanes);
    for (int64_t k = 0; k < kBlock; k += 2) {
      VecHalf ds[2];
      for (int64_t r = 0; r < 2; ++r) {
        const int64_t x = (k + r) * kBlock + v * kLanes;
        const Vec p = ExpOrZero(Load(w.scores + x) * scale - lse);
        Vec dp = Load(w.dp + x), dropped = p;
        if (kDrops) {
          dp = kept.Of(k + r, v, dp) * a.dropout.scale;
          dropped = kept.Of(k + r, v, p) * a.dropout.scale;
        }
        ds[r] = Round(p * (dp - delta) * s.scale);
        *reinterpret_cast<UnalignedVecHalf*>(w.p + x) = Round(dropped);
        *reinterpret_cast<UnalignedVecHalf*>(w.ds + x) = ds[r];
      }
      StorePairs(ds[0], ds[1], w.ds_pairs + k * kBlock + 2 * v * kLanes);
    }
  }
  TileProduct<true>(kBlock, w.padded_v, kBlock, w.p, kBlock, w.do_rows + at_v, 2 * w.padded_v,
                    grad_v, w.padded_v);
  TileProduct<true>(kBlock, w.padded, kBlock, w.ds, kBlock, w.q_rows + at, 2 * w.padded, grad_k,
                    w.padded);
  TileProduct<true>(w.padded, kBlock, kBlock, w.k_t, kBlock, w.ds_pairs, 2 * kBlock, w.dq_t + at,
                    kBlock);
}

void WriteRows(const float* src, int64_t padded, int64_t rows, int64_t d, uint16_t* dst,
               int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    ForLanes(0, d, [&](int64_t c, int64_t n) {
      StoreN(dst + r * stride + c, n, LoadN(src + r * padded + c, n));
    });
  }
}

// The key blocks chunk, chunk + chunks, ... of one kv head; finish(h) when dq^T of head h is whole.
template <typename Finish>
void KeyBlocks(const Backward16& a, const Blocks& masks, int64_t b, int64_t kv, int64_t chunk,
               int64_t chunks, const BackwardRoom& w, const Finish& finish) {
  const AttentionShape& s = a.shape;
  const int64_t group = s.q_heads / s.kv_heads;
  const int64_t size = kBlock * w.padded, size_v = kBlock * w.padded_v;
  const auto backward = a.dropout.drops() ? BackwardBlock<true> : BackwardBlock<false>;
  for (int64_t g = 0; g < group; ++g) {
    const int64_t h = kv * group + g;
    LoadHead(a, b, h, w);
    int64_t held = 0;  // blocks
    for (int64_t j0 = chunk * kBlock; j0 < s.kv_len; j0 += chunks * kBlock) {
      const int64_t keys = MinOf(kBlock, s.kv_len - j0);
      CopyRows(a.k + b * a.k_strides.batch + kv * a.k_strides.head + j0 * a.k_strides.seq,
               a.k_strides.seq, keys, s.head_dim, w.padded, w.k);
      CopyRows(a.v + b * a.v_strides.batch + kv * a.v_strides.head + j0 * a.v_strides.seq,
               a.v_strides.seq, keys, s.value_dim, w.padded_v, w.v);
      TransposeRows(w.k, w.padded, w.k_t);
      float *grad_k = w.grad_k + held * size, *grad_v = w.grad_v + held * size_v;
      if (group > 1) ++held;
      if (g == 0) {
        for (int64_t i = 0; i < size; i += kLanes) Store(grad_k + i, Vec{});
        for (int64_t i = 0; i < size_v; i += kLanes) Store(grad_v + i, Vec{});
      }
      for (int64_t i0 = 0; i0 < s.q_len; i0 += kBlock) {
        if (VisibleKeys(s, MinOf(i0 + kBlock, s.q_len) - 1) <= j0) continue;
        const BlockMask does = masks.Of(b, h, i0, j0);
        if (does != BlockMask::kHidden) backward(a, does, b, h, i0, j0, w, grad_k, grad_v);
      }
      if (g + 1 < group) continue;
      WriteRows(grad_k, w.padded, keys, s.head_dim,
                a.dk + b * a.dk_strides.batch + kv * a.dk_strides.head + j0 * a.dk_strides.seq,
                a.dk_strides.seq);
      WriteRows(grad_v, w.padded_v, keys, s.value_dim,
                a.dv + b * a.dv_strides.batch + kv * a.dv_strides.head + j0 * a.dv_strides.seq,
                a.dv_strides.seq);
    }
    finish(h);
  }
}

void Backward(const Backward16& a, int threads) {
  const AttentionShape& s = a.shape;
  const int64_t tasks = s.batch * s.kv_heads;
  if (tasks == 0 || (s.q_len == 0 && s.kv_len == 0)) return;
  const int64_t blocks = CeilDiv(s.q_len, kBlock), key_blocks = CeilDiv(s.kv_len, kBlock);
  // Below one kv head per thread the key blocks of a head are dealt out to several tasks, whose
  // parts of dq are added up afterwards in their order.
  int64_t chunks = tasks < threads ? MinOf(CeilDiv(threads, tasks), key_blocks) : 1;
  if (chunks < 1) chunks = 1;
  const int64_t held = s.q_heads == s.kv_heads ? 1 : CeilDiv(key_blocks, chunks);
  const int64_t part = s.batch * s.q_heads * s.q_len * s.head_dim;
  Scratch partial_scratch;
  float* partial = chunks > 1 ? partial_scratch.Get(chunks * part) : nullptr;
  const Blocks masks(s, a.mask, threads);
  ParallelChunks(threads, tasks * chunks, [&](int64_t task, int64_t) {
    static thread_local Scratch scratch;
    Tiles tiles;
    const int64_t b = task / chunks / s.kv_heads, kv = task / chunks % s.kv_heads;
    const int64_t chunk = task % chunks;
    BackwardRoom w;
    w.padded = RoundUp(s.head_dim, 32);
    w.padded_v = RoundUp(s.value_dim, 32);
    w.Take(blocks, held, scratch.Get(w.Take(blocks, held, nullptr)));
    KeyBlocks(a, masks, b, kv, chunk, chunks, w, [&](int64_t h) {
      uint16_t* dq = a.dq + b * a.dq_strides.batch + h * a.dq_strides.head;
      float* mine = partial + chunk * part + (b * s.q_heads + h) * s.q_len * s.head_dim;
      for (int64_t i = 0; i < s.q_len; ++i) {
        const float* column = w.dq_t + i / kBlock * kBlock * w.padded + i % kBlock;
        for (int64_t c = 0; c < s.head_dim; ++c) {
          if (chunks == 1) {
            Put(dq + i * a.dq_strides.seq + c, column[c * kBlock]);
          } else {
            mine[i * s.head_dim + c] = column[c * kBlock];
          }
        }
      }
    });
  });
  if (chunks > 1) SumQueryGradients(a, partial, chunks, threads);
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {
    .forward = nullptr, .backward = nullptr, .forward_bf16 = Forward, .backward_bf16 = Backward};

}  // namespace shardc::cpu::SHARDC_ISA
