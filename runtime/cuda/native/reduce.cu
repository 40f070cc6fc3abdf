#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "ir/diagnostic.h"
#include "runtime/cuda/native/check.h"
#include "runtime/cuda/native/reduce.h"

namespace shardc::cuda {
namespace {

struct Pointers {
  const void* sources[kMaxReductionRanks];
  void* targets[kMaxReductionRanks];
  int num_sources, num_targets;
};

// How an element is added up: A is wide enough, and rounds once at the end.
template <typename T>
struct As {
  using A = T;
  static __device__ A Load(T v) { return v; }
  static __device__ T Store(A v) { return v; }
};
// Sums of integers wrap around.
template <>
struct As<int32_t> {
  using A = uint32_t;
  static __device__ A Load(int32_t v) { return static_cast<uint32_t>(v); }
  static __device__ int32_t Store(A v) { return static_cast<int32_t>(v); }
};
template <>
struct As<int64_t> {
  using A = uint64_t;
  static __device__ A Load(int64_t v) { return static_cast<uint64_t>(v); }
  static __device__ int64_t Store(A v) { return static_cast<int64_t>(v); }
};
template <>
struct As<__half> {
  using A = float;
  static __device__ A Load(__half v) { return __half2float(v); }
  static __device__ __half Store(A v) { return __float2half_rn(v); }
};
template <>
struct As<__nv_bfloat16> {
  using A = float;
  static __device__ A Load(__nv_bfloat16 v) { return __bfloat162float(v); }
  static __device__ __nv_bfloat16 Store(A v) { return __float2bfloat16_rn(v); }
};

struct Sum {
  template <typename T>
  static __device__ typename As<T>::A Fold(typename As<T>::A a, T b) {
    return a + As<T>::Load(b);
  }
};
// A NaN on either side wins.
struct Max {
  template <typename T>
  static __device__ typename As<T>::A Fold(typename As<T>::A a, T b) {
    auto x = As<T>::Load(b);
    return Greater<T>(x, a) || x != x ? x : a;
  }
  template <typename T, typename A>
  static __device__ bool Greater(A x, A a) {
    if constexpr (sizeof(T) >= 4 && std::is_integral_v<T>)
      return static_cast<T>(x) > static_cast<T>(a);
    return x > a;
  }
};
struct Min {
  template <typename T>
  static __device__ typename As<T>::A Fold(typename As<T>::A a, T b) {
    auto x = As<T>::Load(b);
    return Max::Greater<T>(a, x) || x != x ? x : a;
  }
};

template <typename T, typename Op>
__global__ void ReduceKernel(Pointers p, int64_t n) {
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    auto sum = As<T>::Load(static_cast<const T*>(p.sources[0])[i]);
    for (int r = 1; r < p.num_sources; ++r) {
      sum = Op::template Fold<T>(sum, static_cast<const T*>(p.sources[r])[i]);
    }
    T rounded = As<T>::Store(sum);
    for (int r = 0; r < p.num_targets; ++r) static_cast<T*>(p.targets[r])[i] = rounded;
  }
}

template <typename T>
void Run(const Pointers& p, int64_t n, ReduceOp op, int sm_count, Stream s) {
  constexpr int kThreads = 256;
  int64_t blocks = std::min<int64_t>((n + kThreads - 1) / kThreads, int64_t{8} * sm_count);
  auto grid = static_cast<unsigned>(blocks);
  switch (op) {
    case ReduceOp::kSum:
      ReduceKernel<T, Sum><<<grid, kThreads, 0, s>>>(p, n);
      break;
    case ReduceOp::kMax:
      ReduceKernel<T, Max><<<grid, kThreads, 0, s>>>(p, n);
      break;
    case ReduceOp::kMin:
      ReduceKernel<T, Min><<<grid, kThreads, 0, s>>>(p, n);
      break;
  }
  Check(cudaGetLastError(), "launch of a reduction");
}

}  // namespace

void LaunchReduction(const Reduction& r, int sm_count, Stream s) {
  if (r.count == 0) return;
  SHARDC_CHECK(r.sources.size() <= kMaxReductionRanks && r.targets.size() <= kMaxReductionRanks);
  Pointers p = {};
  std::copy(r.sources.begin(), r.sources.end(), p.sources);
  std::copy(r.targets.begin(), r.targets.end(), p.targets);
  p.num_sources = static_cast<int>(r.sources.size());
  p.num_targets = static_cast<int>(r.targets.size());
  switch (r.dtype) {
    case DType::kF32:
      return Run<float>(p, r.count, r.op, sm_count, s);
    case DType::kF64:
      return Run<double>(p, r.count, r.op, sm_count, s);
    case DType::kF16:
      return Run<__half>(p, r.count, r.op, sm_count, s);
    case DType::kBF16:
      return Run<__nv_bfloat16>(p, r.count, r.op, sm_count, s);
    case DType::kI32:
      return Run<int32_t>(p, r.count, r.op, sm_count, s);
    case DType::kI64:
      return Run<int64_t>(p, r.count, r.op, sm_count, s);
    case DType::kBool:
      SHARDC_CHECK(r.op != ReduceOp::kSum, "there is no sum of bools");
      return Run<uint8_t>(p, r.count, r.op, sm_count, s);
  }
}

}  // namespace shardc::cuda
