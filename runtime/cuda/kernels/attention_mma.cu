// Attention in bf16 and f16 on tensor cores. A block of four warps has 64 queries (or keys), each
// warp 16 of them, and walks over tiles of keys (or queries) in shared memory. Scores are in units
// of log 2.
#include "runtime/cuda/kernels/mma.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int kWarps = kMmaThreads / 32, kRows = 16 * kWarps;
// Blocks of a multiprocessor, of 64 Ki registers.
template <int kD>
inline constexpr int kLeastBlocks = kD <= 64    ? 3
                                    : kD <= 128 ? 2
                                                : 1;

// A tile of any rows.
template <typename T, int kD, int kCount>
__device__ __forceinline__ void LoadTile(T* tile, const T* from, int64_t stride, int64_t first,
                                         int64_t rows, int width, bool packed) {
  TileLoad<T, kD, kCount> load;
  load.Fetch(from, stride, first, rows, width, packed);
  load.Put(tile);
}

struct Place {
  int64_t first, h, b;
};
// The last rows first: with a causal mask they have the most to do.
__device__ Place PlaceOf(int64_t block, int64_t rows, int64_t heads) {
  int64_t tiles = (rows + kRows - 1) / kRows;
  return {(tiles - 1 - block % tiles) * kRows, block / tiles % heads, block / tiles / heads};
}

__device__ __forceinline__ int Clamped(int64_t v, int most) {
  return static_cast<int>(v < 0 ? 0 : v < most ? v : most);
}

// Scores of the pairs that an accumulator holds: queries i0 + row and keys j0 + column, or with
// kSwap the other way.
template <typename T, int kN, bool kSwap>
__device__ __forceinline__ void MaskScores(const Attention<T>& a, const Place& p, int64_t h,
                                           int64_t rows_at, int64_t cols_at, float (&s)[kN][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, col = lane % 4 * 2;
  const float factor = a.scale * kLog2E;
  const auto each = [&](auto score) {
    SHARDC_UNROLL
    for (int n = 0; n < kN; ++n) {
      SHARDC_UNROLL
      for (int e = 0; e < 4; ++e) s[n][e] = score(s[n][e] * factor, n * 8 + col + e % 2, e / 2);
    }
  };
  if (a.mask.data) {
    each([&](float score, int column, int half) {
      const int64_t r = rows_at + g + half * 8, c = cols_at + column;
      const int64_t i = kSwap ? c : r, j = kSwap ? r : c;
      return a.Sees(i, j) ? a.mask.Apply(score, p.b, h, i, j, kLog2E) : -Infinity<float>();
    });
    return;
  }
  if (kSwap ? a.SeeAll(cols_at, kN * 8, rows_at + 16) : a.SeeAll(rows_at, 16, cols_at + kN * 8)) {
    each([](float score, int, int) { return score; });
    return;
  }
  // Of the two rows, the columns that they see are those from `begin` and before `end`.
  int begin[2], end[2];
  SHARDC_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t r = rows_at + g + half * 8;
    begin[half] = kSwap ? Clamped(a.QueryBegin(r) - cols_at, kN * 8) : 0;
    end[half] = Clamped((kSwap ? a.s : a.KeyEnd(r)) - cols_at, kN * 8);
    if (r >= (kSwap ? a.t : a.s)) end[half] = 0;
  }
  each([&](float score, int column, int half) {
    return column >= begin[half] && column < end[half] ? score : -Infinity<float>();
  });
}

// The words that the lanes 4 * x apart, for x of 0 to 3, drew for this one: word `me` of each.
__device__ __forceinline__ void TransposeWords(int me, const PhiloxBlock& drawn,
                                               uint32_t (&words)[4]) {
  SHARDC_UNROLL
  for (int x = 0; x < 4; ++x) {
    // Lane me ^ x draws what is its own word `me`, and wants this lane's word me ^ x.
    const uint32_t got = x == 0 ? WordOf(drawn, me) : ShuffleXor(WordOf(drawn, me ^ x), 4 * x);
    SHARDC_UNROLL
    for (int k = 0; k < 4; ++k) words[k] = k == (me ^ x) ? got : words[k];
  }
}

