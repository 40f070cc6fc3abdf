// Scalars whose type is known at run time.
#pragma once

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// Of any number type.
struct ScalarView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  template <typename T>
  __device__ double As() const {
    return static_cast<double>(Widen(*reinterpret_cast<const T*>(data)));
  }
  __device__ double Value() const {
    switch (dtype) {
      case DType::kF32:
        return As<float>();
      case DType::kF64:
        return As<double>();
      case DType::kF16:
        return As<F16>();
      case DType::kBF16:
        return As<BF16>();
      case DType::kI32:
        return As<int32_t>();
      default:
        return As<int64_t>();
    }
  }
  // Of floats.
  template <typename T, typename W>
  __device__ void Put(W v) const {
    *reinterpret_cast<T*>(data) = Narrow<T>(static_cast<Wide<T>>(v));
  }
  template <typename W>
  __device__ void Store(W v) const {
    switch (dtype) {
      case DType::kF32:
        return Put<float>(v);
      case DType::kF16:
        return Put<F16>(v);
      case DType::kBF16:
        return Put<BF16>(v);
      default:
        return Put<double>(v);
    }
  }
};
inline ScalarView Scalar(const TensorView& v) { return {v.data, v.dtype}; }

// What is left of a value in a float type.
template <typename W>
__device__ W Rounded(DType dtype, W v) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<W>(static_cast<float>(v));
    case DType::kF16:
      return static_cast<W>(Widen(Narrow<F16>(static_cast<float>(v))));
    case DType::kBF16:
      return static_cast<W>(Widen(Narrow<BF16>(static_cast<float>(v))));
    default:
      return v;
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
