// Attention in f32 with heads of at most 128. A block has 64 queries (or keys) and walks over tiles
// of keys (or queries) in shared memory. Scores are in units of log 2.
#include "runtime/cuda/kernels/attention.h"
#include "runtime/cuda/kernels/tiles.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

struct Place {
  int first, h, b;
};
// With a causal mask the last queries and the first keys have the most to do: they come first.
__device__ __forceinline__ Place PlaceOf(int64_t rows, int64_t heads, int64_t batch, bool last) {
  const int tiles = static_cast<int>((rows + kRows - 1) / kRows), of = static_cast<int>(heads);
  const int all = of * static_cast<int>(batch), block = static_cast<int>(blockIdx.x);
  const int tile = block / all;
  return {(last ? tiles - 1 - tile : tile) * kRows, block % all % of, block % all / of};
}

__device__ __forceinline__ Matrix RowsOf(const float* data, const HeadStrides& s, int64_t b,
                                         int64_t h, int64_t rows, int width, bool packed) {
  return {data + s.At(b, h, 0), static_cast<int>(s.row), static_cast<int>(rows), width, packed};
}

// Scores of the pairs that a thread holds: queries from rows_at and keys from cols_at on, or with
// kSwap the other way. Both begin a block's tile. Those of queries that are not there are anything.
// `own`: where a tile of scores has room, of which this thread uses what it holds.
template <bool kSwap, int kColumns>
__device__ __forceinline__ void MaskScores(const Attention<float>& a, const Place& p, int64_t h,
                                           int rows_at, int cols_at, float* own,
                                           float (&s)[4][kColumns]) {
  constexpr int kTile = kColumns * kLanes;
  const float factor = a.scale * kLog2E;
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    SHARDC_UNROLL
    for (float& each : s[r]) each *= factor;
  }
  // Of queries the first sees the fewest keys, of keys the last is seen by the fewest queries.
  const bool all =
      kSwap ? a.QueryBegin(rows_at + kRows - 1) <= cols_at : a.KeyEnd(rows_at) >= cols_at + kTile;
  if (!all) {
    SHARDC_UNROLL
    for (int r = 0; r < 4; ++r) {
      // The keys that it sees end, or the queries that see it begin, at this column.
      const int64_t row = rows_at + FirstRow() + r;
      const int64_t limit = (kSwap ? a.QueryBegin(row) : a.KeyEnd(row)) - cols_at;
      SHARDC_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const int column = n / 4 * 32 + LaneX() * 4 + n % 4;
        if (kSwap ? column < limit : column >= limit) s[r][n] = -Infinity<float>();
      }
    }
  }
  if (!a.mask.data) return;
  // One after the other: code for each would fill the instruction cache.
  ShareRows(own, s);
  SHARDC_UNROLL_BY(1)
  for (int at = 0; at < 4 * kColumns; ++at) {
    const int r = FirstRow() + at / kColumns, n = at % kColumns;
    const int64_t row = rows_at + r, c = cols_at + n / 4 * 32 + LaneX() * 4 + n % 4;
    const int64_t i = kSwap ? c : row, j = kSwap ? row : c;
    float* score = own + At<kTile>(r, n / 4 * kLanes + LaneX()) + n % 4;
    if (a.Sees(i, j)) *score = a.mask.Apply(*score, p.b, h, i, j, kLog2E);
  }
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    SHARDC_UNROLL
    for (int n = 0; n < kColumns; n += 4) {
      const Four v =
          LoadPack<float, 4>(own + At<kTile>(FirstRow(), LaneX()) + r * kTile + n * kLanes);
      SHARDC_UNROLL
      for (int e = 0; e < 4; ++e) s[r][n + e] = v.v[e];
    }
  }
}