// What dropout multiplies the four pairs by that an accumulator's column `n` holds, as MaskScores
// numbers them. Where rows begin with a word 0, lanes share the blocks that they draw.
template <typename T, bool kSwap>
__device__ __forceinline__ void DrawFactors(const Attention<T>& a, const Place& p, int64_t h,
                                            int64_t rows_at, int64_t cols_at, uint32_t now,
                                            float (&factors)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, q = lane % 4;
  const auto row = [&](int64_t i) {
    return a.dropout.Row(p.b, h, i < a.s ? i : a.s - 1);  // any, of a query that is not there
  };
  uint32_t words[4] = {};
  if (!a.dropout.aligned) {
    SHARDC_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int64_t r = rows_at + g + e / 2 * 8, c = cols_at + q * 2 + e % 2;
      const int64_t at = row(kSwap ? c : r) + (kSwap ? r : c);
      words[e] = WordOf(a.dropout.draw.Block(at / 4, now), static_cast<int>(at % 4));
    }
  } else if (kSwap) {
    // Four lanes hold the same two queries and four neighbouring keys, twice: four blocks.
    const int me = g % 4;
    const int64_t key = rows_at + g - me + me / 2 * 8;
    const int64_t at = row(cols_at + q * 2 + me % 2) + key;
    TransposeWords(me, a.dropout.draw.Block(at / 4, now), words);
  } else {
    // Two lanes hold four neighbouring keys of two queries: two blocks.
    const int odd = q % 2;
    const int64_t at = row(rows_at + g + odd * 8) + cols_at + q / 2 * 4;
    const PhiloxBlock block = a.dropout.draw.Block(at / 4, now);
    SHARDC_UNROLL
    for (int k = 0; k < 2; ++k) {
      const uint32_t got = ShuffleXor(odd ? block.word[k] : block.word[k + 2], 1);
      words[k] = odd ? got : block.word[k];
      words[k + 2] = odd ? block.word[k + 2] : got;
    }
  }
  SHARDC_UNROLL
  for (int e = 0; e < 4; ++e) factors[e] = a.dropout.draw.Keeps(words[e]) ? a.dropout.scale : 0.f;
}

template <typename T, int kD, int kKeys, bool kDrops>
__global__ void __launch_bounds__(kMmaThreads, kLeastBlocks<kD>) ForwardKernel(Attention<T> a) {
  const Place p = PlaceOf(blockIdx.x, a.s, a.hq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t kv = a.KvHead(p.h), first = p.first + warp * 16;
  T* qs = reinterpret_cast<T*>(SharedMemory());
  T *ks = qs + kRows * kPitch<kD>, *vs = ks + kKeys * kPitch<kD>;
  LoadTile<T, kD, kRows>(qs, a.q + a.sq.At(p.b, p.h, 0), a.sq.row, p.first, a.s, a.d, a.packed);
  const T *k = a.k + a.sk.At(p.b, kv, 0), *v = a.v + a.sv.At(p.b, kv, 0);
  TileLoad<T, kD, kKeys> k_load, v_load;
  float max[2] = {-Infinity<float>(), -Infinity<float>()}, sum[2] = {0, 0}, o[kD / 8][4] = {};
  const int64_t end = a.KeyEnd(p.first + kRows - 1);
  for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
    k_load.Fetch(k, a.sk.row, j0, a.t, a.d, a.packed);
    v_load.Fetch(v, a.sv.row, j0, a.t, a.dv, a.packed);
    __syncthreads();
    k_load.Put(ks);
    v_load.Put(vs);
    __syncthreads();
    float s[kKeys / 8][4] = {};
    MultiplyRows<T, kD, kKeys / 8>(s, qs + warp * 16 * kPitch<kD>, ks, a.d);
    MaskScores<T, kKeys / 8, false>(a, p, p.h, first, j0, s);
    SHARDC_UNROLL
    for (int half = 0; half < 2; ++half) {
      float top = max[half];  // not of NaN, which comes to all through the sum
      SHARDC_UNROLL
      for (int n = 0; n < kKeys / 8; ++n)
        top = ::fmaxf(top, ::fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
      top = ::fmaxf(top, ShuffleXor(top, 1));
      top = ::fmaxf(top, ShuffleXor(top, 2));
      const float keep = max[half] == -Infinity<float>() ? 0.f : Exp2(max[half] - top);
      const float base = top == -Infinity<float>() ? 0.f : top;
      float total = 0;
      SHARDC_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        SHARDC_UNROLL
        for (int e = half * 2; e < half * 2 + 2; ++e) total += s[n][e] = Exp2(s[n][e] - base);
      }
      sum[half] = sum[half] * keep + total;  // of this lane's columns
      max[half] = top;
      SHARDC_UNROLL
      for (int n = 0; n < kD / 8; ++n) {
        o[n][half * 2] *= keep;
        o[n][half * 2 + 1] *= keep;
      }
    }
    if constexpr (kDrops) {
      const uint32_t now = a.dropout.draw.Step();
      SHARDC_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        float factors[4];
        DrawFactors<T, false>(a, p, p.h, first, j0 + n * 8, now, factors);
        SHARDC_UNROLL
        for (int e = 0; e < 4; ++e) s[n][e] *= factors[e];
      }
    }
    MultiplyAccumulator<T, kD, kKeys / 8>(o, s, vs, a.dv);
  }
  float inverse[2];
  for (int half = 0; half < 2; ++half) {
    sum[half] += ShuffleXor(sum[half], 1);
    sum[half] += ShuffleXor(sum[half], 2);
    inverse[half] = sum[half] == 0 ? 0.f : 1 / sum[half];
    const int64_t i = first + lane / 4 + half * 8;
    if (lane % 4 == 0 && i < a.s) {
      a.lse[a.Statistic(p.b, p.h, i)] = LseOf(max[half], sum[half]);
    }
  }
  if (first < a.s) {
    StoreRows<T, kD>(a.o + a.so.At(p.b, p.h, first), a.so.row, a.s - first, a.dv, o, inverse[0],
                     inverse[1]);
  }
}

