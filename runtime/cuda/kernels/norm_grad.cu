// layer_norm_grad, rms_norm_grad, and the same added to a residual's gradient. One pass over the
// rows, from the last one (see RowsKernel): a block has every `blocks`-th, and sums of its rows
// that it writes once at its end; a second kernel adds up the blocks'. The order of additions
// follows from the sizes and the GPU alone. What the norm gave is made again on the way, if it is
// wanted.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// Sums over rows: of dy * xhat, of dy, and of what is written to dx.
constexpr int kSums = 3;

// D: of dy, which may be narrow; U: of the copy, and of y where that is not of T. Null: not there,
// not wanted; mean: null for rms_norm.
template <typename T, typename D, typename U>
struct NormGrad {
  const T *residual, *x, *mean, *rstd, *w, *b;
  const D* dy;
  T *dx, *y;
  U *copy, *narrow_y;
  T* sums[kSums];
  int64_t rows, cols;
};
template <typename T, typename D, typename U>
__device__ __host__ __forceinline__ bool WantsY(const NormGrad<T, D, U>& f) {
  return f.y || f.narrow_y;
}
// The norm's result at element `at`.
template <int kN, typename T, typename D, typename U>
__device__ __forceinline__ void WriteY(const NormGrad<T, D, U>& f, int64_t at,
                                       const Wide<T> (&xhat)[kN], const Pack<T, kN>& w,
                                       const Pack<T, kN>& b) {
  auto write = [&](auto* to) {
    using Y = std::remove_reference_t<decltype(*to)>;
    Pack<Y, kN> y;
    SHARDC_UNROLL
    for (int j = 0; j < kN; ++j) {
      y.v[j] = Narrow<Y>(static_cast<Wide<Y>>(
          NormValue(xhat[j], Widen(w.v[j]), f.b ? Widen(b.v[j]) : Wide<T>(0))));
    }
    StorePack<Y, kN>(to + at, y);
  };
  if (f.narrow_y) write(f.narrow_y);
  if (f.y) write(f.y);
}
// Of the sums, how many.
template <typename T, typename D, typename U>
int64_t Wanted(const NormGrad<T, D, U>& f) {
  return kSums - std::count(f.sums, f.sums + kSums, nullptr);
}

