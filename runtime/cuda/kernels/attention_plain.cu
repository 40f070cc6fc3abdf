// Attention in f32 and f64: a warp per query (or key), 32 keys (or queries) at a time, one per
// lane.
#include "runtime/cuda/kernels/attention.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int kWarps = 8, kTile = 32, kColumns = kMaxHeadDim / 32;

template <typename W>
__device__ W WarpSum(W v) {
  for (int mask = 16; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}
template <typename W>
__device__ W WarpMax(W v) {
  for (int mask = 16; mask > 0; mask /= 2) v = MaxNan(v, ShuffleXor(v, mask));
  return v;
}

// Rows [first, first + count) of width `width` to shared memory, zero beyond `rows`; the pitch
// avoids bank conflicts.
template <typename T>
__device__ void LoadRows(const T* from, int64_t stride, int64_t first, int64_t rows, int count,
                         int width, Wide<T>* to, int pitch) {
  for (int i = static_cast<int>(threadIdx.x); i < count * width;
       i += static_cast<int>(blockDim.x)) {
    int row = i / width, c = i % width;
    to[row * pitch + c] = first + row < rows ? Widen(from[(first + row) * stride + c]) : Wide<T>(0);
  }
}
template <typename W>
__device__ W Dot(const W* x, const W* y, int n) {
  W sum = 0;
  for (int c = 0; c < n; ++c) sum += x[c] * y[c];
  return sum;
}
// acc += sum over the lanes of weight * row of the tile; each lane has every 32nd column.
template <typename W>
__device__ void AddRows(W weight, const W* tile, int pitch, int width, W (&acc)[kColumns]) {
  __shared__ W weights[kWarps][kTile];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncwarp();
  weights[warp][lane] = weight;
  __syncwarp();
  for (int j = 0; j < kTile; ++j) {
    const W each = weights[warp][j];
    SHARDC_UNROLL
    for (int u = 0; u < kColumns; ++u) {
      int c = lane + 32 * u;
      if (c < width) acc[u] += each * tile[j * pitch + c];
    }
  }
}
template <typename T, typename W>
__device__ void StoreColumns(T* to, int width, const W (&acc)[kColumns], W factor) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  SHARDC_UNROLL
  for (int u = 0; u < kColumns; ++u) {
    int c = lane + 32 * u;
    if (c < width) to[c] = Narrow<T>(acc[u] * factor);
  }
}