template <typename T, int kD, int kKeys, bool kDrops>
__global__ void __launch_bounds__(kMmaThreads, kLeastBlocks<kD>) QueryGradKernel(Attention<T> a) {
  const Place p = PlaceOf(blockIdx.x, a.s, a.hq);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t kv = a.KvHead(p.h), first = p.first + warp * 16;
  T* qs = reinterpret_cast<T*>(SharedMemory());
  T *gs = qs + kRows * kPitch<kD>, *ks = gs + kRows * kPitch<kD>, *vs = ks + kKeys * kPitch<kD>;
  LoadTile<T, kD, kRows>(qs, a.q + a.sq.At(p.b, p.h, 0), a.sq.row, p.first, a.s, a.d, a.packed);
  LoadTile<T, kD, kRows>(gs, a.grad + a.so.At(p.b, p.h, 0), a.so.row, p.first, a.s, a.dv, a.packed);
  const T *k = a.k + a.sk.At(p.b, kv, 0), *v = a.v + a.sv.At(p.b, kv, 0);
  TileLoad<T, kD, kKeys> k_load, v_load;
  float base[2], delta[2], dq[kD / 8][4] = {};
  for (int half = 0; half < 2; ++half) {
    const int64_t i = first + lane / 4 + half * 8;
    base[half] = BaseOf(i < a.s ? a.lse_in[a.Statistic(p.b, p.h, i)] : -Infinity<float>());
    delta[half] = i < a.s ? a.delta[a.Statistic(p.b, p.h, i)] : 0.f;
  }
  const int64_t end = a.KeyEnd(p.first + kRows - 1);
  for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
    k_load.Fetch(k, a.sk.row, j0, a.t, a.d, a.packed);
    v_load.Fetch(v, a.sv.row, j0, a.t, a.dv, a.packed);
    __syncthreads();
    k_load.Put(ks);
    v_load.Put(vs);
    __syncthreads();
    float s[kKeys / 8][4] = {}, dp[kKeys / 8][4] = {};
    MultiplyRows<T, kD, kKeys / 8>(s, qs + warp * 16 * kPitch<kD>, ks, a.d);
    MultiplyRows<T, kD, kKeys / 8>(dp, gs + warp * 16 * kPitch<kD>, vs, a.dv);
    MaskScores<T, kKeys / 8, false>(a, p, p.h, first, j0, s);
    SHARDC_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      if constexpr (kDrops) {
        float factors[4];
        DrawFactors<T, false>(a, p, p.h, first, j0 + n * 8, a.dropout.draw.Step(), factors);
        SHARDC_UNROLL
        for (int e = 0; e < 4; ++e) dp[n][e] *= factors[e];
      }
      SHARDC_UNROLL
      for (int e = 0; e < 4; ++e) s[n][e] = Exp2(s[n][e] - base[e / 2]) * (dp[n][e] - delta[e / 2]);
    }
    MultiplyAccumulator<T, kD, kKeys / 8>(dq, s, ks, a.d);
  }
  if (first < a.s) {
    StoreRows<T, kD>(a.dq + a.sq.At(p.b, p.h, first), a.sq.row, a.s - first, a.d, dq, a.scale,
                     a.scale);
  }
}