// The block's sums of two values for all its threads. `turn`: the parity of the call, so that none
// writes where others may still read those of the last one.
template <typename W>
__device__ __forceinline__ void BlockSums(W& a, W& b, int turn) {
  for (int mask = 16; mask > 0; mask /= 2) {
    a += ShuffleXor(a, mask);
    b += ShuffleXor(b, mask);
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return;
  __shared__ W parts[2][2][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    parts[turn][0][threadIdx.x / 32] = a;
    parts[turn][1][threadIdx.x / 32] = b;
  }
  __syncthreads();
  a = lane < warps ? parts[turn][0][lane] : W(0);
  b = lane < warps ? parts[turn][1][lane] : W(0);
  for (int mask = 16; mask > 0; mask /= 2) {
    a += ShuffleXor(a, mask);
    b += ShuffleXor(b, mask);
  }
}

// Where a block keeps the sums of its columns, of which every thread has its own: in registers.
template <typename W, int kN, int kPacks>
struct RegisterSums {
  W sums[kSums][kPacks][kN] = {};
  static constexpr int64_t Bytes(int64_t /*wanted*/, int64_t /*cols*/) { return 0; }
  template <typename F>
  __device__ RegisterSums(const F&) {}
  __device__ __forceinline__ void Clear(int) {}
  __device__ __forceinline__ void Add(int s, int k, int, const W (&values)[kN]) {
    SHARDC_UNROLL
    for (int j = 0; j < kN; ++j) sums[s][k][j] += values[j];
  }
  __device__ __forceinline__ Pack<W, kN> At(int s, int k, int) const {
    Pack<W, kN> values;
    SHARDC_UNROLL
    for (int j = 0; j < kN; ++j) values.v[j] = sums[s][k][j];
    return values;
  }
};
// Those that are wanted, in shared memory.
template <typename W, int kN, int kPacks>
struct SharedSums {
  W* sums[kSums];
  static constexpr int64_t Bytes(int64_t wanted, int64_t cols) {
    return wanted * cols * static_cast<int64_t>(sizeof(W));
  }
  template <typename F>
  __device__ SharedSums(const F& f) {
    W* next = reinterpret_cast<W*>(SharedMemory());
    SHARDC_UNROLL
    for (int s = 0; s < kSums; ++s) {
      sums[s] = f.sums[s] ? next : nullptr;
      if (f.sums[s]) next += f.cols;
    }
  }
  __device__ __forceinline__ void Clear(int c) {
    SHARDC_UNROLL
    for (int s = 0; s < kSums; ++s) {
      if (sums[s]) StorePack<W, kN>(sums[s] + c, Pack<W, kN>{});
    }
  }
  __device__ __forceinline__ void Add(int s, int, int c, const W (&values)[kN]) {
    if (!sums[s]) return;
    auto sum = LoadPack<W, kN>(sums[s] + c);
    SHARDC_UNROLL
    for (int j = 0; j < kN; ++j) sum.v[j] += values[j];
    StorePack<W, kN>(sums[s] + c, sum);
  }
  __device__ __forceinline__ Pack<W, kN> At(int s, int, int c) const {
    return LoadPack<W, kN>(sums[s] + c);
  }
};

// Rows of at most kPacks packs of kN columns a thread, read once. kAhead: while one is computed,
// the next comes to shared memory, each thread's part of it by that thread, who also keeps its
// weights there; else a row is in registers.
template <typename T, typename D, typename U, int kN, int kPacks,
          template <typename, int, int> typename Sums, bool kIsAhead>
struct KeptRows {
  static constexpr bool kAhead = kIsAhead;
  using W = Wide<T>;
  using ColumnSums = Sums<W, kN, kPacks>;
  NormGrad<T, D, U> f;
  int64_t blocks;
  W* partial;  // [blocks, kSums, cols]

  static int64_t SharedBytes(const NormGrad<T, D, U>& f) {
    if (!kAhead) return ColumnSums::Bytes(Wanted(f), f.cols);
    return 2 * PlaceBytes(f) + (f.b ? 2 : 1) * f.cols * static_cast<int64_t>(sizeof(T));
  }
  // What a row takes of shared memory.
  __device__ __host__ static int64_t PlaceBytes(const NormGrad<T, D, U>& f) {
    const int64_t bytes =
        f.cols * static_cast<int64_t>((f.residual ? 2 : 1) * sizeof(T) + sizeof(D));
    return (bytes + 15) / 16 * 16;
  }

  struct Row {
    const D* dy;
    const T *x, *residual;
  };
  __device__ __forceinline__ Row InMemory(int64_t row) const {
    const int64_t at = row * f.cols;
    return {f.dy + at, f.x + at, f.residual ? f.residual + at : nullptr};
  }
  // In one of two places.
  __device__ __forceinline__ Row InShared(int place) const {
    const T* x = reinterpret_cast<const T*>(SharedMemory() + place * PlaceBytes(f));
    const T* behind = x + f.cols;
    return {reinterpret_cast<const D*>(f.residual ? behind + f.cols : behind), x, behind};
  }

  __device__ __forceinline__ T* WeightsInShared() const {
    return reinterpret_cast<T*>(SharedMemory() + 2 * PlaceBytes(f));
  }
  __device__ __forceinline__ T* BiasInShared() const { return WeightsInShared() + f.cols; }

  // Calls use(k, c) for this thread's packs: those from column c on.
  template <typename Use>
  __device__ __forceinline__ void ForPacks(Use use) const {
    const int cols = static_cast<int>(f.cols);
    SHARDC_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      const int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * kN;
      if (c < cols) use(k, c);
    }
  }
  __device__ __forceinline__ void Fetch(int64_t row, int place) const {
    if (row >= 0) {
      const Row from = InMemory(row), to = InShared(place);
      auto copy = [](const auto* to, const auto* from) {
        CopyAhead<kN* static_cast<int>(sizeof(*from))>(
            const_cast<void*>(static_cast<const void*>(to)), from);
      };
      ForPacks([&](int, int c) {
        copy(to.dy + c, from.dy + c);
        copy(to.x + c, from.x + c);
        if (f.residual) copy(to.residual + c, from.residual + c);
      });
    }
    CommitCopies();
  }
  __device__ void operator()(int64_t block) const {
    // Else there are no registers for what can be read later, or again from cache.
    constexpr bool kRoomy = sizeof(T) > 2 && kN * kPacks * sizeof(W) < 64;
    Pack<T, kN> scale[kPacks];
    ColumnSums sums(f);
    ForPacks([&](int k, int c) {
      sums.Clear(c);
      for (int j = 0; j < kN; ++j) scale[k].v[j] = Narrow<T>(W(1));
      if ((kAhead || kRoomy) && f.w) scale[k] = LoadPack<T, kN>(f.w + c);
      if (kAhead) StorePack<T, kN>(WeightsInShared() + c, scale[k]);
      if (kAhead && f.b) StorePack<T, kN>(BiasInShared() + c, LoadPack<T, kN>(f.b + c));
    });
    const W each = W(1) / static_cast<W>(f.cols);
    const int64_t last = f.rows - 1 - block;
    if constexpr (kAhead) Fetch(last, 0);
    W mean = 0, rstd = 0;  // of 32 rows, one a lane: each row would wait for its own
    int turn = 0;
    for (int64_t row = last; row >= 0; row -= blocks, ++turn) {
      if (turn % 32 == 0) {
        const int64_t mine = row - threadIdx.x % 32 * blocks;
        if (f.mean && mine >= 0) mean = Widen(f.mean[mine]);
        if (mine >= 0) rstd = Widen(f.rstd[mine]);
      }
      const W m = Shuffle(mean, turn % 32), r = Shuffle(rstd, turn % 32);
      LoadedPack<D, kN> d[kPacks];
      LoadedPack<T, kN> v[kPacks], other[kPacks];
      const Row from = kAhead ? InShared(turn % 2) : InMemory(row);
      if constexpr (kAhead) {
        Fetch(row - blocks, (turn + 1) % 2);
        WaitForCopies<1>();
      } else {
        ForPacks([&](int k, int c) {
          d[k].Load(from.dy + c);
          v[k].Load(from.x + c);
          if (kRoomy && f.residual) other[k].Load(from.residual + c);
        });
      }
      // Of a pack dy, xhat and what dy is with the weights.
      auto gradients = [&](int k, int c, W(&dy)[kN], W(&xhat)[kN], W(&g)[kN]) {
        if (kAhead) {
          d[k].Load(from.dy + c);
          v[k].Load(from.x + c);
          scale[k] = LoadPack<T, kN>(WeightsInShared() + c);
        } else if (!kRoomy && f.w) {
          scale[k] = LoadPack<T, kN>(f.w + c);
        }
        const auto wide = WidenPack(d[k].Get()), x = WidenPack(v[k].Get()), w = WidenPack(scale[k]);
        SHARDC_UNROLL
        for (int j = 0; j < kN; ++j) {
          dy[j] = wide.v[j];
          xhat[j] = (x.v[j] - m) * r;
          g[j] = dy[j] * w.v[j];
        }
      };
      W sum = 0, product = 0;
      ForPacks([&](int k, int c) {
        W dy[kN], xhat[kN], g[kN], products[kN];
        gradients(k, c, dy, xhat, g);
        SHARDC_UNROLL
        for (int j = 0; j < kN; ++j) {
          sum += g[j];
          product += g[j] * xhat[j];
          products[j] = dy[j] * xhat[j];
        }
        sums.Add(0, k, c, products);
        sums.Add(1, k, c, dy);
      });
      BlockSums(sum, product, turn % 2);
      sum = f.mean ? sum * each : W(0);
      product *= each;
      ForPacks([&](int k, int c) {
        W dy[kN], xhat[kN], g[kN], written[kN];
        gradients(k, c, dy, xhat, g);
        if ((kAhead || !kRoomy) && f.residual) other[k].Load(from.residual + c);
        const auto add = WidenPack(other[k].Get());
        Pack<T, kN> out;
        Pack<U, kN> copy;
        SHARDC_UNROLL
        for (int j = 0; j < kN; ++j) {
          W result = r * (g[j] - sum - xhat[j] * product);
          if (f.residual) result += add.v[j];
          out.v[j] = Narrow<T>(result);
          written[j] = Widen(out.v[j]);
          copy.v[j] = Narrow<U>(static_cast<Wide<U>>(written[j]));
        }
        sums.Add(2, k, c, written);
        StorePack<T, kN>(f.dx + row * f.cols + c, out);
        if (WantsY(f)) {
          const T* bias = kAhead ? BiasInShared() : f.b;
          const Pack<T, kN> shift = f.b ? LoadPack<T, kN>(bias + c) : Pack<T, kN>{};
          WriteY<kN>(f, row * f.cols + c, xhat, scale[k], shift);
        }
        if (f.copy) StorePack<U, kN>(f.copy + row * f.cols + c, copy);
      });
    }
    SHARDC_UNROLL
    for (int s = 0; s < kSums; ++s) {
      if (!f.sums[s]) continue;
      ForPacks([&](int k, int c) {
        StorePack<W, kN>(partial + (block * kSums + s) * f.cols + c, sums.At(s, k, c));
      });
    }
    __syncthreads();  // the next item begins with an even turn again
  }
};

