// Padding along dims that are reduced.
#pragma once

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// Valid stretches along the reduced dims that are padded.
struct Gaps {
  int count = 0;
  int64_t stride[3], size[3];  // the index along the dim is offset / stride % size
  Runs runs[3];
  __device__ bool Valid(int64_t offset) const {
    for (int i = 0; i < count; ++i) {
      if (!runs[i].Valid(offset / stride[i] % size[i])) return false;
    }
    return true;
  }
};
// Of a dim of operand 0. False where there are more than a kernel takes.
inline bool AddGaps(const KernelRequest& r, int dim, int64_t stride, Gaps* gaps) {
  const TensorView& x = r.call.in[0];
  if (Full(r, x, dim)) return true;
  if (gaps->count == 3 || !MakeRuns(r, x, dim, &gaps->runs[gaps->count])) return false;
  gaps->stride[gaps->count] = stride;
  gaps->size[gaps->count++] = x.shape[static_cast<size_t>(dim)];
  return true;
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