// What dropout multiplies the four keys from j on by.
__device__ __forceinline__ Four KeptOf(const Attention<float>& a, const Place& p, int64_t h,
                                       int64_t i, int64_t j, uint32_t now) {
  const int64_t at = a.dropout.Row(p.b, h, i < a.s ? i : a.s - 1) + j;
  const int skip = static_cast<int>(at % 4);
  PhiloxBlock block = a.dropout.draw.Block(at / 4, now);
  uint32_t words[4];
  SHARDC_UNROLL
  for (int e = 0; e < 4; ++e) words[e] = skip + e < 4 ? WordOf(block, skip + e) : 0;
  if (skip > 0) {
    block = a.dropout.draw.Block(at / 4 + 1, now);
    SHARDC_UNROLL
    for (int e = 1; e < 4; ++e) words[e] = skip + e < 4 ? words[e] : WordOf(block, skip + e - 4);
  }
  Four kept;
  SHARDC_UNROLL
  for (int e = 0; e < 4; ++e) kept.v[e] = a.dropout.draw.Keeps(words[e]) ? a.dropout.scale : 0.f;
  return kept;
}
// Calls f(r, n, what dropout multiplies s[r][n] by) for pairs as above.
template <bool kSwap, int kColumns, typename F>
__device__ __forceinline__ void ForDropped(const Attention<float>& a, const Place& p, int64_t h,
                                           int rows_at, int cols_at, F f) {
  const uint32_t now = a.dropout.draw.Step();
  SHARDC_UNROLL
  for (int x = 0; x < kColumns; ++x) {
    // One query of these, four keys: of n, the rows; or of row x % 4, four columns.
    const int r = kSwap ? 0 : x % 4, n = kSwap ? x : x / 4 * 4;
    const int64_t row = rows_at + FirstRow() + r, c = cols_at + n / 4 * 32 + LaneX() * 4 + n % 4;
    const Four kept = KeptOf(a, p, h, kSwap ? c : row, kSwap ? row : c, now);
    SHARDC_UNROLL
    for (int e = 0; e < 4; ++e) f(kSwap ? e : r, kSwap ? n : n + e, kept.v[e]);
  }
}

template <int kD, int kKeys>
__global__ void __launch_bounds__(kThreads, kD > 64 ? 2 : 3) ForwardKernel(Attention<float> a) {
  const Place p = PlaceOf(a.s, a.hq, a.b, true);
  const int64_t kv = a.KvHead(p.h);
  const int first = p.first + FirstRow(), end = static_cast<int>(a.KeyEnd(p.first + kRows - 1));
  const Matrix q = RowsOf(a.q, a.sq, p.b, p.h, a.s, a.d, a.packed),
               k = RowsOf(a.k, a.sk, p.b, kv, end, a.d, a.packed),
               v = RowsOf(a.v, a.sv, p.b, kv, end, a.dv, a.packed);
  float* qs = reinterpret_cast<float*>(SharedMemory());
  float *ks = qs + kRows * kD, *vs = ks + kKeys * kD, *ps = vs + kKeys * kD;
  LoadTile<kD, kRows>(q, p.first, qs);
  LoadTile<kD, kKeys>(k, 0, ks);
  __syncthreads();
  float max[4], sum[4] = {}, o[4][kD / kLanes] = {};
  for (float& each : max) each = -Infinity<float>();
  for (int j0 = 0; j0 < end; j0 += kKeys) {
    float s[4][kKeys / kLanes] = {};
    MultiplyRows<kD>(s, qs, ks, Depth(a.d));
    Transit<kD, kKeys> next;
    next.Fetch(v, j0);
    MaskScores<false>(a, p, p.h, p.first, j0, ps, s);
    SHARDC_UNROLL
    for (int r = 0; r < 4; ++r) {
      float top = max[r];
      SHARDC_UNROLL
      for (float each : s[r]) top = ::fmaxf(top, each);  // a NaN is in the sum
      top = FoldLanes(top, [](float x, float y) { return ::fmaxf(x, y); });
      const float base = top == -Infinity<float>() ? 0.f : top, keep = Exp2(max[r] - base);
      float total = 0;
      SHARDC_UNROLL
      for (float& each : s[r]) total += each = Exp2(each - base);
      sum[r] = sum[r] * keep + total;  // of this lane's columns
      max[r] = top;
      SHARDC_UNROLL
      for (float& each : o[r]) each *= keep;
    }
    if (a.dropout.batch) {
      ForDropped<false, kKeys / kLanes>(a, p, p.h, p.first, j0,
                                        [&](int r, int n, float kept) { s[r][n] *= kept; });
    }
    next.Store(vs);
    ShareRows(ps, s);
    __syncthreads();
    next.Fetch(k, j0 + kKeys);
    MultiplyTile<kD, kKeys>(o, ps, vs);
    next.Store(ks);
    __syncthreads();
  }
  float inverse[4];
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    sum[r] = FoldLanes(sum[r], [](float x, float y) { return x + y; });
    inverse[r] = sum[r] == 0 ? 0.f : 1 / sum[r];
    if (LaneX() == 0 && first + r < a.s) {
      a.lse[a.Statistic(p.b, p.h, first + r)] = LseOf(max[r], sum[r]);
    }
  }
  StoreRows<kD>(a.o + a.so.At(p.b, p.h, first), a.so.row, a.s - first, a.dv, a.packed, o, inverse);
}

