// Binds program instructions to kernels, as runtime/cpu/bind.h does on the CPU.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/cuda/kernels/geometry.h"
#include "runtime/cuda/kernels/platform.h"
#include "runtime/kernel.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

using KernelPtr = std::unique_ptr<CudaKernel>;
// Makes the kernel of an instruction, or null where its types or shapes have none.
using Factory = KernelPtr (*)(const KernelRequest&);

struct Binding {
  std::string_view op;
  Factory make;
};

// One table per file.
std::span<const Binding> UnaryBindings();
std::span<const Binding> BinaryBindings();
std::span<const Binding> FusedElementwiseBindings();
std::span<const Binding> CompareBindings();
std::span<const Binding> CastBindings();
std::span<const Binding> ShapeBindings();
std::span<const Binding> MovementBindings();
std::span<const Binding> ReduceBindings();
std::span<const Binding> SoftmaxBindings();
std::span<const Binding> NormBindings();
std::span<const Binding> NormGradBindings();
std::span<const Binding> IndexBindings();
std::span<const Binding> ScatterBindings();
std::span<const Binding> LossBindings();
std::span<const Binding> OptimizerBindings();
std::span<const Binding> DropoutBindings();
std::span<const Binding> MatmulBindings();
std::span<const Binding> MatmulRowsBindings();
std::span<const Binding> AttentionBindings();

// The kernel of an instruction by its op (table.cu); null when there is none.
KernelPtr MakeKernelFor(const KernelRequest& request);
std::vector<std::string_view> KernelOps();

// fn(T()) with T the element type; null for a type that is not among them.
template <typename Fn>
KernelPtr DispatchFloat(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float());
    case DType::kF64:
      return fn(double());
    case DType::kF16:
      return fn(F16());
    case DType::kBF16:
      return fn(BF16());
    default:
      return nullptr;
  }
}
// fn(T(), U()) for an operand and a result whose type the attribute "out" may choose: the same, or
// f32 and a half.
template <typename Fn>
KernelPtr DispatchFloats(DType in, DType out, Fn fn) {
  if (in == out) return DispatchFloat(in, [&](auto t) { return fn(t, t); });
  if (in == DType::kF32 && out == DType::kBF16) return fn(float(), BF16());
  if (in == DType::kF32 && out == DType::kF16) return fn(float(), F16());
  if (in == DType::kBF16 && out == DType::kF32) return fn(BF16(), float());
  if (in == DType::kF16 && out == DType::kF32) return fn(F16(), float());
  return nullptr;
}
// fn(N()) for an operand of type `narrow` beside others of type T: the same, or a half beside f32.
template <typename T, typename Fn>
KernelPtr DispatchNarrow(DType narrow, Fn fn) {
  if constexpr (std::is_same_v<T, float>) {
    if (narrow == DType::kBF16) return fn(BF16());
    if (narrow == DType::kF16) return fn(F16());
  }
  return fn(T());
}
// fn(S(), N(), U()) of both: an operand of type S, one that may be narrower, and the result. Not
// with halves of two types: no model has both.
template <typename Fn>
KernelPtr DispatchMixed(DType in, DType narrow, DType out, Fn fn) {
  return DispatchFloats(in, out, [&](auto s, auto u) {
    return DispatchNarrow<decltype(s)>(narrow, [&](auto n) -> KernelPtr {
      using N = decltype(n);
      using U = decltype(u);
      if constexpr (sizeof(N) == 2 && sizeof(U) == 2 && !std::is_same_v<N, U>) {
        return nullptr;
      } else {
        return fn(s, n, u);
      }
    });
  });
}
template <typename Fn>
KernelPtr DispatchNumeric(DType dtype, Fn fn) {
  if (dtype == DType::kI32) return fn(int32_t());
  if (dtype == DType::kI64) return fn(int64_t());
  return DispatchFloat(dtype, fn);
}
template <typename Fn>
KernelPtr DispatchAny(DType dtype, Fn fn) {
  if (dtype == DType::kBool) return fn(Bool());
  return DispatchNumeric(dtype, fn);
}
// An unsigned integer as wide as the element, for what only moves.
template <typename Fn>
KernelPtr DispatchSize(DType dtype, Fn fn) {
  switch (DTypeSize(dtype)) {
    case 1:
      return fn(uint8_t());
    case 2:
      return fn(uint16_t());
    case 4:
      return fn(uint32_t());
    default:
      return fn(uint64_t());
  }
}

template <typename T>
const T* In(const KernelRequest& r, size_t i) {
  return r.call.in[i].as<const T>();
}
template <typename T>
T* Out(const KernelRequest& r, size_t i) {
  return r.call.out[i].as<T>();
}

inline int64_t Bytes(const TensorView& v) { return v.num_elements() * DTypeSize(v.dtype); }
inline int Axis(int64_t axis, int rank) { return static_cast<int>(axis < 0 ? axis + rank : axis); }
inline bool Aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}
inline KernelPtr NoWork() {
  return MakeKernel([](const Launch&) {});
}

// The valid stretches of a dim, passed to kernels by value.
struct Runs {
  static constexpr int kMax = 8;
  int count = 0;
  Run runs[kMax];
  // Where the element lies here, or -1.
  __device__ int64_t Local(int64_t global) const {
    for (int i = 0; i < count; ++i) {
      int64_t at = global - runs[i].global;
      if (at >= 0 && at < runs[i].size) return runs[i].local + at;
    }
    return -1;
  }
  __device__ bool Valid(int64_t local) const {
    for (int i = 0; i < count; ++i) {
      int64_t at = local - runs[i].local;
      if (at >= 0 && at < runs[i].size) return true;
    }
    return false;
  }
};
// False when there are more than a kernel takes.
inline bool MakeRuns(const KernelRequest& r, const TensorView& view, int dim, Runs* out) {
  std::vector<Run> runs = r.call.Runs(view, dim);
  if (runs.size() > Runs::kMax) return false;
  out->count = static_cast<int>(runs.size());
  std::copy(runs.begin(), runs.end(), out->runs);
  return true;
}
// Whether the view has no padding along the dim.
inline bool Full(const KernelRequest& r, const TensorView& view, int dim) {
  int64_t covered = 0;
  for (const Run& run : r.call.Runs(view, dim)) covered += run.size;
  return covered == view.shape[static_cast<size_t>(dim)];
}

// For each element of an index tensor its flat position in the global tensor, or -1 in padding.
// Null data: the tensor is whole, so that position is index.
DeviceTable<int64_t> Positions(const KernelRequest& r, const TensorView& view);

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