// Rows of any width: what the columns sum to is in memory, and the row is read twice.
template <typename T, typename D, typename U>
struct WideRows {
  using W = Wide<T>;
  NormGrad<T, D, U> f;
  int64_t blocks;
  W* partial;  // [blocks, kSums, cols]

  __device__ void operator()(int64_t block) const {
    W* own = partial + block * kSums * f.cols;
    for (int s = 0; s < kSums; ++s) {
      for (int64_t c = threadIdx.x; f.sums[s] && c < f.cols; c += blockDim.x) {
        own[s * f.cols + c] = 0;
      }
    }
    int turn = 0;
    for (int64_t row = f.rows - 1 - block; row >= 0; row -= blocks, turn ^= 1) {
      const W m = f.mean ? Widen(f.mean[row]) : W(0), r = Widen(f.rstd[row]);
      const D* d = f.dy + row * f.cols;
      const T* in = f.x + row * f.cols;
      W sum = 0, product = 0;
      for (int64_t c = threadIdx.x; c < f.cols; c += blockDim.x) {
        const W dy = Widen(d[c]), xhat = (Widen(in[c]) - m) * r;
        const W g = f.w ? dy * Widen(f.w[c]) : dy;
        sum += g;
        product += g * xhat;
        if (f.sums[0]) own[c] += dy * xhat;
        if (f.sums[1]) own[f.cols + c] += dy;
      }
      BlockSums(sum, product, turn);
      sum = f.mean ? sum / static_cast<W>(f.cols) : W(0);
      product /= static_cast<W>(f.cols);
      for (int64_t c = threadIdx.x; c < f.cols; c += blockDim.x) {
        const W dy = Widen(d[c]), xhat = (Widen(in[c]) - m) * r;
        const W g = f.w ? dy * Widen(f.w[c]) : dy;
        W each = r * (g - sum - xhat * product);
        if (f.residual) each += Widen(f.residual[row * f.cols + c]);
        const T out = Narrow<T>(each);
        f.dx[row * f.cols + c] = out;
        if (WantsY(f)) {
          const W normed[1] = {xhat};
          const Pack<T, 1> scale{{f.w ? f.w[c] : Narrow<T>(W(1))}}, shift{{f.b ? f.b[c] : T{}}};
          WriteY<1>(f, row * f.cols + c, normed, scale, shift);
        }
        if (f.copy) f.copy[row * f.cols + c] = Narrow<U>(static_cast<Wide<U>>(Widen(out)));
        if (f.sums[2]) own[2 * f.cols + c] += Widen(out);
      }
    }
    __syncthreads();  // the next item begins with an even turn again
  }
};

