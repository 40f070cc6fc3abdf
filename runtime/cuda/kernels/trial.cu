#include "runtime/cuda/kernels/trial.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda {
namespace SHARDC_KERNEL_SPACE {
namespace {

// In -1 ... 1, by the finalizer of SplitMix64.
__device__ __forceinline__ double Draw(uint64_t seed, int64_t i) {
  uint64_t z = seed * 0xd1342543de82ef95u + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

template <typename T>
struct Draws {
  Noise noise;
  __device__ void operator()(int64_t i) const {
    const double value = noise.center + noise.spread * Draw(noise.seed, i);
    reinterpret_cast<T*>(noise.data)[i] = Narrow<T>(static_cast<Wide<T>>(value));
  }
};

template <typename T>
struct Compare {
  Comparison c;
  Deviation* parts;
  int64_t blocks;
  __device__ void operator()(int64_t block) const {
    const T *got = reinterpret_cast<const T*>(c.got), *want = reinterpret_cast<const T*>(c.want);
    const double infinity = Infinity<double>();
    double squares = 0, error_squares = 0, excess = -infinity;
    int64_t at = c.count;
    const int64_t step = blocks * blockDim.x;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < c.count; i += step) {
      const double w = Widen(want[i]), e = Widen(got[i]) - w;
      squares += w * w;
      error_squares += e * e;
      const double over = ::fabs(e) - c.slack * ::fabs(w);
      if (over <= excess || excess == infinity) continue;
      excess = over < infinity ? over : infinity;  // also for what is no number
      at = i;
    }
    Deviation found;
    found.squares = BlockSum(squares);
    found.error_squares = BlockSum(error_squares);
    found.excess = BlockMax(excess);
    at = BlockFold(excess == found.excess ? at : c.count, c.count,
                   [](int64_t a, int64_t b) { return a < b ? a : b; });
    if (threadIdx.x != 0) return;
    if (at < c.count) {
      found.at = at;
      found.got = Widen(got[at]);
      found.want = Widen(want[at]);
    }
    parts[block] = found;
  }
};

// In f64 nothing has a rival.
template <typename Fn>
void Visit(DType dtype, Fn fn) {
  if (dtype == DType::kF32) return fn(float());
  if (dtype == DType::kF16) return fn(F16());
  SHARDC_CHECK(dtype == DType::kBF16);
  fn(BF16());
}

}  // namespace

void LaunchNoise(const Launch& launch, const Noise& noise) {
  Visit(noise.dtype, [&](auto t) {
    const Grid grid = ElementGrid(noise.count);
    LaunchKernel(launch, ElementsKernel<Draws<decltype(t)>>, grid.blocks, grid.threads, 0,
                 Draws<decltype(t)>{noise}, noise.count);
  });
}

void LaunchComparison(const Launch& launch, const Comparison& c, Deviation* parts) {
  Visit(c.dtype, [&](auto t) {
    const int64_t blocks = SumBlocks(c.count);
    LaunchKernel(launch, RowsKernel<Compare<decltype(t)>>, blocks, kElementThreads, 0,
                 Compare<decltype(t)>{c, parts, blocks}, blocks);
  });
}

}  // namespace SHARDC_KERNEL_SPACE

#if defined(__CUDACC__)
void LaunchNoise(const Launch& launch, const Noise& noise) { device::LaunchNoise(launch, noise); }
void LaunchComparison(const Launch& launch, const Comparison& c, Deviation* parts) {
  device::LaunchComparison(launch, c, parts);
}
#endif

}  // namespace shardc::cuda