// Which gradients: both of wide heads do not fit in the registers of a thread.
template <typename T, int kD, int kQueries, bool kDrops, bool kKeys, bool kValues>
__global__ void __launch_bounds__(kMmaThreads, kLeastBlocks<kD>) KeyGradKernel(Attention<T> a) {
  const Place p = PlaceOf(blockIdx.x, a.t, a.hkv);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = p.first + warp * 16, group = a.hq / a.hkv;
  T* ks = reinterpret_cast<T*>(SharedMemory());
  T *vs = ks + kRows * kPitch<kD>, *qs = vs + kRows * kPitch<kD>, *gs = qs + kQueries * kPitch<kD>;
  __shared__ float base[kQueries], delta[kQueries];
  LoadTile<T, kD, kRows>(ks, a.k + a.sk.At(p.b, p.h, 0), a.sk.row, p.first, a.t, a.d, a.packed);
  LoadTile<T, kD, kRows>(vs, a.v + a.sv.At(p.b, p.h, 0), a.sv.row, p.first, a.t, a.dv, a.packed);
  TileLoad<T, kD, kQueries> q_load, g_load;
  float dk[kKeys ? kD / 8 : 1][4] = {}, dv[kValues ? kD / 8 : 1][4] = {};
  for (int64_t h = p.h * group; h < (p.h + 1) * group; ++h) {
    for (int64_t i0 = a.QueryBegin(p.first) / kQueries * kQueries; i0 < a.s; i0 += kQueries) {
      q_load.Fetch(a.q + a.sq.At(p.b, h, 0), a.sq.row, i0, a.s, a.d, a.packed);
      g_load.Fetch(a.grad + a.so.At(p.b, h, 0), a.so.row, i0, a.s, a.dv, a.packed);
      float query_base = Infinity<float>(), query_delta = 0;
      const int64_t mine = i0 + threadIdx.x;
      if (threadIdx.x < kQueries && mine < a.s) {
        query_base = BaseOf(a.lse_in[a.Statistic(p.b, h, mine)]);
        query_delta = a.delta[a.Statistic(p.b, h, mine)];
      }
      __syncthreads();
      q_load.Put(qs);
      g_load.Put(gs);
      if (threadIdx.x < kQueries) {
        base[threadIdx.x] = query_base;
        delta[threadIdx.x] = query_delta;
      }
      __syncthreads();
      float s[kQueries / 8][4] = {}, dp[kQueries / 8][4] = {};
      MultiplyRows<T, kD, kQueries / 8>(s, ks + warp * 16 * kPitch<kD>, qs, a.d);
      if constexpr (kKeys) {
        MultiplyRows<T, kD, kQueries / 8>(dp, vs + warp * 16 * kPitch<kD>, gs, a.dv);
      }
      MaskScores<T, kQueries / 8, true>(a, p, h, first, i0, s);
      SHARDC_UNROLL
      for (int n = 0; n < kQueries / 8; ++n) {
        float factors[4] = {1.f, 1.f, 1.f, 1.f};
        if constexpr (kDrops) {
          DrawFactors<T, true>(a, p, h, first, i0 + n * 8, a.dropout.draw.Step(), factors);
        }
        SHARDC_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int column = n * 8 + lane % 4 * 2 + e % 2;
          const float probability = Exp2(s[n][e] - base[column]);
          s[n][e] = probability * factors[e];
          dp[n][e] = probability * (dp[n][e] * factors[e] - delta[column]);
        }
      }
      if constexpr (kValues) MultiplyAccumulator<T, kD, kQueries / 8>(dv, s, gs, a.dv);
      if constexpr (kKeys) MultiplyAccumulator<T, kD, kQueries / 8>(dk, dp, qs, a.d);
    }
  }
  if (first >= a.t) return;
  if constexpr (kKeys) {
    StoreRows<T, kD>(a.dk + a.sk.At(p.b, p.h, first), a.sk.row, a.t - first, a.d, dk, a.scale,
                     a.scale);
  }
  if constexpr (kValues) {
    StoreRows<T, kD>(a.dv_out + a.sv.At(p.b, p.h, first), a.sv.row, a.t - first, a.dv, dv, 1.f,
                     1.f);
  }
}