// Zero probabilities and gradients of queries that are not there.
__device__ __forceinline__ float BaseAt(const Attention<float>& a, const Place& p, int64_t h,
                                        int64_t i) {
  return i < a.s ? BaseOf(a.lse_in[a.Statistic(p.b, h, i)]) : Infinity<float>();
}
__device__ __forceinline__ float DeltaAt(const Attention<float>& a, const Place& p, int64_t h,
                                         int64_t i) {
  return i < a.s ? a.delta[a.Statistic(p.b, h, i)] : 0.f;
}

template <int kD, int kKeys>
__global__ void __launch_bounds__(kThreads, 2) QueryGradKernel(Attention<float> a) {
  const Place p = PlaceOf(a.s, a.hq, a.b, true);
  const int64_t kv = a.KvHead(p.h);
  const int first = p.first + FirstRow(), end = static_cast<int>(a.KeyEnd(p.first + kRows - 1));
  const Matrix q = RowsOf(a.q, a.sq, p.b, p.h, a.s, a.d, a.packed),
               grad = RowsOf(a.grad, a.so, p.b, p.h, a.s, a.dv, a.packed),
               k = RowsOf(a.k, a.sk, p.b, kv, end, a.d, a.packed),
               v = RowsOf(a.v, a.sv, p.b, kv, end, a.dv, a.packed);
  float* qs = reinterpret_cast<float*>(SharedMemory());
  float *gs = qs + kRows * kD, *ks = gs + kRows * kD, *vs = ks + kKeys * kD, *ps = vs + kKeys * kD;
  LoadTile<kD, kRows>(q, p.first, qs);
  LoadTile<kD, kRows>(grad, p.first, gs);
  LoadTile<kD, kKeys>(k, 0, ks);
  LoadTile<kD, kKeys>(v, 0, vs);
  __syncthreads();
  float base[4], delta[4], dq[4][kD / kLanes] = {};
  SHARDC_UNROLL
  for (int r = 0; r < 4; ++r) {
    base[r] = BaseAt(a, p, p.h, first + r);
    delta[r] = DeltaAt(a, p, p.h, first + r);
  }
  for (int j0 = 0; j0 < end; j0 += kKeys) {
    constexpr int kColumns = kKeys / kLanes;
    float s[4][kColumns] = {}, dp[4][kColumns] = {};
    MultiplyRows<kD>(s, qs, ks, Depth(a.d));
    MultiplyRows<kD>(dp, gs, vs, Depth(a.dv));
    MaskScores<false>(a, p, p.h, p.first, j0, ps, s);
    if (a.dropout.batch) {
      ForDropped<false, kColumns>(a, p, p.h, p.first, j0,
                                  [&](int r, int n, float kept) { dp[r][n] *= kept; });
    }
    SHARDC_UNROLL
    for (int r = 0; r < 4; ++r) {
      SHARDC_UNROLL
      for (int n = 0; n < kColumns; ++n) s[r][n] = Exp2(s[r][n] - base[r]) * (dp[r][n] - delta[r]);
    }
    ShareRows(ps, s);
    __syncwarp();
    Transit<kD, kKeys> next_k, next_v;
    next_k.Fetch(k, j0 + kKeys);
    next_v.Fetch(v, j0 + kKeys);
    MultiplyTile<kD, kKeys>(dq, ps, ks);
    __syncthreads();
    next_k.Store(ks);
    next_v.Store(vs);
    __syncthreads();
  }
  const float scale[4] = {a.scale, a.scale, a.scale, a.scale};
  StoreRows<kD>(a.dq + a.sq.At(p.b, p.h, first), a.sq.row, a.s - first, a.d, a.packed, dq, scale);
}