// Which rows a block works on.
struct Place {
  int64_t first, h, b;
};
__device__ Place PlaceOf(int64_t block, int64_t rows, int64_t heads) {
  int64_t tiles = (rows + kWarps - 1) / kWarps;
  return {block % tiles * kWarps, block / tiles % heads, block / tiles / heads};
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) ForwardKernel(Attention<T> a) {
  using W = Wide<T>;
  const Place p = PlaceOf(blockIdx.x, a.s, a.hq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t i = p.first + warp, kv = a.KvHead(p.h);
  W* qs = reinterpret_cast<W*>(SharedMemory());
  W *ks = qs + kWarps * (a.d + 1), *vs = ks + kTile * (a.d + 1);
  LoadRows(a.q + a.sq.At(p.b, p.h, 0), a.sq.row, p.first, a.s, kWarps, a.d, qs, a.d + 1);
  W max = -Infinity<W>(), sum = 0, acc[kColumns] = {};
  const uint32_t now = a.dropout.batch ? a.dropout.draw.Step() : 0;
  const int64_t end = a.KeyEnd(p.first + kWarps - 1);
  for (int64_t j0 = 0; j0 < end; j0 += kTile) {
    __syncthreads();
    LoadRows(a.k + a.sk.At(p.b, kv, 0), a.sk.row, j0, a.t, kTile, a.d, ks, a.d + 1);
    LoadRows(a.v + a.sv.At(p.b, kv, 0), a.sv.row, j0, a.t, kTile, a.dv, vs, a.dv + 1);
    __syncthreads();
    W score = -Infinity<W>();
    if (a.Sees(i, j0 + lane)) {
      score = Dot(qs + warp * (a.d + 1), ks + lane * (a.d + 1), a.d) * a.scale;
      score = a.mask.Apply(score, p.b, p.h, i, j0 + lane, W(1));
    }
    W top = MaxNan(max, WarpMax(score));
    W weight = top == -Infinity<W>() ? W(0) : ::exp(score - top);
    W keep = max == -Infinity<W>() ? W(0) : ::exp(max - top);
    sum = sum * keep + WarpSum(weight);
    for (int u = 0; u < kColumns; ++u) acc[u] *= keep;
    if (a.dropout.batch && i < a.s) {
      weight *= a.dropout.Factor(a.dropout.Row(p.b, p.h, i) + j0 + lane, now);
    }
    AddRows(weight, vs, a.dv + 1, a.dv, acc);
    max = top;
  }
  if (i >= a.s) return;
  StoreColumns(a.o + a.so.At(p.b, p.h, i), a.dv, acc, sum == W(0) ? W(0) : W(1) / sum);
  if (lane == 0) a.lse[a.Statistic(p.b, p.h, i)] = max == -Infinity<W>() ? max : max + ::log(sum);
}

// p, as it meets do, and ds of one pair.
template <typename T>
struct Pair {
  Wide<T> p = 0, ds = 0;
  __device__ Pair(const Attention<T>& a, const Place& at, int64_t h, int64_t i, int64_t j,
                  const Wide<T>* q, const Wide<T>* k, const Wide<T>* grad, const Wide<T>* v,
                  uint32_t now) {
    using W = Wide<T>;
    if (!a.Sees(i, j)) return;
    const int64_t row = a.Statistic(at.b, h, i);
    const W lse = a.lse_in[row];
    if (lse == -Infinity<W>()) return;
    W score = a.mask.Apply(Dot(q, k, a.d) * a.scale, at.b, h, i, j, W(1));
    p = ::exp(score - lse);
    W dp = Dot(grad, v, a.dv), kept = W(1);
    if (a.dropout.batch) kept = a.dropout.Factor(a.dropout.Row(at.b, h, i) + j, now);
    ds = a.scale * p * (dp * kept - a.delta[row]);
    p *= kept;
  }
};

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) QueryGradKernel(Attention<T> a) {
  using W = Wide<T>;
  const Place p = PlaceOf(blockIdx.x, a.s, a.hq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t i = p.first + warp, kv = a.KvHead(p.h);
  W* qs = reinterpret_cast<W*>(SharedMemory());
  W *gs = qs + kWarps * (a.d + 1), *ks = gs + kWarps * (a.dv + 1), *vs = ks + kTile * (a.d + 1);
  LoadRows(a.q + a.sq.At(p.b, p.h, 0), a.sq.row, p.first, a.s, kWarps, a.d, qs, a.d + 1);
  LoadRows(a.grad + a.so.At(p.b, p.h, 0), a.so.row, p.first, a.s, kWarps, a.dv, gs, a.dv + 1);
  W acc[kColumns] = {};
  const uint32_t now = a.dropout.batch ? a.dropout.draw.Step() : 0;
  const int64_t end = a.KeyEnd(p.first + kWarps - 1);
  for (int64_t j0 = 0; j0 < end; j0 += kTile) {
    __syncthreads();
    LoadRows(a.k + a.sk.At(p.b, kv, 0), a.sk.row, j0, a.t, kTile, a.d, ks, a.d + 1);
    LoadRows(a.v + a.sv.At(p.b, kv, 0), a.sv.row, j0, a.t, kTile, a.dv, vs, a.dv + 1);
    __syncthreads();
    Pair<T> pair(a, p, p.h, i, j0 + lane, qs + warp * (a.d + 1), ks + lane * (a.d + 1),
                 gs + warp * (a.dv + 1), vs + lane * (a.dv + 1), now);
    AddRows(pair.ds, ks, a.d + 1, a.d, acc);
  }
  if (i < a.s) StoreColumns(a.dq + a.sq.At(p.b, p.h, i), a.d, acc, W(1));
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) KeyGradKernel(Attention<T> a) {
  using W = Wide<T>;
  const Place p = PlaceOf(blockIdx.x, a.t, a.hkv);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t j = p.first + warp, group = a.hq / a.hkv;
  W* ks = reinterpret_cast<W*>(SharedMemory());
  W *vs = ks + kWarps * (a.d + 1), *qs = vs + kWarps * (a.dv + 1), *gs = qs + kTile * (a.d + 1);
  LoadRows(a.k + a.sk.At(p.b, p.h, 0), a.sk.row, p.first, a.t, kWarps, a.d, ks, a.d + 1);
  LoadRows(a.v + a.sv.At(p.b, p.h, 0), a.sv.row, p.first, a.t, kWarps, a.dv, vs, a.dv + 1);
  W dk[kColumns] = {}, dv[kColumns] = {};
  const uint32_t now = a.dropout.batch ? a.dropout.draw.Step() : 0;
  for (int64_t h = p.h * group; h < (p.h + 1) * group; ++h) {
    for (int64_t i0 = a.QueryBegin(p.first); i0 < a.s; i0 += kTile) {
      __syncthreads();
      LoadRows(a.q + a.sq.At(p.b, h, 0), a.sq.row, i0, a.s, kTile, a.d, qs, a.d + 1);
      LoadRows(a.grad + a.so.At(p.b, h, 0), a.so.row, i0, a.s, kTile, a.dv, gs, a.dv + 1);
      __syncthreads();
      Pair<T> pair(a, p, h, i0 + lane, j, qs + lane * (a.d + 1), ks + warp * (a.d + 1),
                   gs + lane * (a.dv + 1), vs + warp * (a.dv + 1), now);
      AddRows(pair.ds, qs, a.d + 1, a.d, dk);
      AddRows(pair.p, gs, a.dv + 1, a.dv, dv);
    }
  }
  if (j >= a.t) return;
  StoreColumns(a.dk + a.sk.At(p.b, p.h, j), a.d, dk, W(1));
  StoreColumns(a.dv_out + a.sv.At(p.b, p.h, j), a.dv, dv, W(1));
}

template <typename T>
KernelPtr Forward(const Attention<T>& a) {
  size_t shared =
      static_cast<size_t>((kWarps + kTile) * (a.d + 1) + kTile * (a.dv + 1)) * sizeof(Wide<T>);
  int64_t blocks = a.b * a.hq * CeilDiv(a.s, kWarps);
  AllowShared(ForwardKernel<T>, shared);
  return MakeKernel([=](const Launch& launch) {
    LaunchKernel(launch, ForwardKernel<T>, blocks, kWarps * 32, shared, a);
  });
}

template <typename T>
KernelPtr Backward(Attention<T> a) {
  size_t shared = static_cast<size_t>((kWarps + kTile) * (a.d + 1 + a.dv + 1)) * sizeof(Wide<T>);
  int64_t q_blocks = a.b * a.hq * CeilDiv(a.s, kWarps),
          k_blocks = a.b * a.hkv * CeilDiv(a.t, kWarps);
  AllowShared(QueryGradKernel<T>, shared);
  AllowShared(KeyGradKernel<T>, shared);
  auto run = [=](const Launch& launch) mutable {
    a.delta = reinterpret_cast<Wide<T>*>(launch.workspace);
    LaunchDelta(launch, a);
    LaunchKernel(launch, QueryGradKernel<T>, q_blocks, kWarps * 32, shared, a);
    LaunchKernel(launch, KeyGradKernel<T>, k_blocks, kWarps * 32, shared, a);
  };
  return MakeKernel(run, a.b * a.hq * a.s * static_cast<int64_t>(sizeof(Wide<T>)));
}

}  // namespace

KernelPtr MakePlainForward(const Attention<float>& a) { return Forward(a); }
KernelPtr MakePlainForward(const Attention<double>& a) { return Forward(a); }
KernelPtr MakePlainBackward(const Attention<float>& a) { return Backward(a); }
KernelPtr MakePlainBackward(const Attention<double>& a) { return Backward(a); }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