// A block per sum and 32 columns of it, a warp having every kSumWarps-th of the blocks' results.
constexpr int kSumWarps = 16;
template <typename T>
struct SumOfBlocks {
  using W = Wide<T>;
  T* sums[kSums];  // null: not wanted
  int64_t cols, blocks, tiles;
  const W* partial;
  __device__ void operator()(int64_t item) const {
    __shared__ W parts[kSumWarps][32];
    const int64_t s = item / tiles, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
                  c = item % tiles * 32 + lane;
    T* out = sums[s];
    W sum = 0;
    if (out && c < cols) {
      SHARDC_UNROLL_BY(16)
      for (int64_t b = warp; b < blocks; b += kSumWarps) {
        sum += partial[(b * kSums + s) * cols + c];
      }
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && out && c < cols) {
      for (int k = 1; k < kSumWarps; ++k) sum += parts[k][lane];
      out[c] = Narrow<T>(sum);
    }
    __syncthreads();
  }
};

template <typename T, typename D, typename U, typename Rows>
KernelPtr MakeRows(Rows rows, int threads, int64_t blocks, int64_t shared) {
  using W = Wide<T>;
  const NormGrad<T, D, U>& f = rows.f;
  const bool sums = Wanted(f) > 0;
  rows.blocks = blocks;
  const int64_t bytes = sums ? rows.blocks * kSums * f.cols * static_cast<int64_t>(sizeof(W)) : 0;
  auto run = [=](const Launch& launch) {
    Rows each = rows;
    each.partial = reinterpret_cast<W*>(launch.workspace);
    LaunchKernel(launch, RowsKernel<Rows>, each.blocks, threads, static_cast<size_t>(shared), each,
                 each.blocks);
    if (!sums) return;
    SumOfBlocks<T> sum{{}, each.f.cols, each.blocks, CeilDiv(each.f.cols, 32), each.partial};
    std::copy_n(each.f.sums, kSums, sum.sums);
    const int64_t items = kSums * sum.tiles;
    LaunchKernel(launch, RowsKernel<SumOfBlocks<T>>, items, 32 * kSumWarps, 0, sum, items);
  };
  return MakeKernel(run, bytes);
}

