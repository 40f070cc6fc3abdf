// Draws of dropout on the device (ir/dropout.h).
#pragma once

#include "ir/dropout.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// Word k; an index that only the device knows would put the block into memory.
__device__ __forceinline__ uint32_t WordOf(const PhiloxBlock& block, int k) {
  return k == 0 ? block.word[0] : k == 1 ? block.word[1] : k == 2 ? block.word[2] : block.word[3];
}

struct Draw {
  const std::byte* step = nullptr;
  bool long_step = false;  // i64
  uint64_t seed = 0, threshold = 0;
  uint32_t stream = 0;

  Draw() = default;
  Draw(const DropoutMask& mask, const TensorView& step)
      : step(step.data),
        long_step(step.dtype == DType::kI64),
        seed(mask.seed),
        threshold(mask.threshold),
        stream(mask.stream) {}

  __device__ uint32_t Step() const {
    return static_cast<uint32_t>(long_step ? *reinterpret_cast<const int64_t*>(step)
                                           : *reinterpret_cast<const int32_t*>(step));
  }
  // The words of the elements 4 * block ... 4 * block + 3.
  __device__ PhiloxBlock Block(int64_t block, uint32_t now) const {
    return Philox(static_cast<uint64_t>(block), stream, now, seed);
  }
  __device__ bool Keeps(uint32_t word) const { return word >= threshold; }
};

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