template <int kD, int kQueries>
__global__ void __launch_bounds__(kThreads, 2) KeyGradKernel(Attention<float> a) {
  const Place p = PlaceOf(a.t, a.hkv, a.b, false);
  const int64_t group = a.hq / a.hkv;
  const int first = p.first + FirstRow(),
            begin = static_cast<int>(a.QueryBegin(p.first)) / kQueries * kQueries;
  const Matrix k = RowsOf(a.k, a.sk, p.b, p.h, a.t, a.d, a.packed),
               v = RowsOf(a.v, a.sv, p.b, p.h, a.t, a.dv, a.packed);
  float* ks = reinterpret_cast<float*>(SharedMemory());
  float *vs = ks + kRows * kD, *qs = vs + kRows * kD, *gs = qs + kQueries * kD,
        *ps = gs + kQueries * kD, *base = ps + kRows * kQueries, *delta = base + kQueries;
  LoadTile<kD, kRows>(k, p.first, ks);
  LoadTile<kD, kRows>(v, p.first, vs);
  float dk[4][kD / kLanes] = {}, dv[4][kD / kLanes] = {};
  for (int64_t h = p.h * group; h < (p.h + 1) * group; ++h) {
    const Matrix q = RowsOf(a.q, a.sq, p.b, h, a.s, a.d, a.packed),
                 grad = RowsOf(a.grad, a.so, p.b, h, a.s, a.dv, a.packed);
    Transit<kD, kQueries> next_q, next_grad;
    next_q.Fetch(q, begin);
    next_grad.Fetch(grad, begin);
    for (int i0 = begin; i0 < a.s; i0 += kQueries) {
      constexpr int kColumns = kQueries / kLanes;
      __syncthreads();
      next_q.Store(qs);
      next_grad.Store(gs);
      if (threadIdx.x < kQueries) {
        base[threadIdx.x] = BaseAt(a, p, h, i0 + threadIdx.x);
        delta[threadIdx.x] = DeltaAt(a, p, h, i0 + threadIdx.x);
      }
      __syncthreads();
      float s[4][kColumns] = {}, dp[4][kColumns] = {};
      MultiplyRows<kD>(s, ks, qs, Depth(a.d));
      MultiplyRows<kD>(dp, vs, gs, Depth(a.dv));
      MaskScores<true>(a, p, h, p.first, i0, ps, s);
      SHARDC_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const float of = base[n / 4 * 32 + LaneX() * 4 + n % 4];
        SHARDC_UNROLL
        for (int r = 0; r < 4; ++r) s[r][n] = Exp2(s[r][n] - of);
      }
      float kept[4][kColumns];
      if (a.dropout.batch) {
        ForDropped<true, kColumns>(a, p, h, p.first, i0, [&](int r, int n, float factor) {
          dp[r][n] *= factor;
          kept[r][n] = s[r][n] * factor;
        });
      } else {
        SHARDC_UNROLL
        for (int r = 0; r < 4; ++r) {
          SHARDC_UNROLL
          for (int n = 0; n < kColumns; ++n) kept[r][n] = s[r][n];
        }
      }
      ShareRows(ps, kept);
      SHARDC_UNROLL
      for (int n = 0; n < kColumns; ++n) {
        const float of = delta[n / 4 * 32 + LaneX() * 4 + n % 4];
        SHARDC_UNROLL
        for (int r = 0; r < 4; ++r) s[r][n] *= dp[r][n] - of;
      }
      __syncwarp();
      MultiplyTile<kD, kQueries>(dv, ps, gs);
      __syncwarp();
      ShareRows(ps, s);
      __syncwarp();
      next_q.Fetch(q, i0 + kQueries);
      next_grad.Fetch(grad, i0 + kQueries);
      MultiplyTile<kD, kQueries>(dk, ps, qs);
    }
  }
  const float scale[4] = {a.scale, a.scale, a.scale, a.scale}, one[4] = {1, 1, 1, 1};
  StoreRows<kD>(a.dk + a.sk.At(p.b, p.h, first), a.sk.row, a.t - first, a.d, a.packed, dk, scale);
  StoreRows<kD>(a.dv_out + a.sv.At(p.b, p.h, first), a.sv.row, a.t - first, a.dv, a.packed, dv,
                one);
}