// Null where the shared memory is too small.
template <typename Rows, int kColumns, typename T, typename D, typename U>
KernelPtr MakeKept(const NormGrad<T, D, U>& f) {
  const int threads = RowThreads(f.cols, kColumns);
  const int64_t shared = Rows::SharedBytes(f);
  if (shared > MostShared(RowsKernel<Rows>)) return nullptr;
  if (shared > 0) AllowShared(RowsKernel<Rows>, static_cast<size_t>(shared));
  // With a row on its way, few blocks are enough; each has sums for the second kernel.
  const int most = Rows::kAhead ? 1024 : 2048;
  return MakeRows<T, D, U>(Rows{f, 0, nullptr}, threads,
                           BlocksAtOnce<Rows>(f.rows, threads, shared, most), shared);
}
// The sums of columns in registers.
template <typename T, typename D, typename U, int kN, int kPacks>
KernelPtr InRegisters(const NormGrad<T, D, U>& f) {
  constexpr bool kAhead = kN == kPack<T>;
  return MakeKept<KeptRows<T, D, U, kN, kPacks, RegisterSums, kAhead>, kN * kPacks>(f);
}
template <typename T, typename D, typename U, int kN, int kPacks>
KernelPtr InSharedMemory(const NormGrad<T, D, U>& f) {
  return MakeKept<KeptRows<T, D, U, kN, kPacks, SharedSums, false>, kN * kPacks>(f);
}

template <typename T, typename D, typename U, int kN>
KernelPtr MakeOfPacks(const NormGrad<T, D, U>& f) {
  // What is done once a row by each warp takes as long as eight elements of each thread. Of single
  // ones so that a multiprocessor has registers for two blocks: one waits while another computes.
  constexpr int kThreadsOfOne = kN == kPack<T> && kN < 8 ? 32 : kRowThreads / 2;
  KernelPtr kernel;
  if (RowThreads(f.cols, kN) <= kThreadsOfOne) {
    kernel = InRegisters<T, D, U, kN, 1>(f);
  } else if (RowThreads(f.cols, kN * 2) <= kRowThreads) {
    kernel = InRegisters<T, D, U, kN, 2>(f);
  } else if constexpr (sizeof(T) == 4 || (sizeof(T) == 2 && kN == 1)) {
    // What more columns sum to is too much for registers.
    if (RowThreads(f.cols, kN * 4) <= kRowThreads) kernel = InRegisters<T, D, U, kN, 4>(f);
  }
  if constexpr (kN == kPack<T>) {
    constexpr int kPacks = sizeof(T) == 4 ? 8 : 4;
    if (!kernel && RowThreads(f.cols, kN * kPacks) <= kRowThreads) {
      kernel = InSharedMemory<T, D, U, kN, kPacks>(f);
    }
  }
  if (kernel) return kernel;
  return MakeRows<T, D, U>(WideRows<T, D, U>{f, 0, nullptr}, kRowThreads, RowBlocks(f.rows, true),
                           0);
}