template <typename T, int kD, bool kDrops>
KernelPtr Forward(const Attention<T>& a) {
  constexpr int kKeys = kD > 128 ? 32 : 64;
  constexpr size_t kShared = (kRows + 2 * kKeys) * kPitch<kD> * sizeof(T);
  AllowShared(ForwardKernel<T, kD, kKeys, kDrops>, kShared);
  return MakeKernel([a, blocks = a.b * a.hq * CeilDiv(a.s, kRows)](const Launch& launch) {
    LaunchKernel(launch, ForwardKernel<T, kD, kKeys, kDrops>, blocks, kMmaThreads, kShared, a);
  });
}

// By kTile rows at a time of what comes; null where the shared memory is too small for so many.
template <typename T, int kD, bool kDrops, int kTile>
KernelPtr BackwardBy(Attention<T> a) {
  constexpr size_t kShared = (2 * kRows + 2 * kTile) * kPitch<kD> * sizeof(T);
  constexpr bool kTogether = kD <= 128;
  constexpr auto kForKeys = KeyGradKernel<T, kD, kTile, kDrops, true, kTogether>;
  constexpr auto kForValues = KeyGradKernel<T, kD, kTile, kDrops, kTogether, true>;
  if (kShared > static_cast<size_t>(MostShared(kForKeys))) return nullptr;
  AllowShared(QueryGradKernel<T, kD, kTile, kDrops>, kShared);
  AllowShared(kForKeys, kShared);
  AllowShared(kForValues, kShared);
  int64_t q_blocks = a.b * a.hq * CeilDiv(a.s, kRows), k_blocks = a.b * a.hkv * CeilDiv(a.t, kRows);
  auto run = [=](const Launch& launch) mutable {
    a.delta = reinterpret_cast<float*>(launch.workspace);
    LaunchDelta(launch, a);
    LaunchKernel(launch, QueryGradKernel<T, kD, kTile, kDrops>, q_blocks, kMmaThreads, kShared, a);
    LaunchKernel(launch, kForKeys, k_blocks, kMmaThreads, kShared, a);
    if (!kTogether) LaunchKernel(launch, kForValues, k_blocks, kMmaThreads, kShared, a);
  };
  return MakeKernel(run, a.b * a.hq * a.s * 4);
}
template <typename T, int kD, bool kDrops>
KernelPtr Backward(const Attention<T>& a) {
  KernelPtr kernel = BackwardBy<T, kD, kDrops, (kD > 64 ? 32 : 64)>(a);
  // On sm_86 and sm_89, which have 99 KiB of shared memory for a block.
  if constexpr (kD > 128) {
    if (!kernel) kernel = BackwardBy<T, kD, kDrops, 16>(a);
  }
  return kernel;
}

// make(head dim, drops) as constants.
template <typename T, typename Make>
KernelPtr OfWidth(const Attention<T>& a, Make make) {
  const int width = std::max(a.d, a.dv);
  auto of = [&](auto drops) {
    return width <= 64    ? make(std::integral_constant<int, 64>(), drops)
           : width <= 128 ? make(std::integral_constant<int, 128>(), drops)
                          : make(std::integral_constant<int, 256>(), drops);
  };
  return a.dropout.batch ? of(std::true_type()) : of(std::false_type());
}
template <typename T>
KernelPtr ForwardOf(const Attention<T>& a) {
  return OfWidth(a, [&](auto d, auto drops) { return Forward<T, d.value, drops.value>(a); });
}
template <typename T>
KernelPtr BackwardOf(const Attention<T>& a) {
  return OfWidth(a, [&](auto d, auto drops) { return Backward<T, d.value, drops.value>(a); });
}

}  // namespace

KernelPtr MakeMmaForward(const Attention<BF16>& a) { return ForwardOf(a); }
KernelPtr MakeMmaForward(const Attention<F16>& a) { return ForwardOf(a); }
KernelPtr MakeMmaBackward(const Attention<BF16>& a) { return BackwardOf(a); }
KernelPtr MakeMmaBackward(const Attention<F16>& a) { return BackwardOf(a); }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
