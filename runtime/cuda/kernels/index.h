// Reading ids and indices on the device.
#pragma once

#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// An index tensor of i32 or i64. Reports what is out of range, never for padding.
struct IdReader {
  const void* data;
  bool wide;     // i64
  int64_t size;  // valid: [0, size), with `negative` also [-size, -1]
  bool negative;
  int64_t kind;              // of fault
  const int64_t* positions;  // see Positions; may be null

  __device__ int64_t Raw(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  __device__ bool Padding(int64_t i) const { return positions && positions[i] < 0; }
  // In [0, size), or -1 for padding and for what is out of range.
  __device__ int64_t Read(int64_t i, int64_t* fault) const {
    if (Padding(i)) return -1;
    int64_t v = Raw(i), at = negative && v < 0 ? v + size : v;
    if (at >= 0 && at < size) return at;
    ReportFault(fault, kind, positions ? positions[i] : i, v, size);
    return -1;
  }
};

inline IdReader MakeIdReader(const TensorView& ids, int64_t size, bool negative, int64_t kind,
                             const DeviceTable<int64_t>& positions) {
  return {ids.data, ids.dtype == DType::kI64, size, negative, kind, positions.data()};
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