template <int kD>
KernelPtr Forward(const Attention<float>& a) {
  constexpr int kKeys = 64;
  constexpr int64_t kShared = (kRows * kD + 2 * kKeys * kD + kRows * kKeys) * sizeof(float);
  if (kShared > MostShared(ForwardKernel<kD, kKeys>)) return nullptr;
  AllowShared(ForwardKernel<kD, kKeys>, kShared);
  return MakeKernel([a, blocks = a.b * a.hq * CeilDiv(a.s, kRows)](const Launch& launch) {
    LaunchKernel(launch, ForwardKernel<kD, kKeys>, blocks, kThreads, kShared, a);
  });
}

template <int kD>
KernelPtr Backward(Attention<float> a) {
  constexpr int kTile = kD > 64 ? 32 : 64;
  constexpr int64_t kForQueries = ((2 * kRows + 2 * kTile) * kD + kRows * kTile) * sizeof(float);
  constexpr int64_t kForKeys = kForQueries + 2 * kTile * sizeof(float);
  if (kForKeys > MostShared(KeyGradKernel<kD, kTile>)) return nullptr;
  AllowShared(QueryGradKernel<kD, kTile>, kForQueries);
  AllowShared(KeyGradKernel<kD, kTile>, kForKeys);
  const int64_t q_blocks = a.b * a.hq * CeilDiv(a.s, kRows),
                k_blocks = a.b * a.hkv * CeilDiv(a.t, kRows);
  auto run = [=](const Launch& launch) mutable {
    a.delta = reinterpret_cast<float*>(launch.workspace);
    LaunchDelta(launch, a);
    LaunchKernel(launch, QueryGradKernel<kD, kTile>, q_blocks, kThreads, kForQueries, a);
    LaunchKernel(launch, KeyGradKernel<kD, kTile>, k_blocks, kThreads, kForKeys, a);
  };
  return MakeKernel(run, a.b * a.hq * a.s * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

KernelPtr MakeTiledForward(Attention<float> a) {
  a.packed = a.packed && Aligned(a.o, 16);
  return std::max(a.d, a.dv) <= 64 ? Forward<64>(a) : Forward<128>(a);
}
KernelPtr MakeTiledBackward(Attention<float> a) {
  a.packed = a.packed && Aligned(a.dq, 16) && Aligned(a.dk, 16) && Aligned(a.dv_out, 16);
  return std::max(a.d, a.dv) <= 64 ? Backward<64>(a) : Backward<128>(a);
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