template <typename T, typename D, typename U>
KernelPtr Make(const NormGrad<T, D, U>& f) {
  const bool packs = Packs<T>(f.cols, f.residual, f.x, f.w, f.b, f.dx, f.y) &&
                     Aligned(f.dy, sizeof(D) * static_cast<size_t>(kPack<T>)) &&
                     Aligned(f.copy, sizeof(U) * static_cast<size_t>(kPack<T>)) &&
                     Aligned(f.narrow_y, sizeof(U) * static_cast<size_t>(kPack<T>));
  return packs ? MakeOfPacks<T, D, U, kPack<T>>(f) : MakeOfPacks<T, D, U, 1>(f);
}

// dy, x[, mean], rstd[, w[, b]] from operand `first` on; dx is result 0, [weights, end) are dw[,
// db]; y the last, if it is wanted.
bool WantsY(const KernelRequest& r) { return r.call.attrs->Has("y"); }
DType TypeOfY(const KernelRequest& r) {
  return r.call.out[WantsY(r) ? r.call.out.size() - 1 : 0].dtype;
}

template <bool kCentered, typename T, typename D, typename U>
NormGrad<T, D, U> Describe(const KernelRequest& r, size_t first, size_t weights, size_t end) {
  const size_t w = first + (kCentered ? 4 : 3);
  NormGrad<T, D, U> f{};
  f.dy = In<D>(r, first);
  f.x = In<T>(r, first + 1);
  if (kCentered) f.mean = In<T>(r, first + 2);
  f.rstd = In<T>(r, w - 1);
  if (r.call.in.size() > w) f.w = In<T>(r, w);
  if (r.call.in.size() > w + 1) f.b = In<T>(r, w + 1);
  f.dx = Out<T>(r, 0);
  if (WantsY(r)) {
    const size_t y = r.call.out.size() - 1;
    if (r.call.out[y].dtype == r.call.out[0].dtype) {
      f.y = Out<T>(r, y);
    } else {
      f.narrow_y = Out<U>(r, y);
    }
  }
  if (end > weights) f.sums[0] = Out<T>(r, weights);
  if (end > weights + 1) f.sums[1] = Out<T>(r, weights + 1);
  const TensorView& x = r.call.in[first + 1];
  f.cols = x.shape.back();
  f.rows = f.cols == 0 ? 0 : x.num_elements() / f.cols;
  return f;
}

template <bool kCentered>
KernelPtr MakeNormGrad(const KernelRequest& r) {
  const size_t end = r.call.out.size() - (WantsY(r) ? 1 : 0);
  return DispatchMixed(
      r.call.out[0].dtype, r.call.in[0].dtype, TypeOfY(r), [&](auto t, auto d, auto u) {
        return Make(Describe<kCentered, decltype(t), decltype(d), decltype(u)>(r, 0, 1, end));
      });
}
template <bool kCentered>
KernelPtr MakeNormGradAdd(const KernelRequest& r) {
  auto make = [&](auto t, auto d, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    const bool sums = r.call.attrs->Bool("sums");
    const size_t end = r.call.out.size() - (sums ? 1 : 0) - (WantsY(r) ? 1 : 0);
    auto f = Describe<kCentered, T, decltype(d), U>(r, 1, 2, end);
    f.residual = In<T>(r, 0);
    f.copy = Out<U>(r, 1);
    if (sums) f.sums[2] = Out<T>(r, end);
    return Make(f);
  };
  return DispatchMixed(r.call.out[0].dtype, r.call.in[1].dtype, r.call.out[1].dtype, make);
}

constexpr Binding kBindings[] = {
    {"layer_norm_grad", MakeNormGrad<true>},
    {"rms_norm_grad", MakeNormGrad<false>},
    {"layer_norm_grad_add", MakeNormGradAdd<true>},
    {"rms_norm_grad_add", MakeNormGradAdd<false>},
};

}  // namespace

std::span<const Binding> NormGradBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
