// Copies between strided boxes: what all ops do that only move elements.
#pragma once

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

struct StridedCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  Ints dims, from_strides, to_strides;  // in elements
  int element = 4;                      // bytes
};
// Null when the box has too many dims. A kernel also where both boxes are one stretch of memory:
// see Executor::Step.
KernelPtr MakeStridedCopy(const StridedCopy& copy);
// Of one stretch, which may be there already.
KernelPtr MakeStretchCopy(std::byte* to, const std::byte* from, int64_t bytes);
// In order; null if any is.
KernelPtr MakeStridedCopies(const std::vector<StridedCopy>& copies);
// Sets every element of the memory to the bits of `value`.
KernelPtr MakeFill(std::byte* to, int64_t elements, DType dtype, double value);

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
